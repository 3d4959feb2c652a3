// Linears on int8 activations. Per block: an exact integer dot product, then one fixed fp32 epilogue
//   f = fma(float(dot), weight scale · activation scale, f);  f = fma(offset, scaled sum, f)
// over blocks in order, so a row gives the same bits alone, in a tile, and on any instruction set.
// One row streams the packed panel; more rows first spread it to a byte a code in scratch and reuse it for all of them.
#pragma once

#include <cstring>

#include "kernels/generic/tiles.hpp"

namespace nybble::NYBBLE_ISA {

// Bytes from the line being multiplied to the line being fetched: DRAM latency at full rate.
inline constexpr size_t kPrefetchDistance = 4096;

inline int32_t four_activations(const int8_t* codes) {
    int32_t value;
    std::memcpy(&value, codes, sizeof value);
    return value;
}

inline Floats add_scaled(Integers dot, Floats weight_scale, float activation_scale, Floats accumulated) {
    return multiply_add(to_floats(dot), multiply(weight_scale, broadcast(activation_scale)), accumulated);
}

// Block is 16 or 32, or kBlocksOf32 for any multiple of 32: what is known when compiled saves moves between registers.
inline constexpr size_t kBlocksOf32 = 0;

// k groups between two widenings of a block's dot product: at most 8.
template <size_t Block>
inline constexpr int kGroups = Block == 16 ? 4 : 8;

template <size_t Block>
inline size_t runs_of_groups(const PackedMatrix& weights) {
    return Block == kBlocksOf32 ? weights.format().block / 32 : 1;
}

// The next line of the panel; asks for one further on.
inline Codes next_codes(const uint8_t*& packed) {
    prefetch(packed + kPrefetchDistance);
    const Codes codes = load_code_group(packed);
    packed += kGroupBytes / 2;
    return codes;
}

// The dot products of one block of one row with the 32 channels of a panel, in two halves; `packed` ends behind the
// codes.
template <int Bits, bool Symmetric, size_t Block>
inline void dot_row(const uint8_t*& packed, const int8_t* codes, int32_t negative_sum, size_t runs,
                    BlockDot<Bits, Symmetric> (&dots)[2]) {
    dots[0].start(negative_sum);
    dots[1].start(negative_sum);
    for (size_t run = 0; run < runs; ++run) {
#pragma GCC unroll 4
        for (int g = 0; g < kGroups<Block>; g += 2, codes += 8) {
            const int32_t low = four_activations(codes), high = four_activations(codes + 4);
            const Codes x = next_codes(packed), y = next_codes(packed);
            if constexpr (Bits == 4) {
                dots[0].accumulate(low_nibbles(x), low);
                dots[1].accumulate(low_nibbles(y), low);
                dots[0].accumulate(high_nibbles(x), high);
                dots[1].accumulate(high_nibbles(y), high);
            } else {
                dots[0].accumulate(x, low);
                dots[1].accumulate(y, low);
                dots[0].accumulate(next_codes(packed), high);
                dots[1].accumulate(next_codes(packed), high);
            }
        }
        dots[0].widen();
        dots[1].widen();
    }
}

// Call function(outlier) for the outliers of a row, in order.
template <typename Function>
inline void for_each_outlier(const QuantisedRows& a, size_t row, const Function& function) {
    const Outlier* outlier = a.outliers + row * a.blocks * kBlockOutliers;
    for (const Outlier* end = outlier + a.outlier_counts[row]; outlier != end; ++outlier) function(*outlier);
}

// An outlier times its 16 weights: a dot product with one activation of 1, scaled by the value itself.
template <int Bits, bool Symmetric>
inline Floats add_outlier(Codes group, const Outlier& outlier, Floats weight_scale, Floats accumulated) {
    BlockDot<Bits, Symmetric> dot;
    dot.start(-1);
    dot.accumulate(group, 1 << (8 * (outlier.place % 4)));
    dot.widen();
    return add_scaled(dot.total, weight_scale, outlier.value, accumulated);
}

// One row of activations × the 32 channels of a panel.
template <int Bits, bool Offsets, size_t Block>
inline void linear_int8_row(const LinearArguments& arguments, size_t panel, size_t row) {
    const PackedMatrix& weights = *arguments.weights;
    const QuantisedRows& a = arguments.quantised;
    const size_t runs = runs_of_groups<Block>(weights);
    const size_t code_bytes = weights.format().code_bytes();
    const uint8_t* begin = weights.panel(panel);
    Floats accumulated[2] = {broadcast(0.0f), broadcast(0.0f)};
    const int8_t* codes = a.codes + row * a.code_stride;
    const uint8_t* packed = begin;
    for (size_t b = 0, at = row; b < a.blocks; ++b, at += a.row_count, codes += a.block) {
        BlockDot<Bits, !Offsets> dots[2];
        dot_row<Bits, !Offsets, Block>(packed, codes, a.negative_sums[at], runs, dots);
        const auto* scales = reinterpret_cast<const uint16_t*>(packed);
        packed += (Offsets ? 2 : 1) * kPanelChannels * sizeof(uint16_t);
        for (size_t v = 0; v < 2; ++v, scales += kLaneCount) {
            accumulated[v] = add_scaled(dots[v].total, load_half(scales), a.scales[at], accumulated[v]);
            if constexpr (Offsets) {
                const Floats offset = load_half(scales + kPanelChannels);
                accumulated[v] = multiply_add(offset, broadcast(a.scaled_sums[at]), accumulated[v]);
            }
        }
    }
    for_each_outlier(a, row, [&](const Outlier& outlier) {
        packed = begin + outlier.block * weights.block_bytes();
        const auto* scales = reinterpret_cast<const uint16_t*>(packed + code_bytes);
        packed += outlier.place / (Bits == 4 ? 8 : 4) * kGroupBytes;
        for (size_t v = 0; v < 2; ++v) {
            Codes group = load_code_group(packed + v * 64);
            if constexpr (Bits == 4) group = outlier.place % 8 < 4 ? low_nibbles(group) : high_nibbles(group);
            const Floats scale = load_half(scales + v * kLaneCount);
            accumulated[v] = add_outlier<Bits, !Offsets>(group, outlier, scale, accumulated[v]);
        }
    });
    store_outputs(arguments, row, panel * kPanelChannels, accumulated[0]);
    store_outputs(arguments, row, panel * kPanelChannels + kLaneCount, accumulated[1]);
}

// A panel made ready for many rows: a byte a code, scales and offsets in fp32.
struct SpreadPanel {
    const uint8_t* codes;
    size_t code_block_stride;
    const float* scales;   // [block][32]
    const float* offsets;  // [block][32]
};

inline size_t linear_int8_scratch_bytes(const PackedMatrix& weights) {
    const size_t codes = weights.format().type == WeightType::w4 ? weights.blocks() * weights.format().block : 0;
    return codes * kPanelChannels + 2 * weights.blocks() * kPanelChannels * sizeof(float);
}

template <int Bits, bool Offsets>
inline SpreadPanel spread_panel(const PackedMatrix& weights, size_t panel, uint8_t* scratch) {
    const size_t block = weights.format().block;
    const size_t code_bytes = weights.format().code_bytes();
    const uint8_t* packed = weights.panel(panel);
    auto* scales = reinterpret_cast<float*>(scratch);
    float* offsets = scales + weights.blocks() * kPanelChannels;
    auto* codes = reinterpret_cast<uint8_t*>(offsets + weights.blocks() * kPanelChannels);
    const SpreadPanel spread = {Bits == 4 ? codes : packed, Bits == 4 ? block * kPanelChannels : weights.block_bytes(),
                                scales, offsets};
    for (size_t b = 0; b < weights.blocks(); ++b, packed += weights.block_bytes()) {
        if constexpr (Bits == 4) {
            for (size_t line = 0; line < code_bytes; line += kGroupBytes, codes += 2 * kGroupBytes) {
                const Codes x = load_code_group(packed + line), y = load_code_group(packed + line + 64);
                store_code_group(codes, low_nibbles(x));
                store_code_group(codes + 64, low_nibbles(y));
                store_code_group(codes + kGroupBytes, high_nibbles(x));
                store_code_group(codes + kGroupBytes + 64, high_nibbles(y));
            }
        }
        const auto* halves = reinterpret_cast<const uint16_t*>(packed + code_bytes);
        for (size_t lane = 0; lane < kPanelChannels; lane += kLaneCount) {
            store(scales + b * kPanelChannels + lane, load_half(halves + lane));
            if constexpr (Offsets) {
                store(offsets + b * kPanelChannels + lane, load_half(halves + kPanelChannels + lane));
            }
        }
    }
    return spread;
}

// What the outliers of a row add to its Vectors × 16 channels.
template <int Bits, bool Symmetric, int Vectors>
inline void add_outliers(const QuantisedRows& a, const SpreadPanel& panel, size_t first_vector, size_t row,
                         Floats (&accumulated)[Vectors]) {
    for_each_outlier(a, row, [&](const Outlier& outlier) {
        const uint8_t* group = panel.codes + outlier.block * panel.code_block_stride + outlier.place / 4 * kGroupBytes;
        const float* scales = panel.scales + outlier.block * kPanelChannels + first_vector * kLaneCount;
#pragma GCC unroll 2
        for (int v = 0; v < Vectors; ++v) {
            const Codes codes = load_code_group(group + (first_vector + static_cast<size_t>(v)) * 64);
            accumulated[v] = add_outlier<Bits, Symmetric>(codes, outlier, load(scales + v * 16), accumulated[v]);
        }
    });
}

// A register tile: Rows rows of activations × Vectors × 16 channels, from channel 16 · first_vector of the panel.
// All loops over rows, vectors and groups are unrolled: the accumulators stay in registers.
template <int Bits, bool Offsets, size_t Block, int Rows, int Vectors>
inline void linear_int8_tile(const LinearArguments& arguments, const SpreadPanel& panel, size_t channel,
                             size_t first_vector, size_t row) {
    const QuantisedRows& a = arguments.quantised;
    constexpr int groups = kGroups<Block>;
    const size_t runs = runs_of_groups<Block>(*arguments.weights);
    const size_t code_stride = a.code_stride;
    Floats accumulated[Rows][Vectors];
    for (auto& of_row : accumulated) {
        for (Floats& value : of_row) value = broadcast(0.0f);
    }
    const int8_t* activations = a.codes + row * code_stride;
    const uint8_t* block_codes = panel.codes + first_vector * 64;
    const float* scales = panel.scales + first_vector * kLaneCount;
    const float* offsets = panel.offsets + first_vector * kLaneCount;
    size_t at = row;
    for (size_t b = 0; b < a.blocks; ++b, at += a.row_count) {
        BlockDot<Bits, !Offsets> dots[Rows][Vectors];
#pragma GCC unroll 8
        for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 2
            for (int v = 0; v < Vectors; ++v) dots[r][v].start(a.negative_sums[at + static_cast<size_t>(r)]);
        }
        const uint8_t* group = block_codes;
        for (size_t run = 0; run < runs; ++run, activations += 4 * groups) {
#pragma GCC unroll 8
            for (int g = 0; g < groups; ++g, group += kGroupBytes) {
                Codes codes[Vectors];
#pragma GCC unroll 2
                for (int v = 0; v < Vectors; ++v) codes[v] = load_code_group(group + v * 64);
#pragma GCC unroll 8
                for (int r = 0; r < Rows; ++r) {
                    const int32_t four = four_activations(activations + static_cast<size_t>(r) * code_stride + 4 * g);
#pragma GCC unroll 2
                    for (int v = 0; v < Vectors; ++v) dots[r][v].accumulate(codes[v], four);
                }
            }
#pragma GCC unroll 8
            for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 2
                for (int v = 0; v < Vectors; ++v) dots[r][v].widen();
            }
        }
#pragma GCC unroll 2
        for (int v = 0; v < Vectors; ++v) {
            const Floats scale = load(scales + v * 16);
#pragma GCC unroll 8
            for (int r = 0; r < Rows; ++r) {
                accumulated[r][v] =
                    add_scaled(dots[r][v].total, scale, a.scales[at + static_cast<size_t>(r)], accumulated[r][v]);
            }
            if constexpr (Offsets) {
                const Floats offset = load(offsets + v * 16);
#pragma GCC unroll 8
                for (int r = 0; r < Rows; ++r) {
                    accumulated[r][v] =
                        multiply_add(offset, broadcast(a.scaled_sums[at + static_cast<size_t>(r)]), accumulated[r][v]);
                }
            }
        }
        block_codes += panel.code_block_stride;
        scales += kPanelChannels;
        offsets += kPanelChannels;
    }
    for (int r = 0; r < Rows; ++r) {
        add_outliers<Bits, !Offsets>(a, panel, first_vector, row + static_cast<size_t>(r), accumulated[r]);
        for (int v = 0; v < Vectors; ++v) {
            store_outputs(arguments, row + static_cast<size_t>(r),
                          channel + (first_vector + static_cast<size_t>(v)) * kLaneCount, accumulated[r][v]);
        }
    }
}

template <int Bits, bool Offsets, size_t Block>
inline void linear_int8_panel(const LinearArguments& arguments, size_t panel, size_t row_begin, size_t row_end,
                              uint8_t* scratch) {
    if (row_end - row_begin == 1) {
        linear_int8_row<Bits, Offsets, Block>(arguments, panel, row_begin);
        return;
    }
    const SpreadPanel spread = spread_panel<Bits, Offsets>(*arguments.weights, panel, scratch);
    for (size_t vector = 0; vector < kPanelChannels / kLaneCount; vector += kTileVectors) {
        for_each_row_tile(row_begin, row_end, [&]<int Rows>(size_t row) {
            linear_int8_tile<Bits, Offsets, Block, Rows, kTileVectors>(arguments, spread, panel * kPanelChannels,
                                                                       vector, row);
        });
    }
}

template <int Bits, bool Offsets>
inline void linear_int8_blocks(const LinearArguments& arguments, size_t panel, size_t row_begin, size_t row_end,
                               uint8_t* scratch) {
    const size_t block = arguments.weights->format().block;
    if (block == 32) return linear_int8_panel<Bits, Offsets, 32>(arguments, panel, row_begin, row_end, scratch);
    if (block == 16) return linear_int8_panel<Bits, Offsets, 16>(arguments, panel, row_begin, row_end, scratch);
    linear_int8_panel<Bits, Offsets, kBlocksOf32>(arguments, panel, row_begin, row_end, scratch);
}

// Blocks are 16 or a multiple of 32.
template <int Bits>
inline void linear_int8(const LinearArguments& arguments, size_t panel, size_t row_begin, size_t row_end,
                        uint8_t* scratch) {
    if (arguments.weights->format().has_offsets) {
        linear_int8_blocks<Bits, true>(arguments, panel, row_begin, row_end, scratch);
    } else {
        linear_int8_blocks<Bits, false>(arguments, panel, row_begin, row_end, scratch);
    }
}

}  // namespace nybble::NYBBLE_ISA
