// Every kernel of every instruction set this CPU has, against the portable one: the same bits, NaN for NaN, whatever
// the shape. Memory ends where the operands do: one byte further is not mapped. Prints what differs, then counts.
//
// kernels [COUNT [ime1|ime2]]: cases of each kind, 40 if not given. ime1, ime2: linears with SpacemiT's matrix
// instructions only, and how many of these they are to execute.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string>
#include <sys/mman.h>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/half.hpp"
#include "kernels/outlier_columns.hpp"
#include "kernels/quantised_rows.hpp"
#include "kernels/registry.hpp"

using namespace nybble;

namespace {

uint64_t state = 88172645463325252ull;
uint64_t random_bits() {
    state ^= state << 13;
    state ^= state >> 7;
    return state ^= state << 17;
}
size_t between(size_t low, size_t high) { return low + random_bits() % (high - low + 1); }
float random_float() { return static_cast<float>(static_cast<int64_t>(random_bits() >> 40) - (1 << 23)) * 0x1p-22f; }

// Ordinary numbers; now and then zeros, extremes, an outlier, or what is no number.
void fill_row(float* row, size_t count) {
    const size_t kind = between(0, 15);
    const float unit = kind == 1 ? 0.0f : kind == 2 ? 1e30f : kind == 3 ? 1e-38f : 1.0f;
    for (size_t i = 0; i < count; ++i) row[i] = unit * random_float();
    float& one = row[between(0, count - 1)];
    if (kind == 4) one = std::numeric_limits<float>::quiet_NaN();
    if (kind == 5) one = -std::numeric_limits<float>::infinity();
    if (kind == 6) one = 77.0f;
}

// Ends at an unmapped page, or else starts behind one.
template <typename T>
class Guarded {
  public:
    explicit Guarded(size_t count, size_t alignment = alignof(T)) {
        const size_t bytes = (count * sizeof(T) + alignment - 1) / alignment * alignment;
        pages_ = (bytes + kPage - 1) / kPage * kPage + 2 * kPage;
        void* memory = mmap(nullptr, pages_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED) std::abort();
        start_ = static_cast<uint8_t*>(memory);
        if (mprotect(start_ + kPage, pages_ - 2 * kPage, PROT_READ | PROT_WRITE) != 0) std::abort();
        const size_t at_end = pages_ - kPage - bytes;
        data_ = reinterpret_cast<T*>(start_ + (between(0, 3) == 0 ? kPage : at_end));
    }
    Guarded(const Guarded&) = delete;
    ~Guarded() { munmap(start_, pages_); }
    T* data() { return data_; }

  private:
    static constexpr size_t kPage = 4096;
    uint8_t* start_;
    size_t pages_;
    T* data_;
};

long passed = 0, failed = 0;

template <typename T>
void compare(const std::string& what, const T* expected, const T* found, size_t count) {
    for (size_t i = 0; i < count; ++i) {
        if constexpr (std::is_same_v<T, float>) {
            if (expected[i] != expected[i] && found[i] != found[i]) continue;
        }
        if (std::memcmp(expected + i, found + i, sizeof(T)) == 0) continue;
        std::printf("%s: element %zu is %g, portable %g\n", what.c_str(), i, static_cast<double>(found[i]),
                    static_cast<double>(expected[i]));
        ++failed;
        return;
    }
    ++passed;
}

std::vector<Isa> others() {
    std::vector<Isa> isas = available_isas();
    isas.pop_back();  // portable
    return isas;
}

std::string named(Isa isa, const char* what) { return std::string(name_of(isa)) + " " + what; }

struct Rows {
    Guarded<uint8_t> memory;
    QuantisedRows rows;
    Rows(const float* x, size_t width, size_t block, Layout layout, size_t count, Isa isa)
        : memory(quantised_rows_bytes(width, block, layout, count), 64) {
        rows = lay_out_quantised_rows(width, block, layout, count, memory.data());
        std::memset(memory.data(), 0, quantised_rows_bytes(width, block, layout, count));
        for (size_t row = 0; row < count; ++row) row_kernels(isa).quantise(x + row * width, width, rows, row);
    }
};

void check_quantise(const std::vector<Isa>& isas) {
    const size_t block = size_t{16} << between(0, 4), width = between(1, 300), count = between(1, 3);
    Guarded<float> x(width * count);
    for (size_t row = 0; row < count; ++row) fill_row(x.data() + row * width, width);
    const LayoutTraits& layout = kLayouts[between(0, kLayouts.size() - 1)];
    Rows expected(x.data(), width, block, layout.layout, count, Isa::portable);
    const QuantisedRows& e = expected.rows;
    for (const Isa isa : isas) {
        Rows found(x.data(), width, block, layout.layout, count, isa);
        const QuantisedRows& f = found.rows;
        const auto name = named(isa, "quantise for ") + std::string(layout.name);
        compare(name + " codes", e.codes, f.codes, e.groups * e.tiled_rows * kActivationGroup);
        compare(name + " scales", e.scales, f.scales, e.groups * count);
        compare(name + " starts", e.starts, f.starts, e.blocks * count);
        compare(name + " sums", e.sums, f.sums, e.blocks * count);
        compare(name + " outliers", e.outlier_counts, f.outlier_counts, count);
    }
}

// Weights of the first layout; in another one, the same.
PackedMatrix packed_as(Layout layout, const PackedMatrix& weights, uint8_t* memory) {
    const PackedFormat& from = weights.format();
    PackedFormat to = from;
    to.layout = layout;
    PackedMatrix packed(to, weights.n(), weights.k(), memory, nullptr);
    for (size_t panel = 0; panel < weights.panels(); ++panel) {
        for (size_t b = 0; b < weights.blocks(); ++b) {
            const uint8_t* source = weights.panel(panel) + b * weights.block_bytes();
            uint8_t* target = packed.panel(panel) + b * packed.block_bytes();
            const size_t code_bytes = is_quantised(from.type) ? from.code_bytes() : 0;
            std::memcpy(target + code_bytes, source + code_bytes, weights.block_bytes() - code_bytes);
            for (size_t i = 0; code_bytes != 0 && i < kPanelChannels * from.block; ++i) {
                const CodePlace out = place_of_code(from, i % kPanelChannels, i / kPanelChannels);
                const CodePlace in = place_of_code(to, i % kPanelChannels, i / kPanelChannels);
                const int code = (source[out.byte] >> out.shift) & ((1 << bits_of(from.type)) - 1);
                target[in.byte] = static_cast<uint8_t>(target[in.byte] | (code ^ to.flipped_bits()) << in.shift);
            }
        }
    }
    return packed;
}

// Matrix instructions that kernels are to execute for a panel, in tiles of 8 rows that begin at multiples of 8. IME1:
// 4 × 4 × 8 each, single rows in operands of 4. IME2: 8 × 8 × 16, or × 32 for each of two halves of activations; 8 more
// sort the sums of a tile. Where there is only one row, both halves are in one operand, and 4 more join a block's sums.
long expected_matrix_instructions = 0;
void expect_matrix_instructions(Isa isa, const LinearArguments& arguments, size_t begin, size_t end) {
    const PackedMatrix& weights = *arguments.weights;
    const size_t block = std::min(weights.format().block, kActivationGroup);
    const size_t tiles = (end + 7) / 8 - begin / 8;
    const size_t k = (weights.k() + block - 1) / block * block;
    size_t count = 0;
    if (isa == Isa::ime1) count = k / 8 * (kPanelChannels / 4) * (end - begin == 1 ? 1 : 2 * tiles);
    if (isa == Isa::ime2) {
        const bool is_single = arguments.quantised.row_count == 1, split = traits_of(weights.format().layout).split;
        count = is_single && split ? k / 8 + 4 * (k / block) : k / 4 * tiles + (is_single ? 0 : 8 * tiles);
    }
    expected_matrix_instructions += static_cast<long>(count);
}

void check_linear(const LinearEntry& portable, const std::vector<Isa>& isas) {
    const bool quantised = is_quantised(portable.weights);
    const PackedFormat format = {portable.weights, quantised ? size_t{16} << between(0, 4) : 1,
                                 quantised && between(0, 1) == 1};
    const size_t n = between(1, 97), k = between(1, 3 * format.block + 40);
    const size_t kind = between(0, 9), rows = kind < 2 ? 16 : kind == 2 ? between(60, 75) : between(1, 9);
    Guarded<uint8_t> packed(format.matrix_bytes(n, k), 64);
    PackedMatrix weights(format, n, k, packed.data(), nullptr);
    // Now and then all codes are the lowest or the highest.
    const uint64_t set = between(0, 9) == 0 ? UINT64_MAX : 0, kept = between(0, 9) == 0 ? 0 : UINT64_MAX;
    for (size_t i = 0; i < weights.bytes(); ++i) packed.data()[i] = static_cast<uint8_t>((random_bits() & kept) | set);
    for (size_t panel = 0; panel < weights.panels(); ++panel) {
        // Scales, offsets and float weights are numbers of ordinary size.
        for (size_t b = 0; b < weights.blocks(); ++b) {
            uint8_t* at = weights.panel(panel) + b * weights.block_bytes() + (quantised ? format.code_bytes() : 0);
            for (size_t i = 0; i < kPanelChannels * (format.has_offsets ? 2 : 1); ++i) {
                const float value = random_float() * 0.1f;
                if (format.type == WeightType::f32) {
                    std::memcpy(at + 4 * i, &value, 4);
                } else {
                    const uint16_t half =
                        format.type == WeightType::bf16 ? float_to_bfloat(value) : float_to_half(value);
                    std::memcpy(at + 2 * i, &half, 2);
                }
            }
        }
    }
    Guarded<float> x(rows * k), bias(n), residual(rows * n);
    for (size_t row = 0; row < rows; ++row) fill_row(x.data() + row * k, k);
    for (size_t i = 0; i < n; ++i) bias.data()[i] = random_float();
    for (size_t i = 0; i < rows * n; ++i) residual.data()[i] = random_float();
    const bool adds = between(0, 1) == 1;
    const size_t cut = between(0, 3) == 0 ? between(1, rows) : rows;  // rows may come in two parts
    const auto run = [&](const LinearEntry& entry, float* output) {
        PackedFormat layout = format;
        layout.layout = entry.layout;
        Guarded<uint8_t> memory(layout.matrix_bytes(n, k), 64);
        const PackedMatrix own = packed_as(entry.layout, weights, memory.data());
        const Rows activations(x.data(), k, quantised ? format.block : 32, entry.layout, rows, Isa::portable);
        LinearArguments arguments = {&own,
                                     activations.rows,
                                     {x.data(), k},
                                     {output, n},
                                     adds ? bias.data() : nullptr,
                                     {adds ? residual.data() : nullptr, n}};
        Guarded<uint8_t> scratch(entry.kernel->scratch_bytes(own) + 64, 64);
        Guarded<uint8_t> sorted(outlier_columns_bytes(k, rows) + 64, 64);
        for (size_t panel = 0; panel < own.panels(); ++panel) {
            for (const auto& [begin, end] : {std::pair{size_t{0}, cut}, {cut, rows}}) {
                if (begin == end) continue;
                OutlierColumns columns{};
                if (entry.activations == Activations::int8 && between(0, 1) == 1) {
                    columns = sort_outliers(activations.rows, begin, end, sorted.data());
                    arguments.outliers = &columns;
                } else {
                    arguments.outliers = nullptr;
                }
                entry.kernel->run(arguments, panel, begin, end, scratch.data());
                expect_matrix_instructions(entry.isa, arguments, begin, end);
            }
        }
    };
    Guarded<float> expected(rows * n), found(rows * n);
    run(portable, expected.data());
    for (const LinearEntry& entry : linear_kernels()) {
        PackedFormat layout = format;
        layout.layout = entry.layout;
        const bool available = std::find(isas.begin(), isas.end(), entry.isa) != isas.end();
        if (!available || !layout.is_possible() || &entry == &portable) continue;
        if (entry.weights != portable.weights || entry.activations != portable.activations) continue;
        run(entry, found.data());
        const std::string shape = " M" + std::to_string(rows) + " N" + std::to_string(n) + " K" + std::to_string(k) +
                                  " block " + std::to_string(format.block) + (format.has_offsets ? " offsets" : "");
        compare(entry.name + shape, expected.data(), found.data(), rows * n);
    }
}

void check_rows(const std::vector<Isa>& isas) {
    const size_t width = between(1, 130), half = between(1, 70);
    Guarded<float> a(width), b(width), expected(width), found(width);
    Guarded<float> head(2 * half), cosines(half), sines(half), turned(2 * half), also_turned(2 * half);
    fill_row(a.data(), width);
    fill_row(b.data(), width);
    for (float* values : {cosines.data(), sines.data()}) fill_row(values, half);
    fill_row(head.data(), 2 * half);
    const auto every_op = [&](const RowKernels& kernels, float* norm, float* swiglu, float* rotated) {
        kernels.rms_norm({a.data(), b.data(), norm, width, width, 1e-5f});
        kernels.rotate({head.data(), rotated, cosines.data(), sines.data(), 2 * half});
        kernels.swiglu(a.data(), b.data(), swiglu, width);
    };
    Guarded<float> swiglu(width), also_swiglu(width);
    every_op(row_kernels(Isa::portable), expected.data(), swiglu.data(), turned.data());
    for (const Isa isa : isas) {
        every_op(row_kernels(isa), found.data(), also_swiglu.data(), also_turned.data());
        compare(named(isa, "rms_norm"), expected.data(), found.data(), width);
        compare(named(isa, "swiglu"), swiglu.data(), also_swiglu.data(), width);
        compare(named(isa, "rotate"), turned.data(), also_turned.data(), 2 * half);
    }
}

void check_attention(const std::vector<Isa>& isas) {
    const KVType types[] = {KVType::fp32, KVType::fp16, KVType::bf16, KVType::int8};
    const KVBlock block = {types[between(0, 3)], between(1, 80)};
    const size_t head_dim = block.head_dim, group = between(1, 3);
    const size_t first = between(0, 9) == 0 ? 250 : between(0, 140), rows = between(1, 9), positions = first + rows;
    const size_t blocks = (positions + kBlockPositions - 1) / kBlockPositions + 1;  // the next is fetched
    const size_t outputs = rows * group * head_dim;
    Guarded<float> query(outputs), expected(outputs), found(outputs);
    for (size_t row = 0; row < rows * group; ++row) fill_row(query.data() + row * head_dim, head_dim);
    std::vector<float> keys(positions * head_dim), values(positions * head_dim);
    for (size_t position = 0; position < positions; ++position) {
        fill_row(keys.data() + position * head_dim, head_dim);
        fill_row(values.data() + position * head_dim, head_dim);
    }
    const auto run = [&](Isa isa, uint8_t* cache, float* output) {
        std::memset(cache, 0, blocks * block.bytes());
        const RowKernels& kernels = row_kernels(isa);
        for (size_t position = 0; position < positions; ++position) {
            Guarded<float> key(head_dim), value(head_dim);
            std::memcpy(key.data(), keys.data() + position * head_dim, head_dim * sizeof(float));
            std::memcpy(value.data(), values.data() + position * head_dim, head_dim * sizeof(float));
            kernels.append({key.data(), value.data(), cache + position / kBlockPositions * block.bytes(),
                            position % kBlockPositions, block});
        }
        const AttentionArguments arguments = {
            cache,  block.bytes(),    block, group, first, rows, query.data(), group * head_dim,
            output, group * head_dim, 0.125f};
        Guarded<uint8_t> scratch(kernels.attention_scratch_bytes(block.padded_head_dim(), rows * group), 64);
        kernels.attention(arguments, scratch.data());
    };
    Guarded<uint8_t> cache(blocks * block.bytes(), 64), other_cache(blocks * block.bytes(), 64);
    const std::string shape = " of " + std::to_string(rows) + " rows from " + std::to_string(first) + ", " +
                              std::to_string(group) + " heads of " + std::to_string(head_dim) + ", KV type " +
                              std::to_string(static_cast<int>(block.type));
    run(Isa::portable, cache.data(), expected.data());
    for (const Isa isa : isas) {
        run(isa, other_cache.data(), found.data());
        compare(named(isa, "append") + shape, cache.data(), other_cache.data(), blocks * block.bytes());
        compare(named(isa, "attention") + shape, expected.data(), found.data(), outputs);
    }
}

void check_logits(const std::vector<Isa>& isas) {
    const size_t count = between(1, 200);
    Guarded<float> logits(count);
    fill_row(logits.data(), count);
    const size_t expected = row_kernels(Isa::portable).highest_logit(logits.data(), count);
    for (const Isa isa : isas) {
        const size_t found = row_kernels(isa).highest_logit(logits.data(), count);
        compare(named(isa, "highest_logit"), &expected, &found, 1);
    }
}

void check_row_kernels(const std::vector<Isa>& isas) {
    check_quantise(isas);
    check_rows(isas);
    check_attention(isas);
    check_logits(isas);
}

}  // namespace

int main(int count, char** arguments) {
    const int cases = count > 1 ? std::atoi(arguments[1]) : 40;
    if (count > 2) {
        const Isa isa = std::string(arguments[2]) == "ime1" ? Isa::ime1 : Isa::ime2;
        for (int i = 0; i < cases; ++i) {
            check_row_kernels({isa});
            for (const LinearEntry& entry : linear_kernels()) {
                const bool is_reference = entry.isa == Isa::portable && entry.layout == Layout::panel32;
                if (!is_reference || entry.activations != Activations::int8) continue;
                if (entry.weights != WeightType::w2) check_linear(entry, {isa});
            }
        }
        std::printf("%ld matrix instructions\n", expected_matrix_instructions);
    } else {
        for (const Isa isa : others()) std::printf("%s ", name_of(isa).data());
        std::printf("against portable\n");
        for (int i = 0; i < cases; ++i) {
            check_row_kernels(others());
            for (const LinearEntry& entry : linear_kernels()) {
                const bool is_reference = entry.isa == Isa::portable && entry.layout == Layout::panel32;
                if (is_reference) check_linear(entry, available_isas());
            }
        }
    }
    std::printf("%ld passed, %ld failed\n", passed, failed);
    return failed != 0 || passed == 0;
}
