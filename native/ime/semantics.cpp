#include "ime/semantics.hpp"

#include <bit>
#include <cstddef>
#include <cstring>

#include "base/half.hpp"

namespace nybble::ime {

namespace {

constexpr size_t kMostElements = 512;  // of A: two registers of 1024 bits, 4 bits each

// Elements as numbers: `count` of `bits` (4 or 8) each, from `bytes`.
void read_integers(const uint8_t* bytes, size_t count, unsigned bits, bool is_signed, int16_t* numbers) {
    for (size_t i = 0; i < count; ++i) {
        const unsigned raw = bits == 8 ? bytes[i] : (bytes[i / 2] >> (i % 2 * 4)) & 15u;
        const unsigned sign = 1u << (bits - 1);
        numbers[i] = static_cast<int16_t>(is_signed ? static_cast<int>(raw ^ sign) - static_cast<int>(sign)
                                                    : static_cast<int>(raw));
    }
}

int32_t dot(const int16_t* a, const int16_t* b, size_t depth) {
    int32_t sum = 0;
    for (size_t k = 0; k < depth; ++k) sum += a[k] * b[k];
    return sum;
}

template <class T>
T load(const uint8_t* bytes, size_t index) {
    T value;
    std::memcpy(&value, bytes + index * sizeof(T), sizeof(T));
    return value;
}

template <class T>
void store(uint8_t* bytes, size_t index, T value) {
    std::memcpy(bytes + index * sizeof(T), &value, sizeof(T));
}

// 32-bit sums wrap around.
void add_to(uint8_t* d, size_t index, int32_t value) {
    store(d, index, load<uint32_t>(d, index) + static_cast<uint32_t>(value));
}

float canonical(float value) { return value == value ? value : std::bit_cast<float>(0x7fc00000u); }

float to_float(uint16_t value, bool bf16) { return bf16 ? bfloat_to_float(value) : half_to_float(value); }

// Rounds to nearest, ties to even.
uint16_t from_float(float value, bool bf16) {
    value = canonical(value);
    if (!bf16) return float_to_half(value);
    const uint32_t bits = std::bit_cast<uint32_t>(value);
    return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

struct Tiles {
    size_t rows, depth;
    int16_t a[kMostElements], b[kMostElements / 2];
};

// A from its row `slide` on, and B.
void read_tiles(const Instruction& in, Profile profile, const Operands& o, Tiles& tiles) {
    tiles.rows = profile == Profile::a60 ? 4 : 8;
    const size_t row_bytes = register_bytes(profile) / tiles.rows;
    tiles.depth = row_bytes * 8 / in.bits;
    read_integers(o.a + in.slide * row_bytes, tiles.rows * tiles.depth, in.bits, in.a_signed, tiles.a);
    read_integers(o.b, tiles.rows * tiles.depth, in.bits, in.b_signed, tiles.b);
}

void multiply(const Instruction& in, Profile profile, const Operands& o) {
    Tiles t;
    read_tiles(in, profile, o, t);
    for (size_t i = 0; i < t.rows; ++i) {
        for (size_t j = 0; j < t.rows; ++j) {
            add_to(o.d, i * t.rows + j, dot(t.a + i * t.depth, t.b + j * t.depth, t.depth));
        }
    }
}

// Of each four elements of a row of A, two meet the two of B that were kept: which, says a mask of 4 bits for each
// group of four and each row of B. A mask without exactly two bits selects nothing.
void multiply_sparse(const Instruction& in, const Operands& o) {
    constexpr size_t kRows = 8;
    const size_t depth = 128 / in.bits, groups = depth / 2;
    Tiles t;
    read_integers(o.a, kRows * depth * 2, in.bits, in.a_signed, t.a);
    read_integers(o.b, kRows * depth, in.bits, in.b_signed, t.b);
    const uint8_t* masks = o.parameters + in.immediate * (kRows * groups / 2);
    for (size_t i = 0; i < kRows; ++i) {
        for (size_t j = 0; j < kRows; ++j) {
            int32_t sum = 0;
            for (size_t group = 0; group < groups; ++group) {
                const size_t nibble = j * groups + group;
                const unsigned mask = (masks[nibble / 2] >> (nibble % 2 * 4)) & 15u;
                if (std::popcount(mask) != 2) continue;
                const int16_t* four = t.a + i * depth * 2 + group * 4;
                const int16_t* kept = t.b + j * depth + group * 2;
                const int first = std::countr_zero(mask), second = 31 - std::countl_zero(mask);
                sum += four[first] * kept[0] + four[second] * kept[1];
            }
            add_to(o.d, i * kRows + j, sum);
        }
    }
}

// imm3 picks eight scales, one for each column of C.
void multiply_scaled(const Instruction& in, Profile profile, bool bf16, const Operands& o) {
    constexpr size_t kRows = 8;
    Tiles t;
    read_tiles(in, profile, o, t);
    float scales[kRows];  // read first: vd may be the register they are in
    for (size_t j = 0; j < kRows; ++j) {
        scales[j] = to_float(load<uint16_t>(o.parameters, in.immediate * kRows + j), bf16);
    }
    for (size_t i = 0; i < kRows; ++i) {
        for (size_t j = 0; j < kRows; ++j) {
            const auto sum = static_cast<float>(dot(t.a + i * t.depth, t.b + j * t.depth, t.depth));
            const float rounded = to_float(from_float(sum, bf16), bf16);
            const size_t at = i * kRows + j;
            const float before = to_float(load<uint16_t>(o.d, at), bf16);
            const float product = rounded * scales[j];
            store(o.d, at, from_float(product + before, bf16));
        }
    }
}

void multiply_floats(const Instruction& in, bool bf16, const Operands& o) {
    constexpr size_t kRows = 8, kDepth = 8;
    for (size_t i = 0; i < kRows; ++i) {
        for (size_t j = 0; j < kRows; ++j) {
            float sum = load<float>(o.d, i * kRows + j);
            for (size_t k = 0; k < kDepth; ++k) {
                const float a = to_float(load<uint16_t>(o.a, (i + in.slide) * kDepth + k), bf16);
                const float product = a * to_float(load<uint16_t>(o.b, j * kDepth + k), bf16);
                sum += product;
            }
            store(o.d, i * kRows + j, canonical(sum));
        }
    }
}

// Pieces of 128, 256 or 512 bits or one element, from vs1 and vs2 in turn; unpack is its inverse.
void interleave(const Instruction& in, unsigned sew_bits, const Operands& o, uint8_t* result) {
    constexpr size_t kBytes = register_bytes(Profile::a100);
    const size_t piece = in.immediate ? size_t{8} << in.immediate : sew_bits / 8;
    for (size_t at = 0; at < kBytes; at += piece) {
        if (in.operation == Operation::pack) {
            std::memcpy(result + 2 * at, o.a + at, piece);
            std::memcpy(result + 2 * at + piece, o.b + at, piece);
        } else {
            const uint8_t* source = (at < kBytes / 2 ? o.a : o.b) + 2 * at % kBytes;
            std::memcpy(result + at, source, piece);
            std::memcpy(result + kBytes + at, source + piece, piece);
        }
    }
}

int64_t saturate(int64_t value, unsigned bits) {
    const int64_t most = (int64_t{1} << (bits - 1)) - 1;
    return value > most ? most : value < -most - 1 ? -most - 1 : value;
}

int64_t read_signed(const uint8_t* bytes, unsigned size) {
    uint64_t value = 0;
    std::memcpy(&value, bytes, size);
    const unsigned unused = 64 - 8 * size;
    return static_cast<int64_t>(value << unused) >> unused;
}

// Elements of twice SEW to SEW; imm2's unit of bits of vs1, then of vs2.
void narrow(const Instruction& in, unsigned sew_bits, const Operands& o, uint8_t* result) {
    const size_t unit = size_t{4} << in.immediate, size = sew_bits / 8, count = unit / (2 * size);
    for (size_t at = 0; at < register_bytes(Profile::a100); at += unit) {
        for (const uint8_t* source : {o.a, o.b}) {
            for (size_t i = 0; i < count; ++i) {
                int64_t value = read_signed(source + at + i * 2 * size, static_cast<unsigned>(2 * size));
                if (in.saturating) value = saturate(value, sew_bits);
                std::memcpy(result, &value, size);
                result += size;
            }
        }
    }
}

void narrow_to_nibbles(const Instruction& in, const Operands& o, uint8_t* result) {
    const size_t unit = size_t{4} << in.immediate;
    for (size_t at = 0; at < register_bytes(Profile::a100); at += 2 * unit) {
        for (const uint8_t* source : {o.a, o.b}) {
            for (size_t i = 0; i < unit; ++i) {
                const uint8_t* pair = source + at + 2 * i;
                int64_t low = read_signed(pair, 1), high = read_signed(pair + 1, 1);
                if (in.saturating) low = saturate(low, 4), high = saturate(high, 4);
                *result++ = static_cast<uint8_t>((low & 15) | (high & 15) << 4);
            }
        }
    }
}

}  // namespace

void execute(const Instruction& in, Profile profile, unsigned sew_bits, bool bf16, const Operands& o) {
    uint8_t packed[2 * register_bytes(Profile::a100)];
    switch (in.operation) {
        case Operation::matrix: return multiply(in, profile, o);
        case Operation::sparse: return multiply_sparse(in, o);
        case Operation::scaled: return multiply_scaled(in, profile, bf16, o);
        case Operation::floats: return multiply_floats(in, bf16, o);
        case Operation::pack:
        case Operation::unpack: interleave(in, sew_bits, o, packed); break;
        case Operation::narrow: narrow(in, sew_bits, o, packed); break;
        case Operation::narrow_to_nibbles: narrow_to_nibbles(in, o, packed); break;
    }
    std::memcpy(o.d, packed, in.vd_registers * register_bytes(Profile::a100));
}

}  // namespace nybble::ime
