// Linears on int8 activations, of weights in panel32. A panel is multiplied group by group of activations: within a
// group each block gives an exact integer dot product, and the fp32 sums have one fixed order,
//   for each block: t = fma(float(dot), step, t); t = fma(offset, Σ codes, t)
//   f = fma(t, activation scale, f)
// over groups in order and then outliers, so a row gives the same bits alone, in a tile, and on any instruction set.
// A few rows read the packed codes as they come; for more than kFewRows, a panel's codes are first spread to a byte
// each, kSlabGroups groups at a time, and reused.
#pragma once

#include <algorithm>
#include <cstring>
#include <iterator>

#include "kernels/generic/panel_codes.hpp"
#include "kernels/generic/tiles.hpp"

namespace nybble::NYBBLE_ISA {

// Block is 16 or 32, or kBlocksOf32 for 64 and 128: what is known when compiled saves moves between registers.
inline constexpr size_t kBlocksOf32 = 0;

// k groups between two widenings of a block's dot product: at most 8.
template <size_t Block>
inline constexpr int kGroups = Block == 16 ? 4 : 8;

// The weights that meet an outlier: of 16 channels from lane `lane` of the panel.
template <int Bits, bool Offsets>
inline Floats weights_of(const PanelBlocks& panel, const Outlier& outlier, size_t lane) {
    constexpr size_t parts = 8 / Bits;
    constexpr int zero_point = Offsets ? 0 : 1 << (Bits - 1);
    const size_t k_group = outlier.place / 4;
    const uint8_t* line = panel.codes(outlier.block) + k_group / parts * kGroupBytes + lane * 4;
    const uint16_t* scales = panel.scales(outlier.block) + lane;
    const auto first_bit = static_cast<int>(outlier.place % 4 * 8 + k_group % parts * Bits);
    const Integers codes = bits_from<Bits>(load_integers(line), first_bit);
    const Floats factor = to_floats(add(codes, broadcast_integer(-zero_point)));
    if constexpr (Offsets) return multiply_add(factor, load_half(scales), load_half(scales + kPanelChannels));
    return multiply(factor, load_half(scales));
}

// Rows that share what is spread: their sums stay in the L2 cache.
inline constexpr size_t kSlabRows = 192;

// Rows of a tile of packed codes. It takes all channels of the panel, so that memory is read in one stream.
inline constexpr int kTileSums = kTileRows * kTileVectors;
inline constexpr int kPackedTileRows = kTileSums < 2 ? 1 : kTileSums / 2;

inline size_t linear_int8_scratch_bytes(const PackedMatrix&) {
    if (kSlabGroups == 0) return 0;
    return kSlabRows * kPanelChannels * sizeof(float) + SpreadCodes<8, true>::kMostBytes;
}

inline int32_t four_activations(const int8_t* codes) {
    int32_t value;
    std::memcpy(&value, __builtin_assume_aligned(codes, sizeof value), sizeof value);
    return value;
}

// The outliers of a row times their weights, added to `total`, then what all linears end with.
template <int Bits, bool Offsets>
[[gnu::always_inline]] inline void finish_row(const LinearArguments& arguments, const PanelBlocks& panel,
                                              size_t channel, size_t row, Floats (&total)[2]) {
    const QuantisedRows& a = arguments.quantised;
    const Outlier* outlier = a.outliers_of(row);
    for (const Outlier* end = outlier + a.outlier_counts[row]; outlier != end; ++outlier) {
        const Floats value = broadcast(outlier->value);
        total[0] = multiply_add(weights_of<Bits, Offsets>(panel, *outlier, 0), value, total[0]);
        total[1] = multiply_add(weights_of<Bits, Offsets>(panel, *outlier, kLaneCount), value, total[1]);
    }
    store_outputs(arguments, row, channel, total[0]);
    store_outputs(arguments, row, channel + kLaneCount, total[1]);
}

// Not inlined: it needs the registers that multiply_tile takes for itself. `sums` are those of a panel, row by row.
template <int Bits, bool Offsets>
[[gnu::noinline]] void finish_rows(const LinearArguments& arguments, const PanelBlocks& panel, size_t channel,
                                   size_t row, size_t rows, const float* sums) {
    for (const size_t end = row + rows; row < end; ++row, sums += kPanelChannels) {
        Floats total[2] = {load(sums), load(sums + kLaneCount)};
        finish_row<Bits, Offsets>(arguments, panel, channel, row, total);
    }
}

// Weights of a panel that meet outliers, decoded once for many rows: outliers of most rows lie in the same few
// features.
template <int Bits, bool Offsets>
class OutlierWeights {
  public:
    explicit OutlierWeights(const PanelBlocks& panel) : panel_(panel) {
        std::fill(std::begin(features_), std::end(features_), kNone);
    }
    // Those of the panel's channels.
    const float* of(const Outlier& outlier, size_t block) {
        const size_t feature = outlier.block * block + outlier.place, at = feature % kPlaces;
        if (features_[at] != feature) {
            features_[at] = feature;
            for (size_t lane = 0; lane < kPanelChannels; lane += kLaneCount) {
                store(weights_[at] + lane, weights_of<Bits, Offsets>(panel_, outlier, lane));
            }
        }
        return weights_[at];
    }

  private:
    static constexpr size_t kPlaces = 64, kNone = SIZE_MAX;

    const PanelBlocks& panel_;
    size_t features_[kPlaces];
    alignas(64) float weights_[kPlaces][kPanelChannels];
};

// What finish_row does, for all rows of `sums`. Written apart: with one function for both, clang 19's RVV kernels
// execute up to a seventh more instructions (scripts/riscv-count).
template <int Bits, bool Offsets>
[[gnu::noinline]] void finish_slabs(const LinearArguments& arguments, const PanelBlocks& panel, size_t channel,
                                    size_t row, size_t end, const float* sums) {
    const QuantisedRows& a = arguments.quantised;
    OutlierWeights<Bits, Offsets> weights(panel);
    for (; row < end; ++row, sums += kPanelChannels) {
        Floats low = load(sums), high = load(sums + kLaneCount);
        const Outlier* outlier = a.outliers_of(row);
        for (const Outlier* last = outlier + a.outlier_counts[row]; outlier != last; ++outlier) {
            const Floats value = broadcast(outlier->value);
            const float* with = weights.of(*outlier, a.block);
            low = multiply_add(load(with), value, low);
            high = multiply_add(load(with + kLaneCount), value, high);
        }
        store_outputs(arguments, row, channel, low);
        store_outputs(arguments, row, channel + kLaneCount, high);
    }
}

// A register tile: adds groups `group`.. to `end_group` of Rows rows of activations × Vectors × 16 channels, from lane
// `lane` of the panel, to `sums`. `from` begins with the first of these groups.
// All loops over rows, vectors and k groups are unrolled: the accumulators stay in registers.
template <int Bits, bool Offsets, size_t Block, int Rows, int Vectors, typename PanelCodes>
[[gnu::always_inline]] inline void multiply_groups(const QuantisedRows& a, const PanelCodes& from, size_t lane,
                                                   size_t row, size_t group, size_t end_group,
                                                   Floats (&sums)[Rows][Vectors]) {
    const size_t runs = Block == kBlocksOf32 ? a.block / 32 : 1;
    const size_t blocks_of_group = kActivationGroup / a.block;
    size_t block = group * blocks_of_group;
    const int32_t* starts = a.starts + block * a.row_count + row;
    const float* code_sums = a.sums + block * a.row_count + row;
    typename PanelCodes::template Cursor<Block == kBlocksOf32> cursor(from);
    for (; group < end_group; ++group) {
        const int8_t* activations = a.codes_of(group, row);
        Floats total[Rows][Vectors];
        clear(total);
        for (const size_t end = std::min(block + blocks_of_group, a.blocks); block < end; ++block) {
            BlockDot<Bits, !Offsets> dots[Rows][Vectors];
#pragma GCC unroll 8
            for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 2
                for (int v = 0; v < Vectors; ++v) dots[r][v].start(starts[r]);
            }
            const uint8_t* line = cursor.codes() + lane * 4;
            for (size_t run = 0; run < runs; ++run) {
#pragma GCC unroll 8
                for (int k = 0; k < kGroups<Block>; k += PanelCodes::parts, line += kGroupBytes) {
                    Codes lines[Vectors];
#pragma GCC unroll 2
                    for (int v = 0; v < Vectors; ++v) lines[v] = PanelCodes::line(line + v * 64);
#pragma GCC unroll 8
                    for (int part = 0; part < PanelCodes::parts; ++part) {
                        Codes codes[Vectors];
#pragma GCC unroll 2
                        for (int v = 0; v < Vectors; ++v) codes[v] = PanelCodes::part(lines[v], part);
#pragma GCC unroll 8
                        for (int r = 0; r < Rows; ++r) {
                            const int32_t four = four_activations(activations + r * kActivationGroup + 4 * part);
#pragma GCC unroll 2
                            for (int v = 0; v < Vectors; ++v) dots[r][v].accumulate(codes[v], four);
                        }
                    }
                    activations += 4 * PanelCodes::parts;
                }
#pragma GCC unroll 8
                for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 2
                    for (int v = 0; v < Vectors; ++v) dots[r][v].widen();
                }
            }
#pragma GCC unroll 2
            for (int v = 0; v < Vectors; ++v) {
                const Floats steps = cursor.steps(lane + v * kLaneCount);
#pragma GCC unroll 8
                for (int r = 0; r < Rows; ++r) {
                    total[r][v] = multiply_add(to_floats(dots[r][v].total), steps, total[r][v]);
                }
                if constexpr (Offsets) {
                    const Floats offsets = cursor.offsets(lane + v * kLaneCount);
#pragma GCC unroll 8
                    for (int r = 0; r < Rows; ++r) {
                        total[r][v] = multiply_add(offsets, broadcast(code_sums[r]), total[r][v]);
                    }
                }
            }
            cursor.next();
            starts += a.row_count;
            code_sums += a.row_count;
        }
        add_scaled(sums, total, a.scales + group * a.row_count + row);
    }
}

template <int Rows, int Vectors>
[[gnu::always_inline]] inline void store_sums(const Floats (&sums)[Rows][Vectors], float* to) {
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 2
        for (int v = 0; v < Vectors; ++v) store(to + r * kPanelChannels + v * kLaneCount, sums[r][v]);
    }
}

// A tile of all groups and the whole panel, from packed codes.
template <int Bits, bool Offsets, size_t Block, int Rows>
inline void multiply_tile(const LinearArguments& arguments, const PackedCodes<Bits>& from, size_t channel, size_t row) {
    if constexpr (Rows > 1) fetch_outputs(arguments, channel, 2, row, row + Rows);
    Floats sums[Rows][2];
    clear(sums);
    const QuantisedRows& a = arguments.quantised;
    multiply_groups<Bits, Offsets, Block, Rows, 2>(a, from, 0, row, 0, a.groups, sums);
    if constexpr (Rows == 1) {
        finish_row<Bits, Offsets>(arguments, from.panel(), channel, row, sums[0]);
    } else {
        alignas(64) float finished[Rows * kPanelChannels];
        store_sums(sums, finished);
        finish_rows<Bits, Offsets>(arguments, from.panel(), channel, row, Rows, finished);
    }
}

// A tile of a slab: adds to what earlier slabs left in `kept`.
template <int Bits, bool Offsets, size_t Block, int Rows, int Vectors>
inline void multiply_slab_tile(const QuantisedRows& a, const SpreadCodes<Bits, Offsets>& from, size_t lane, size_t row,
                               size_t group, size_t end_group, float* kept) {
    Floats sums[Rows][Vectors];
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 2
        for (int v = 0; v < Vectors; ++v) sums[r][v] = load(kept + r * kPanelChannels + v * kLaneCount);
    }
    multiply_groups<Bits, Offsets, Block, Rows, Vectors>(a, from, lane, row, group, end_group, sums);
    store_sums(sums, kept);
}

// Rows that share what is spread of a panel, at most kSlabRows.
template <int Bits, bool Offsets, size_t Block>
inline void multiply_slabs(const LinearArguments& arguments, const PanelBlocks& panel, size_t channel, size_t begin,
                           size_t end, uint8_t* scratch) {
    const QuantisedRows& a = arguments.quantised;
    const size_t blocks_of_group = kActivationGroup / a.block;
    auto* sums = reinterpret_cast<float*>(scratch);
    std::memset(sums, 0, (end - begin) * kPanelChannels * sizeof(float));
    SpreadCodes<Bits, Offsets> codes(scratch + kSlabRows * kPanelChannels * sizeof(float),
                                     kSlabGroups * blocks_of_group, a.block);
    for (size_t group = 0; group < a.groups; group += kSlabGroups) {
        const size_t end_group = std::min(group + kSlabGroups, a.groups);
        const size_t first = group * blocks_of_group;
        codes.spread(panel, first, std::min(end_group * blocks_of_group, a.blocks) - first);
        for (size_t lane = 0; lane < kPanelChannels; lane += kTileVectors * kLaneCount) {
            for_each_row_tile(begin, end, [&]<int Rows>(size_t row) {
                float* kept = sums + (row - begin) * kPanelChannels + lane;
                multiply_slab_tile<Bits, Offsets, Block, Rows, kTileVectors>(a, codes, lane, row, group, end_group,
                                                                             kept);
            });
        }
    }
    fetch_outputs(arguments, channel, 2, begin, end);
    finish_slabs<Bits, Offsets>(arguments, panel, channel, begin, end, sums);
}

template <int Bits, bool Offsets, size_t Block>
inline void multiply_panel(const LinearArguments& arguments, size_t panel_index, size_t begin, size_t end,
                           uint8_t* scratch) {
    const QuantisedRows& a = arguments.quantised;
    const PanelBlocks panel(*arguments.weights, panel_index, a.block);
    const size_t channel = panel_index * kPanelChannels;
    if (end - begin <= kFewRows) {
        const PackedCodes<Bits> codes(panel);
        for_each_row_tile<kPackedTileRows>(begin, end, [&]<int Rows>(size_t row) {
            multiply_tile<Bits, Offsets, Block, Rows>(arguments, codes, channel, row);
        });
        return;
    }
    if constexpr (kSlabGroups > 0) {
        for (size_t row = begin; row < end; row += kSlabRows) {
            const size_t row_end = std::min(row + kSlabRows, end);
            multiply_slabs<Bits, Offsets, Block>(arguments, panel, channel, row, row_end, scratch);
        }
    }
}

template <int Bits, bool Offsets>
inline void linear_int8_rows(const LinearArguments& arguments, size_t panel, size_t begin, size_t end,
                             uint8_t* scratch) {
    switch (arguments.quantised.block) {
        case 16: multiply_panel<Bits, Offsets, 16>(arguments, panel, begin, end, scratch); break;
        case 32: multiply_panel<Bits, Offsets, 32>(arguments, panel, begin, end, scratch); break;
        default: multiply_panel<Bits, Offsets, kBlocksOf32>(arguments, panel, begin, end, scratch);
    }
}

template <int Bits>
inline void linear_int8(const LinearArguments& arguments, size_t panel, size_t row_begin, size_t row_end,
                        uint8_t* scratch) {
    if (arguments.weights->format().has_offsets) {
        linear_int8_rows<Bits, true>(arguments, panel, row_begin, row_end, scratch);
    } else {
        linear_int8_rows<Bits, false>(arguments, panel, row_begin, row_end, scratch);
    }
}

}  // namespace nybble::NYBBLE_ISA
