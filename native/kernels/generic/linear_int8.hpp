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

#include "kernels/generic/activation_rows.hpp"
#include "kernels/generic/panel_codes.hpp"
#include "kernels/generic/tiles.hpp"

namespace nybble::NYBBLE_ISA {

// Block is 16 or 32, or kBlocksOf64 for 64 and 128: what is known when compiled saves moves between registers.
inline constexpr size_t kBlocksOf64 = 0;

// k groups between two widenings of a block's dot product: at most 8, where it does not say how many it bears.
template <typename Dot, size_t Block>
constexpr int groups_between_widenings() {
    if constexpr (Block != kBlocksOf64) return Block / 4;
    if constexpr (requires { Dot::most_groups; }) return Dot::most_groups;
    return 8;
}

// Rows of a tile of packed codes. It takes all channels of the panel, so that memory is read in one stream.
inline constexpr int kTileSums = kTileRows * kTileVectors;
inline constexpr int kPackedTileRows = kTileSums < 2 ? 1 : kTileSums / 2;

inline constexpr size_t kSumBytes = kMostRows * kPanelChannels * sizeof(float);

inline size_t linear_int8_scratch_bytes(const PackedMatrix&) {
    return kSumBytes + (kSlabGroups == 0 ? 0 : SpreadCodes<PackedCodes<8>, true>::kMostBytes);
}

// The outliers of a row times their weights, added to `total`, then what all linears end with.
template <typename Packed, bool Offsets>
[[gnu::always_inline]] inline void finish_row(const LinearArguments& arguments, const PanelBlocks& panel,
                                              size_t channel, size_t row, Floats (&total)[2]) {
    const QuantisedRows& a = arguments.quantised;
    const Outlier* outlier = a.outliers_of(row);
    for (const Outlier* end = outlier + a.outlier_counts[row]; outlier != end; ++outlier) {
        const Floats value = broadcast(outlier->value);
        total[0] = multiply_add(Packed::template weights_of<Offsets>(panel, *outlier, 0), value, total[0]);
        total[1] = multiply_add(Packed::template weights_of<Offsets>(panel, *outlier, kLaneCount), value, total[1]);
    }
    store_outputs(arguments, row, channel, total[0]);
    store_outputs(arguments, row, channel + kLaneCount, total[1]);
}

// Not inlined: it needs the registers that multiply_tile takes for itself. `sums` are those of a panel, row by row.
template <typename Packed, bool Offsets>
[[gnu::noinline]] void finish_rows(const LinearArguments& arguments, const PanelBlocks& panel, size_t channel,
                                   size_t row, size_t rows, const float* sums) {
    for (const size_t end = row + rows; row < end; ++row, sums += kPanelChannels) {
        Floats total[2] = {load(sums), load(sums + kLaneCount)};
        finish_row<Packed, Offsets>(arguments, panel, channel, row, total);
    }
}

// The same from columns of outliers, each of whose weights is decoded once.
template <typename Packed, bool Offsets>
[[gnu::noinline]] void finish_columns(const LinearArguments& arguments, const PanelBlocks& panel, size_t channel,
                                      size_t row, size_t rows, float* sums) {
    const OutlierColumn* column = arguments.outliers->columns;
    for (const OutlierColumn* end = column + arguments.outliers->count; column != end; ++column) {
        const Outlier at{column->block, column->place, 0.0f};
        const Floats low = Packed::template weights_of<Offsets>(panel, at, 0);
        const Floats high = Packed::template weights_of<Offsets>(panel, at, kLaneCount);
        for (const OutlierColumn::Entry* entry = column->begin; entry != column->end; ++entry) {
            const Floats value = broadcast(entry->value);
            float* to = sums + entry->row * kPanelChannels;
            store(to, multiply_add(low, value, load(to)));
            store(to + kLaneCount, multiply_add(high, value, load(to + kLaneCount)));
        }
    }
    for (const size_t end = row + rows; row < end; ++row, sums += kPanelChannels) {
        store_outputs(arguments, row, channel, load(sums));
        store_outputs(arguments, row, channel + kLaneCount, load(sums + kLaneCount));
    }
}

// A register tile: adds groups `group`.. to `end_group` of Rows rows of activations × Vectors × 16 channels, from lane
// `lane` of the panel, to `sums`. `from` begins with the first of these groups.
// All loops over rows, vectors and k groups are unrolled: the accumulators stay in registers.
template <int Bits, bool Offsets, size_t Block, int Rows, int Vectors, typename PanelCodes, typename Fetching>
[[gnu::always_inline]] inline void multiply_groups(const QuantisedRows& a, const PanelCodes& from, Fetching fetching,
                                                   size_t lane, size_t row, size_t group, size_t end_group,
                                                   Floats (&sums)[Rows][Vectors]) {
    using Dot = BlockDot<Bits, !Offsets>;
    constexpr int groups = groups_between_widenings<Dot, Block>();
    const size_t runs = Block == kBlocksOf64 ? a.block / (4 * groups) : 1;
    const size_t blocks_of_group = kActivationGroup / a.block;
    size_t block = group * blocks_of_group;
    const int32_t* starts = a.starts + block * a.row_count + row;
    const float* code_sums = a.sums + block * a.row_count + row;
    typename PanelCodes::template Cursor<Block == kBlocksOf64> cursor(from);
    typename PanelCodes::template Activations<Rows> activations(a, group, row);
    for (; group < end_group; ++group) {
        Floats total[Rows][Vectors];
        clear(total);
        for (const size_t end = std::min(block + blocks_of_group, a.blocks); block < end; ++block) {
            Dot dots[Rows][Vectors];
#pragma GCC unroll 8
            for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 2
                for (int v = 0; v < Vectors; ++v) dots[r][v].start(starts[r]);
            }
            const uint8_t* line = cursor.codes() + lane * PanelCodes::lane_bytes;
            for (size_t run = 0; run < runs; ++run) {
#pragma GCC unroll 16
                for (int k = 0; k < groups; k += PanelCodes::parts, line += kPanelChannels * PanelCodes::lane_bytes) {
                    typename PanelCodes::Line lines[Vectors];
#pragma GCC unroll 2
                    for (int v = 0; v < Vectors; ++v) {
                        const uint8_t* from_line = line + v * kLaneCount * PanelCodes::lane_bytes;
                        fetching.next(from_line);
                        lines[v] = PanelCodes::line(from_line);
                    }
#pragma GCC unroll 8
                    for (int part = 0; part < PanelCodes::parts; ++part) {
                        Codes codes[Vectors];
#pragma GCC unroll 2
                        for (int v = 0; v < Vectors; ++v) codes[v] = PanelCodes::part(lines[v], part);
#pragma GCC unroll 8
                        for (int r = 0; r < Rows; ++r) {
                            const int32_t four = activations.four(r, 4 * (k + part));
#pragma GCC unroll 2
                            for (int v = 0; v < Vectors; ++v) dots[r][v].accumulate(codes[v], four);
                        }
                    }
                }
                activations.advance(4 * groups);
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
        activations.next_group();
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

// A tile of all groups and the whole panel, from packed codes. The sums of several rows go to `kept` if they are not to
// be finished.
template <typename Packed, bool Offsets, size_t Block, int Rows, typename Fetching>
inline void multiply_tile(const LinearArguments& arguments, const Packed& from, Fetching fetching, size_t channel,
                          size_t row, float* kept) {
    if constexpr (Rows > 1) fetch_outputs(arguments, channel, 2, row, row + Rows);
    Floats sums[Rows][2];
    clear(sums);
    const QuantisedRows& a = arguments.quantised;
    multiply_groups<Packed::bits, Offsets, Block, Rows, 2>(a, from, fetching, 0, row, 0, a.groups, sums);
    if constexpr (Rows == 1) {
        finish_row<Packed, Offsets>(arguments, from.panel(), channel, row, sums[0]);
    } else if (kept != nullptr) {
        store_sums(sums, kept);
    } else {
        alignas(64) float finished[Rows * kPanelChannels];
        store_sums(sums, finished);
        finish_rows<Packed, Offsets>(arguments, from.panel(), channel, row, Rows, finished);
    }
}

// From packed codes as they come.
template <typename Packed, bool Offsets, size_t Block>
inline void multiply_packed(const LinearArguments& arguments, size_t panel_index, size_t begin, size_t end,
                            uint8_t* scratch) {
    constexpr size_t most = Packed::takes_one_row ? 1 : kPackedTileRows, read_bytes = kLaneCount * Packed::lane_bytes;
    const PanelBlocks panel(*arguments.weights, panel_index, arguments.quantised.block);
    const size_t channel = panel_index * kPanelChannels, tiles = (end - begin + most - 1) / most;
    const Packed codes(panel);
    // A tile of one row is finished alone. Beside others there is none where tiles can have three.
    const bool keeps = arguments.outliers != nullptr && most > 2 && end - begin > 1;
    auto* sums = reinterpret_cast<float*>(scratch);
    size_t tile = 0;
    for_each_row_tile<most>(begin, end, [&]<int Rows>(size_t row) {
        float* kept = keeps ? sums + (row - begin) * kPanelChannels : nullptr;
        if (Rows == 1 || tiles == 1) {
            const StreamFetching<read_bytes> fetching;
            multiply_tile<Packed, Offsets, Block, Rows>(arguments, codes, fetching, channel, row, kept);
        } else {
            const PanelFetching<read_bytes> fetching(*arguments.weights, panel_index, tile++, tiles);
            multiply_tile<Packed, Offsets, Block, Rows>(arguments, codes, fetching, channel, row, kept);
        }
    });
    if (keeps) finish_columns<Packed, Offsets>(arguments, panel, channel, begin, end - begin, sums);
}

// A tile of a slab: adds to what earlier slabs left in `kept`.
template <typename Packed, bool Offsets, size_t Block, int Rows, int Vectors>
inline void multiply_slab_tile(const QuantisedRows& a, const SpreadCodes<Packed, Offsets>& from, size_t lane,
                               size_t row, size_t group, size_t end_group, float* kept) {
    Floats sums[Rows][Vectors];
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 2
        for (int v = 0; v < Vectors; ++v) sums[r][v] = load(kept + r * kPanelChannels + v * kLaneCount);
    }
    multiply_groups<Packed::bits, Offsets, Block, Rows, Vectors>(a, from, NoFetching(), lane, row, group, end_group,
                                                                 sums);
    store_sums(sums, kept);
}

// Rows that share what is spread of a panel.
template <typename Packed, bool Offsets, size_t Block>
inline void multiply_slabs(const LinearArguments& arguments, const PanelBlocks& panel, size_t channel, size_t begin,
                           size_t end, uint8_t* scratch) {
    const QuantisedRows& a = arguments.quantised;
    const size_t blocks_of_group = kActivationGroup / a.block;
    auto* sums = reinterpret_cast<float*>(scratch);
    std::memset(sums, 0, (end - begin) * kPanelChannels * sizeof(float));
    SpreadCodes<Packed, Offsets> codes(scratch + kSumBytes, kSlabGroups * blocks_of_group, a.block);
    for (size_t group = 0; group < a.groups; group += kSlabGroups) {
        const size_t end_group = std::min(group + kSlabGroups, a.groups);
        const size_t first = group * blocks_of_group;
        codes.spread(panel, first, std::min(end_group * blocks_of_group, a.blocks) - first);
        for (size_t lane = 0; lane < kPanelChannels; lane += kTileVectors * kLaneCount) {
            for_each_row_tile(begin, end, [&]<int Rows>(size_t row) {
                float* kept = sums + (row - begin) * kPanelChannels + lane;
                multiply_slab_tile<Packed, Offsets, Block, Rows, kTileVectors>(a, codes, lane, row, group, end_group,
                                                                               kept);
            });
        }
    }
    fetch_outputs(arguments, channel, 2, begin, end);
    if (arguments.outliers != nullptr) {
        finish_columns<Packed, Offsets>(arguments, panel, channel, begin, end - begin, sums);
    } else {
        finish_rows<Packed, Offsets>(arguments, panel, channel, begin, end - begin, sums);
    }
}

template <typename Packed, bool Offsets, size_t Block>
inline void multiply_panel(const LinearArguments& arguments, size_t panel_index, size_t begin, size_t end,
                           uint8_t* scratch) {
    const QuantisedRows& a = arguments.quantised;
    const PanelBlocks panel(*arguments.weights, panel_index, a.block);
    const size_t channel = panel_index * kPanelChannels;
    if (Packed::takes_one_row || end - begin <= kFewRows) {
        multiply_packed<Packed, Offsets, Block>(arguments, panel_index, begin, end, scratch);
    } else if constexpr (kSlabGroups > 0 && !Packed::takes_one_row) {
        multiply_slabs<Packed, Offsets, Block>(arguments, panel, channel, begin, end, scratch);
    }
}

template <typename Packed, bool Offsets>
inline void linear_int8_rows(const LinearArguments& arguments, size_t panel, size_t begin, size_t end,
                             uint8_t* scratch) {
    switch (arguments.quantised.block) {
        case 16: multiply_panel<Packed, Offsets, 16>(arguments, panel, begin, end, scratch); break;
        case 32: multiply_panel<Packed, Offsets, 32>(arguments, panel, begin, end, scratch); break;
        default: multiply_panel<Packed, Offsets, kBlocksOf64>(arguments, panel, begin, end, scratch);
    }
}

template <typename Packed>
inline void linear_int8(const LinearArguments& arguments, size_t panel, size_t row_begin, size_t row_end,
                        uint8_t* scratch) {
    if (arguments.weights->format().has_offsets) {
        linear_int8_rows<Packed, true>(arguments, panel, row_begin, row_end, scratch);
    } else {
        linear_int8_rows<Packed, false>(arguments, panel, row_begin, row_end, scratch);
    }
}

}  // namespace nybble::NYBBLE_ISA
