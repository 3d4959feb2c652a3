// Linears on fp32 activations: the panel is decoded to fp32 in scratch, then multiplied.
// Two accumulators per output, for even and odd k, are added at the end: one order for any number of rows.
#pragma once

#include <cstring>

#include "kernels/generic/tiles.hpp"

namespace nybble::NYBBLE_ISA {

// Bytes from the floats being multiplied to those being fetched.
inline constexpr size_t kFloatsAhead = 4096;

inline size_t linear_f32_scratch_bytes(const PackedMatrix& weights) {
    if (weights.format().type == WeightType::f32) return 0;
    return weights.blocks() * weights.format().block * kPanelChannels * sizeof(float);
}

// Lines of Depth bytes a channel; the result is k by k.
template <WeightType Type, size_t Depth>
inline void decode_quantised_panel(const PackedMatrix& weights, const uint8_t* packed, float* to) {
    const PackedFormat& format = weights.format();
    constexpr int bits = Type == WeightType::w2 ? 2 : Type == WeightType::w4 ? 4 : 8;
    constexpr size_t runs_of_line = 8 / bits;
    const bool share = bits == 4 && traits_of(format.layout).share;
    constexpr float zero_point = 1 << (bits - 1);
    [[maybe_unused]] const Integers flipped = broadcast_integer(format.flipped_bits());
    const auto load_four_of_each = [](const uint8_t* line) {
        if constexpr (Depth == 4) return load_integers(line);
        alignas(64) uint8_t fours[4 * kLaneCount];
        for (size_t lane = 0; lane < kLaneCount; ++lane) std::memcpy(fours + 4 * lane, line + Depth * lane, 4);
        return load_integers(fours);
    };
    for (size_t b = 0; b < weights.blocks(); ++b, packed += weights.block_bytes()) {
        const uint8_t* numbers = packed + format.code_bytes();
        const auto load_numbers = [&](size_t index) {
            return format.wide_scales ? load(reinterpret_cast<const float*>(numbers) + index)
                                      : load_half(reinterpret_cast<const uint16_t*>(numbers) + index);
        };
        for (size_t vector = 0; vector < 2; ++vector) {
            const Floats scale = load_numbers(vector * kLaneCount);
            const Floats offset = format.has_offsets ? load_numbers(kPanelChannels + vector * kLaneCount)
                                                     : multiply(broadcast(-zero_point), scale);
            for (size_t k = 0; k < format.block; k += 4) {
                const size_t run = k / Depth, line = share ? run : run / runs_of_line * 2 + vector;
                const auto first_bit = static_cast<int>((share ? vector : run % runs_of_line) * bits);
                const Integers fours = load_four_of_each(packed + line * kLaneCount * Depth + k % Depth);
                for (size_t i = 0; i < 4; ++i) {
                    Integers codes = bits_from<bits>(fours, first_bit + 8 * static_cast<int>(i));
                    if constexpr (Depth == 16) codes = exclusive_or(codes, flipped);
                    store(to + (k + i) * kPanelChannels + vector * kLaneCount,
                          multiply_add(scale, to_floats(codes), offset));
                }
            }
        }
        to += format.block * kPanelChannels;
    }
}

// The panel as fp32 [k][32].
template <WeightType Type>
inline const float* decode_panel(const PackedMatrix& weights, size_t panel, uint8_t* scratch) {
    const uint8_t* packed = weights.panel(panel);
    auto* to = reinterpret_cast<float*>(scratch);
    if constexpr (Type == WeightType::f32) {
        return reinterpret_cast<const float*>(packed);
    } else if constexpr (Type == WeightType::f16 || Type == WeightType::bf16) {
        const auto* halves = reinterpret_cast<const uint16_t*>(packed);
        for (size_t i = 0; i < weights.k() * kPanelChannels; i += kLaneCount) {
            store(to + i, Type == WeightType::f16 ? load_half(halves + i) : load_bfloat(halves + i));
        }
    } else {
        switch (traits_of(weights.format().layout).depth) {
            case 4: decode_quantised_panel<Type, 4>(weights, packed, to); break;
            case 8: decode_quantised_panel<Type, 8>(weights, packed, to); break;
            default: decode_quantised_panel<Type, 16>(weights, packed, to);
        }
    }
    return to;
}

// Weights of 16 channels as they lie in a panel of floats.
template <WeightType Type>
inline Floats load_weights(const uint8_t* panel, size_t index) {
    if constexpr (Type == WeightType::f32) return load(reinterpret_cast<const float*>(panel) + index);
    const auto* halves = reinterpret_cast<const uint16_t*>(panel) + index;
    return Type == WeightType::f16 ? load_half(halves) : load_bfloat(halves);
}

// A register tile: Rows rows of activations × Vectors × 16 channels of a panel, as floats of `Type` [k][32].
template <WeightType Type, bool FromMemory, int Rows, int Vectors>
inline void linear_f32_tile(const LinearArguments& arguments, const uint8_t* panel, size_t channel, size_t first_vector,
                            size_t row) {
    constexpr size_t line_bytes = kPanelChannels * (Type == WeightType::f32 ? 4 : 2);
    const size_t k_end = arguments.weights->k();
    const FloatRows& a = arguments.floats;
    Floats sums[2][Rows][Vectors];
    for (auto& parity : sums) clear(parity);
    const float* activations = a.data + row * a.stride;
    const auto step = [&](size_t k, Floats(&into)[Rows][Vectors]) __attribute__((always_inline)) {
        if constexpr (FromMemory) {
            const uint8_t* ahead = panel + k * line_bytes + kFloatsAhead;
            prefetch(ahead);
            if constexpr (line_bytes > 64) prefetch(ahead + 64);
        }
        Floats w[Vectors];
#pragma GCC unroll 2
        for (int v = 0; v < Vectors; ++v) {
            w[v] = load_weights<Type>(panel, k * kPanelChannels + (first_vector + static_cast<size_t>(v)) * kLaneCount);
        }
#pragma GCC unroll 8
        for (int r = 0; r < Rows; ++r) {
            const Floats x = broadcast(activations[static_cast<size_t>(r) * a.stride + k]);
#pragma GCC unroll 2
            for (int v = 0; v < Vectors; ++v) into[r][v] = multiply_add(w[v], x, into[r][v]);
        }
    };
    size_t k = 0;
    for (; k + 2 <= k_end; k += 2) {
        step(k, sums[0]);
        step(k + 1, sums[1]);
    }
    if (k < k_end) step(k, sums[0]);
    for (int r = 0; r < Rows; ++r) {
        for (int v = 0; v < Vectors; ++v) {
            store_outputs(arguments, row + static_cast<size_t>(r),
                          channel + (first_vector + static_cast<size_t>(v)) * kLaneCount,
                          add(sums[0][r][v], sums[1][r][v]));
        }
    }
}

template <WeightType Type, bool FromMemory>
inline void linear_f32_rows(const LinearArguments& arguments, const uint8_t* weights, size_t panel, size_t row_begin,
                            size_t row_end) {
    constexpr size_t vectors = kPanelChannels / kLaneCount;
    if (row_end - row_begin == 1) {
        linear_f32_tile<Type, FromMemory, 1, vectors>(arguments, weights, panel * kPanelChannels, 0, row_begin);
        return;
    }
    for (size_t vector = 0; vector < vectors; vector += kTileVectors) {
        for_each_row_tile<kF32TileRows>(row_begin, row_end, [&]<int Rows>(size_t row) {
            linear_f32_tile<Type, FromMemory, Rows, kTileVectors>(arguments, weights, panel * kPanelChannels, vector,
                                                                  row);
        });
    }
}

template <WeightType Type>
inline void linear_f32(const LinearArguments& arguments, size_t panel, size_t row_begin, size_t row_end,
                       uint8_t* scratch) {
    if constexpr (Type == WeightType::f16 || Type == WeightType::bf16) {
        if (row_end - row_begin <= kF32TileRows) {
            linear_f32_rows<Type, true>(arguments, arguments.weights->panel(panel), panel, row_begin, row_end);
            return;
        }
    }
    const auto* decoded = reinterpret_cast<const uint8_t*>(decode_panel<Type>(*arguments.weights, panel, scratch));
    linear_f32_rows<WeightType::f32, Type == WeightType::f32>(arguments, decoded, panel, row_begin, row_end);
}

}  // namespace nybble::NYBBLE_ISA
