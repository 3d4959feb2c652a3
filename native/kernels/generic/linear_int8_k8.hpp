// Linears on int8 activations, of weights in panel32k8: the sums and their order are those of linear_int8.hpp.
// A line of 16 channels × 8 k meets 8 activations of each row; packed codes are read as they come, for any number of
// rows. Made for machines with matrix instructions, where cores without them share the weights.
#pragma once

#include <algorithm>
#include <cstring>

#include "kernels/generic/linear_int8.hpp"

namespace nybble::NYBBLE_ISA {

inline constexpr size_t kLineDepth = 8;
inline constexpr size_t kLineBytes = kPanelChannels * kLineDepth;

// Block is 16 or 32, or kBlocksOf64 for 64 and 128.
inline constexpr size_t kBlocksOf64 = 0;

// The weights that meet an outlier: of 16 channels from lane `lane` of the panel.
template <int Bits, bool Offsets>
inline Floats line_weights_of(const PanelBlocks& panel, const Outlier& outlier, size_t lane) {
    constexpr size_t parts = 8 / Bits;
    constexpr int zero_point = Offsets ? 0 : 1 << (Bits - 1);
    const size_t run = outlier.place / kLineDepth;
    const uint8_t* line = panel.codes(outlier.block) + run / parts * kLineBytes + lane * kLineDepth;
    const uint16_t* scales = panel.scales(outlier.block) + lane;
    const auto first_bit = static_cast<int>(outlier.place % kLineDepth * 8 + run % parts * Bits);
    const Floats factor = to_floats(add(bits_of_line<Bits>(line, first_bit), broadcast_integer(-zero_point)));
    if constexpr (Offsets) return multiply_add(factor, load_half(scales), load_half(scales + kPanelChannels));
    return multiply(factor, load_half(scales));
}

// The outliers of a row times their weights, for 16 channels from lane `lane` of the panel; added to `total`.
template <int Bits, bool Offsets>
inline Floats add_line_outliers(const QuantisedRows& a, const PanelBlocks& panel, size_t lane, size_t row,
                                Floats total) {
    const Outlier* outlier = a.outliers_of(row);
    for (const Outlier* end = outlier + a.outlier_counts[row]; outlier != end; ++outlier) {
        total = multiply_add(line_weights_of<Bits, Offsets>(panel, *outlier, lane), broadcast(outlier->value), total);
    }
    return total;
}

// A register tile of all groups: Rows rows of activations × Vectors × 16 channels, from lane `lane` of the panel.
template <int Bits, bool Offsets, size_t Block, int Rows, int Vectors>
inline void multiply_lines(const LinearArguments& arguments, const PanelBlocks& panel, size_t channel, size_t lane,
                           size_t row) {
    constexpr int parts = 8 / Bits;
    constexpr size_t run = Block == kBlocksOf64 ? 64 : Block;
    const QuantisedRows& a = arguments.quantised;
    const size_t runs = a.block / run, blocks_of_group = kActivationGroup / a.block;
    const size_t stride = kLineDepth * a.tile_rows;
    const int32_t* starts = a.starts + row;
    const float* code_sums = a.sums + row;
    fetch_outputs(arguments, channel + lane, Vectors, row, row + Rows);
    Floats sums[Rows][Vectors];
    clear(sums);
    size_t block = 0;
    for (size_t g = 0; g < a.groups; ++g) {
        const int8_t* activations[Rows];
        for (int r = 0; r < Rows; ++r) {
            const size_t in_tile = (row + r) & (a.tile_rows - 1);
            activations[r] = a.tile_of(g, row + r - in_tile) + in_tile * kLineDepth;
        }
        Floats total[Rows][Vectors];
        clear(total);
        for (const size_t end = std::min(block + blocks_of_group, a.blocks); block < end; ++block) {
            LineDot<Bits, !Offsets> dots[Rows][Vectors];
#pragma GCC unroll 2
            for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 2
                for (int v = 0; v < Vectors; ++v) dots[r][v].start(starts[r]);
            }
            const uint8_t* line = panel.codes(block) + lane * kLineDepth;
            for (size_t i = 0; i < runs; ++i) {
#pragma GCC unroll 8
                for (size_t k = 0; k < run; k += kLineDepth * parts, line += kLineBytes) {
                    Codes lines[Vectors][2];
#pragma GCC unroll 2
                    for (int v = 0; v < Vectors; ++v) {
                        for (int half = 0; half < 2; ++half) {
                            const uint8_t* from = line + v * 128 + half * 64;
                            prefetch(from + kPrefetchDistance);
                            lines[v][half] = load_code_group(from);
                        }
                    }
#pragma GCC unroll 2
                    for (int part = 0; part < parts; ++part) {
                        int64_t eight[Rows];
#pragma GCC unroll 2
                        for (int r = 0; r < Rows; ++r) {
                            std::memcpy(&eight[r], __builtin_assume_aligned(activations[r], 8), sizeof eight[r]);
                            activations[r] += stride;
                        }
#pragma GCC unroll 2
                        for (int v = 0; v < Vectors; ++v) {
#pragma GCC unroll 2
                            for (int half = 0; half < 2; ++half) {
                                const Codes codes = part_of<Bits>(lines[v][half], part);
#pragma GCC unroll 2
                                for (int r = 0; r < Rows; ++r) dots[r][v].accumulate(half, codes, eight[r]);
                            }
                        }
                    }
                }
#pragma GCC unroll 2
                for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 2
                    for (int v = 0; v < Vectors; ++v) dots[r][v].widen();
                }
            }
#pragma GCC unroll 2
            for (int v = 0; v < Vectors; ++v) {
                const uint16_t* scales = panel.scales(block) + lane + v * kLaneCount;
                const Floats steps = load_steps<Bits>(scales);
#pragma GCC unroll 2
                for (int r = 0; r < Rows; ++r) {
                    total[r][v] = multiply_add(to_floats(dots[r][v].total), steps, total[r][v]);
                    if constexpr (Offsets) {
                        const Floats offsets = load_half(scales + kPanelChannels);
                        total[r][v] = multiply_add(offsets, broadcast(code_sums[r]), total[r][v]);
                    }
                }
            }
            starts += a.row_count;
            code_sums += a.row_count;
        }
        add_scaled(sums, total, a.scales + g * a.row_count + row);
    }
    for (int r = 0; r < Rows; ++r) {
        for (int v = 0; v < Vectors; ++v) {
            const size_t first = lane + v * kLaneCount;
            store_outputs(arguments, row + r, channel + first,
                          add_line_outliers<Bits, Offsets>(a, panel, first, row + r, sums[r][v]));
        }
    }
}

template <int Bits, bool Offsets, size_t Block>
inline void multiply_panel_of_lines(const LinearArguments& arguments, size_t panel_index, size_t begin, size_t end) {
    const PanelBlocks panel(*arguments.weights, panel_index, arguments.quantised.block);
    const size_t channel = panel_index * kPanelChannels;
    if (end - begin == 1) {
        for (size_t lane = 0; lane < kPanelChannels; lane += kLineVectors * kLaneCount) {
            multiply_lines<Bits, Offsets, Block, 1, kLineVectors>(arguments, panel, channel, lane, begin);
        }
        return;
    }
    for (size_t lane = 0; lane < kPanelChannels; lane += kLaneCount) {
        for_each_row_tile<kLineRows>(begin, end, [&]<int Rows>(size_t row) {
            multiply_lines<Bits, Offsets, Block, Rows, 1>(arguments, panel, channel, lane, row);
        });
    }
}

template <int Bits, bool Offsets>
inline void linear_int8_of_lines(const LinearArguments& arguments, size_t panel, size_t begin, size_t end) {
    switch (arguments.quantised.block) {
        case 16: multiply_panel_of_lines<Bits, Offsets, 16>(arguments, panel, begin, end); break;
        case 32: multiply_panel_of_lines<Bits, Offsets, 32>(arguments, panel, begin, end); break;
        default: multiply_panel_of_lines<Bits, Offsets, kBlocksOf64>(arguments, panel, begin, end);
    }
}

template <int Bits>
inline void linear_int8_k8(const LinearArguments& arguments, size_t panel, size_t row_begin, size_t row_end, uint8_t*) {
    if (arguments.weights->format().has_offsets) {
        linear_int8_of_lines<Bits, true>(arguments, panel, row_begin, row_end);
    } else {
        linear_int8_of_lines<Bits, false>(arguments, panel, row_begin, row_end);
    }
}

inline size_t linear_int8_k8_scratch_bytes(const PackedMatrix&) { return 0; }

}  // namespace nybble::NYBBLE_ISA
