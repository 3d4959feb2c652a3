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

template <int Bits, bool Offsets>
inline Floats scale_block(Integers dot, Floats weight_scale, Floats offset, float activation_scale, float scaled_sum,
                          Floats accumulated) {
    accumulated = multiply_add(to_floats(dot), multiply(weight_scale, broadcast(activation_scale)), accumulated);
    if constexpr (Offsets) accumulated = multiply_add(offset, broadcast(scaled_sum), accumulated);
    return accumulated;
}

// One row of activations × the 32 channels of a panel.
template <int Bits, bool Offsets>
inline void linear_int8_row(const LinearArguments& arguments, size_t panel, size_t row) {
    const PackedMatrix& weights = *arguments.weights;
    const QuantisedRows& a = arguments.quantised;
    const size_t block = weights.format().block;
    const int8_t* codes = a.codes + row * a.code_stride;
    const uint8_t* packed = weights.panel(panel);
    Floats first = broadcast(0.0f), second = broadcast(0.0f);
    for (size_t b = 0; b < a.blocks; ++b) {
        const size_t at = row * a.blocks + b;
        BlockDot<Bits, !Offsets> dot_first, dot_second;
        dot_first.start(a.negative_sums[at]);
        dot_second.start(a.negative_sums[at]);
        for (size_t begin = 0; begin < block; begin += 32) {
            const size_t end = begin + 32 < block ? begin + 32 : block;
            for (size_t k = begin; k < end; k += 8, codes += 8) {
                const int32_t low = four_activations(codes), high = four_activations(codes + 4);
                prefetch(packed + kPrefetchDistance);
                prefetch(packed + kPrefetchDistance + 64);
                const Codes x = load_code_group(packed), y = load_code_group(packed + 64);
                packed += kGroupBytes;
                if constexpr (Bits == 4) {
                    dot_first.accumulate(low_nibbles(x), low);
                    dot_second.accumulate(low_nibbles(y), low);
                    dot_first.accumulate(high_nibbles(x), high);
                    dot_second.accumulate(high_nibbles(y), high);
                } else {
                    prefetch(packed + kPrefetchDistance);
                    prefetch(packed + kPrefetchDistance + 64);
                    const Codes z = load_code_group(packed), w = load_code_group(packed + 64);
                    packed += kGroupBytes;
                    dot_first.accumulate(x, low);
                    dot_second.accumulate(y, low);
                    dot_first.accumulate(z, high);
                    dot_second.accumulate(w, high);
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
        first = scale_block<Bits, Offsets>(dot_first.total, load_half(scales), offset_first, a.scales[at],
                                           a.scaled_sums[at], first);
        second = scale_block<Bits, Offsets>(dot_second.total, load_half(scales + kLaneCount), offset_second,
                                            a.scales[at], a.scaled_sums[at], second);
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
template <int Bits, bool Offsets, int Rows, int Vectors>
inline void linear_int8_tile(const LinearArguments& arguments, const SpreadPanel& panel, size_t channel,
                             size_t first_vector, size_t row) {
    const QuantisedRows& a = arguments.quantised;
    const size_t block = arguments.weights->format().block;
    Floats accumulated[Rows][Vectors];
    for (auto& of_row : accumulated) {
        for (Floats& value : of_row) value = broadcast(0.0f);
    }
    const uint8_t* weights = panel.codes + first_vector * 64;
    const int8_t* activations = a.codes + row * a.code_stride;
    for (size_t b = 0; b < a.blocks; ++b) {
        // All loops over rows and vectors are unrolled: the accumulators stay in registers.
        BlockDot<Bits, !Offsets> dots[Rows][Vectors];
#pragma GCC unroll 8
        for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 2
            for (int v = 0; v < Vectors; ++v) {
                dots[r][v].start(a.negative_sums[(row + static_cast<size_t>(r)) * a.blocks + b]);
            }
        }
        const uint8_t* group = weights + b * panel.code_block_stride;
        for (size_t begin = 0; begin < block; begin += 32) {
            const size_t end = begin + 32 < block ? begin + 32 : block;
#pragma GCC unroll 8
            for (size_t k = begin; k < end; k += 4, group += kGroupBytes, activations += 4) {
                Codes codes[Vectors];
#pragma GCC unroll 2
                for (int v = 0; v < Vectors; ++v) codes[v] = load_code_group(group + v * 64);
#pragma GCC unroll 8
                for (int r = 0; r < Rows; ++r) {
                    const int32_t four = four_activations(activations + static_cast<size_t>(r) * a.code_stride);
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
            const size_t lane = (first_vector + static_cast<size_t>(v)) * kLaneCount;
            const Floats scale = load(panel.scales + b * kPanelChannels + lane);
            const Floats offset = Offsets ? load(panel.offsets + b * kPanelChannels + lane) : broadcast(0.0f);
#pragma GCC unroll 8
            for (int r = 0; r < Rows; ++r) {
                const size_t at = (row + static_cast<size_t>(r)) * a.blocks + b;
                accumulated[r][v] = scale_block<Bits, Offsets>(dots[r][v].total, scale, offset, a.scales[at],
                                                               a.scaled_sums[at], accumulated[r][v]);
            }
        }
    }
    for (int r = 0; r < Rows; ++r) {
        for (int v = 0; v < Vectors; ++v) {
            store_outputs(arguments, row + static_cast<size_t>(r),
                          channel + (first_vector + static_cast<size_t>(v)) * kLaneCount, accumulated[r][v]);
        }
    }
}

template <int Bits, bool Offsets>
inline void linear_int8_panel(const LinearArguments& arguments, size_t panel, size_t row_begin, size_t row_end,
                              uint8_t* scratch) {
    if (row_end - row_begin == 1) {
        linear_int8_row<Bits, Offsets>(arguments, panel, row_begin);
        return;
    }
    const SpreadPanel spread = spread_panel<Bits, Offsets>(*arguments.weights, panel, scratch);
    for (size_t vector = 0; vector < kPanelChannels / kLaneCount; vector += kTileVectors) {
        for_each_row_tile(row_begin, row_end, [&]<int Rows>(size_t row) {
            linear_int8_tile<Bits, Offsets, Rows, kTileVectors>(arguments, spread, panel * kPanelChannels, vector, row);
        });
    }
}

template <int Bits>
inline void linear_int8(const LinearArguments& arguments, size_t panel, size_t row_begin, size_t row_end,
                        uint8_t* scratch) {
    if (arguments.weights->format().has_offsets) {
        linear_int8_panel<Bits, true>(arguments, panel, row_begin, row_end, scratch);
    } else {
        linear_int8_panel<Bits, false>(arguments, panel, row_begin, row_end, scratch);
    }
}

}  // namespace nybble::NYBBLE_ISA
