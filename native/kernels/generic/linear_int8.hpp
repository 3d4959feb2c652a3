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

template <bool Offsets>
inline Floats scale_block(Integers dot, Floats weight_scale, Floats offset, float activation_scale, float scaled_sum,
                          Floats accumulated) {
    accumulated = multiply_add(to_floats(dot), multiply(weight_scale, broadcast(activation_scale)), accumulated);
    if constexpr (Offsets) accumulated = multiply_add(offset, broadcast(scaled_sum), accumulated);
    return accumulated;
}

// The next line of the panel; asks for one further on.
inline Codes next_codes(const uint8_t*& packed) {
    prefetch(packed + kPrefetchDistance);
    const Codes codes = load_code_group(packed);
    packed += kGroupBytes / 2;
    return codes;
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

// One row of activations × the 32 channels of a panel.
template <int Bits, bool Offsets, size_t Block>
inline void linear_int8_row(const LinearArguments& arguments, size_t panel, size_t row) {
    const PackedMatrix& weights = *arguments.weights;
    const QuantisedRows& a = arguments.quantised;
    constexpr int groups = kGroups<Block>;
    const size_t runs = runs_of_groups<Block>(weights);
    const int8_t* codes = a.codes + row * a.code_stride;
    const uint8_t* packed = weights.panel(panel);
    Floats first = broadcast(0.0f), second = broadcast(0.0f);
    size_t at = row;
    for (size_t b = 0; b < a.blocks; ++b, at += a.row_count) {
        BlockDot<Bits, !Offsets> dot_first, dot_second;
        dot_first.start(a.negative_sums[at]);
        dot_second.start(a.negative_sums[at]);
        for (size_t run = 0; run < runs; ++run, codes += 4 * groups) {
#pragma GCC unroll 4
            for (int g = 0; g < groups; g += 2) {
                const int32_t low = four_activations(codes + 4 * g), high = four_activations(codes + 4 * g + 4);
                const Codes x = next_codes(packed), y = next_codes(packed);
                if constexpr (Bits == 4) {
                    dot_first.accumulate(low_nibbles(x), low);
                    dot_second.accumulate(low_nibbles(y), low);
                    dot_first.accumulate(high_nibbles(x), high);
                    dot_second.accumulate(high_nibbles(y), high);
                } else {
                    dot_first.accumulate(x, low);
                    dot_second.accumulate(y, low);
                    dot_first.accumulate(next_codes(packed), high);
                    dot_second.accumulate(next_codes(packed), high);
                }
            }
            dot_first.widen();
            dot_second.widen();
        }
        const auto* scales = reinterpret_cast<const uint16_t*>(packed);
        packed += kPanelChannels * sizeof(uint16_t);
        Floats offset_first{}, offset_second{};
        if constexpr (Offsets) {
            const auto* offsets = reinterpret_cast<const uint16_t*>(packed);
            packed += kPanelChannels * sizeof(uint16_t);
            offset_first = load_half(offsets);
            offset_second = load_half(offsets + kLaneCount);
        }
        first = scale_block<Offsets>(dot_first.total, load_half(scales), offset_first, a.scales[at], a.scaled_sums[at],
                                     first);
        second = scale_block<Offsets>(dot_second.total, load_half(scales + kLaneCount), offset_second, a.scales[at],
                                      a.scaled_sums[at], second);
    }
    store_outputs(arguments, row, panel * kPanelChannels, first);
    store_outputs(arguments, row, panel * kPanelChannels + kLaneCount, second);
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
            const Floats offset = Offsets ? load(offsets + v * 16) : broadcast(0.0f);
#pragma GCC unroll 8
            for (int r = 0; r < Rows; ++r) {
                accumulated[r][v] =
                    scale_block<Offsets>(dots[r][v].total, scale, offset, a.scales[at + static_cast<size_t>(r)],
                                         a.scaled_sums[at + static_cast<size_t>(r)], accumulated[r][v]);
            }
        }
        block_codes += panel.code_block_stride;
        scales += kPanelChannels;
        offsets += kPanelChannels;
    }
    for (int r = 0; r < Rows; ++r) {
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
