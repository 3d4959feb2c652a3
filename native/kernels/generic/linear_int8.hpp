// Linears on int8 activations. A panel is multiplied group by group of activations: within a group each block gives an
// exact integer dot product, and the fp32 sums have one fixed order,
//   for each block: t = fma(float(dot), step, t); t = fma(offset, Σ codes, t)
//   f = fma(t, activation scale, f)
// over groups in order and then outliers, so a row gives the same bits alone, in a tile, and on any instruction set.
// A few rows read the packed codes as they come; for more, a group's codes are first spread to a byte each in the L1
// cache and reused.
#pragma once

#include <algorithm>
#include <cstring>

#include "kernels/generic/tiles.hpp"

namespace nybble::NYBBLE_ISA {

// Bytes from the line being multiplied to the line being fetched: DRAM latency at full rate.
inline constexpr size_t kPrefetchDistance = 4096;

// Rows that are multiplied with a group while its codes are spread: what they share stays in the L1 cache.
inline constexpr size_t kMostRows = 96;

// Block is 16 or 32, or kBlocksOf32 for 64 and 128: what is known when compiled saves moves between registers.
inline constexpr size_t kBlocksOf32 = 0;

// k groups between two widenings of a block's dot product: at most 8.
template <size_t Block>
inline constexpr int kGroups = Block == 16 ? 4 : 8;

// Where the blocks of a panel lie, as activations divide them: a block of weights may be two of theirs.
class PanelBlocks {
  public:
    PanelBlocks(const PackedMatrix& weights, size_t panel, size_t block)
        : panel_(weights.panel(panel)),
          block_bytes_(weights.block_bytes()),
          code_bytes_(weights.format().code_bytes()),
          halved_(weights.format().block > block) {}
    const uint8_t* codes(size_t block) const {
        return panel_ + (block >> halved_) * block_bytes_ + (block & halved_) * (code_bytes_ / 2);
    }
    const uint16_t* scales(size_t block) const {
        return reinterpret_cast<const uint16_t*>(panel_ + (block >> halved_) * block_bytes_ + code_bytes_);
    }
    size_t stride() const { return block_bytes_; }

  private:
    const uint8_t* panel_;
    size_t block_bytes_, code_bytes_;
    size_t halved_;  // 1 or 0
};

template <int Bits>
inline Floats load_steps(const uint16_t* scales) {
    const Floats scale = load_half(scales);
    return Bits == 8 ? scale : multiply(scale, broadcast(1.0f / (1 << (8 - Bits))));
}

// What one group of a panel is multiplied by.
struct PanelGroup {
    static constexpr size_t kMostBlocks = kActivationGroup / 16;

    const uint8_t* codes;  // of its first block
    size_t code_stride;    // from one block to the next
    size_t first_block, blocks;
    alignas(64) float steps[kMostBlocks][kPanelChannels];
    alignas(64) float offsets[kMostBlocks][kPanelChannels];
};

struct LinearScratch {
    PanelGroup group;
    alignas(64) uint8_t codes[kActivationGroup * kPanelChannels];
    alignas(64) float sums[kMostRows][kPanelChannels];
};

inline size_t linear_int8_scratch_bytes(const PackedMatrix&) { return sizeof(LinearScratch); }

template <int Bits, bool Offsets>
inline void read_factors(const PanelBlocks& panel, PanelGroup& group) {
    for (size_t b = 0; b < group.blocks; ++b) {
        const uint16_t* scales = panel.scales(group.first_block + b);
        for (size_t lane = 0; lane < kPanelChannels; lane += kLaneCount, scales += kLaneCount) {
            store(group.steps[b] + lane, load_steps<Bits>(scales));
            if constexpr (Offsets) store(group.offsets[b] + lane, load_half(scales + kPanelChannels));
        }
    }
}

// The codes of a group to a byte each.
template <int Bits>
inline void spread_codes(PanelGroup& group, size_t block, uint8_t* to) {
    const uint8_t* packed = group.codes;
    const size_t packed_bytes = block * kPanelChannels * Bits / 8;
    group.codes = to;
    for (size_t b = 0; b < group.blocks; ++b, packed += group.code_stride) {
        for (size_t line = 0; line < packed_bytes; line += kGroupBytes) {
            prefetch(packed + line + kPrefetchDistance);
            prefetch(packed + line + 64 + kPrefetchDistance);
            const Codes x = load_code_group(packed + line), y = load_code_group(packed + line + 64);
#pragma GCC unroll 8
            for (int part = 0; part < 8 / Bits; ++part, to += kGroupBytes) {
                store_code_group(to, part_of<Bits>(x, part));
                store_code_group(to + 64, part_of<Bits>(y, part));
            }
        }
    }
    group.code_stride = block * kPanelChannels;
}

inline int32_t four_activations(const int8_t* codes) {
    int32_t value;
    std::memcpy(&value, __builtin_assume_aligned(codes, sizeof value), sizeof value);
    return value;
}

// A register tile: Rows rows of activations × Vectors × 16 channels, from channel 16 · first_vector of the panel, times
// one group; added to `sums`. Packed codes are read as they come and asked for ahead, others have a byte each.
// All loops over rows, vectors and k groups are unrolled: the accumulators stay in registers.
template <int Bits, bool Offsets, size_t Block, bool Packed, int Rows, int Vectors>
inline void multiply_group(const QuantisedRows& a, const PanelGroup& group, size_t activation_group,
                           size_t first_vector, size_t row, float (*sums)[kPanelChannels]) {
    constexpr int parts = Packed ? 8 / Bits : 1;
    const size_t runs = Block == kBlocksOf32 ? a.block / 32 : 1;
    const int8_t* activations = a.codes_of(activation_group, row);
    const size_t first_channel = first_vector * kLaneCount;
    const uint8_t* block_codes = group.codes + first_vector * 64;
    const int32_t* starts = a.starts + group.first_block * a.row_count + row;
    const float* code_sums = a.sums + group.first_block * a.row_count + row;
    Floats total[Rows][Vectors];
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 2
        for (int v = 0; v < Vectors; ++v) total[r][v] = broadcast(0.0f);
    }
    for (size_t b = 0; b < group.blocks; ++b) {
        BlockDot<Bits, !Offsets> dots[Rows][Vectors];
#pragma GCC unroll 8
        for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 2
            for (int v = 0; v < Vectors; ++v) dots[r][v].start(starts[r]);
        }
        const uint8_t* line = block_codes;
        for (size_t run = 0; run < runs; ++run) {
#pragma GCC unroll 8
            for (int g = 0; g < kGroups<Block>; g += parts, line += kGroupBytes) {
                Codes lines[Vectors];
#pragma GCC unroll 2
                for (int v = 0; v < Vectors; ++v) {
                    if constexpr (Packed) prefetch(line + v * 64 + kPrefetchDistance);
                    lines[v] = load_code_group(line + v * 64);
                }
#pragma GCC unroll 8
                for (int part = 0; part < parts; ++part) {
                    Codes codes[Vectors];
#pragma GCC unroll 2
                    for (int v = 0; v < Vectors; ++v) {
                        codes[v] = Packed ? part_of<Bits>(lines[v], part) : lines[v];
                    }
#pragma GCC unroll 8
                    for (int r = 0; r < Rows; ++r) {
                        const int32_t four = four_activations(activations + r * kActivationGroup + 4 * part);
#pragma GCC unroll 2
                        for (int v = 0; v < Vectors; ++v) dots[r][v].accumulate(codes[v], four);
                    }
                }
                activations += 4 * parts;
            }
#pragma GCC unroll 8
            for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 2
                for (int v = 0; v < Vectors; ++v) dots[r][v].widen();
            }
        }
#pragma GCC unroll 2
        for (int v = 0; v < Vectors; ++v) {
            const Floats steps = load(group.steps[b] + first_channel + v * kLaneCount);
#pragma GCC unroll 8
            for (int r = 0; r < Rows; ++r) {
                total[r][v] = multiply_add(to_floats(dots[r][v].total), steps, total[r][v]);
            }
            if constexpr (Offsets) {
                const Floats offsets = load(group.offsets[b] + first_channel + v * kLaneCount);
#pragma GCC unroll 8
                for (int r = 0; r < Rows; ++r) {
                    total[r][v] = multiply_add(offsets, broadcast(code_sums[r]), total[r][v]);
                }
            }
        }
        block_codes += group.code_stride;
        starts += a.row_count;
        code_sums += a.row_count;
    }
    const float* scales = a.scales + activation_group * a.row_count + row;
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 2
        for (int v = 0; v < Vectors; ++v) {
            float* sum = sums[r] + first_channel + v * kLaneCount;
            store(sum, multiply_add(total[r][v], broadcast(scales[r]), load(sum)));
        }
    }
}

// The outliers of a row times their weights, then what all linears end with.
template <int Bits, bool Offsets>
inline void finish_row(const LinearArguments& arguments, const PanelBlocks& panel, size_t channel, size_t row,
                       const float* sums) {
    constexpr size_t parts = 8 / Bits;
    constexpr int zero_point = Offsets ? 0 : 1 << (Bits - 1);
    const QuantisedRows& a = arguments.quantised;
    Floats total[2] = {load(sums), load(sums + kLaneCount)};
    const Outlier* outlier = a.outliers_of(row);
    for (const Outlier* end = outlier + a.outlier_counts[row]; outlier != end; ++outlier) {
        const size_t k_group = outlier->place / 4;
        const uint8_t* line = panel.codes(outlier->block) + k_group / parts * kGroupBytes;
        const uint16_t* scales = panel.scales(outlier->block);
        const auto first_bit = static_cast<int>(outlier->place % 4 * 8 + k_group % parts * Bits);
        const Floats value = broadcast(outlier->value);
#pragma GCC unroll 2
        for (size_t v = 0; v < 2; ++v) {
            const Integers codes = bits_from<Bits>(load_integers(line + v * 64), first_bit);
            const Floats factor = to_floats(add(codes, broadcast_integer(-zero_point)));
            total[v] = multiply_add(multiply(factor, load_half(scales + v * kLaneCount)), value, total[v]);
            if constexpr (Offsets) {
                total[v] = multiply_add(load_half(scales + kPanelChannels + v * kLaneCount), value, total[v]);
            }
        }
    }
    store_outputs(arguments, row, channel, total[0]);
    store_outputs(arguments, row, channel + kLaneCount, total[1]);
}

// At most kMostRows rows × a panel.
template <int Bits, bool Offsets, size_t Block>
inline void multiply_panel(const LinearArguments& arguments, size_t panel, size_t begin, size_t end,
                           LinearScratch& scratch) {
    const QuantisedRows& a = arguments.quantised;
    const PanelBlocks blocks(*arguments.weights, panel, a.block);
    PanelGroup& group = scratch.group;
    const size_t blocks_of_group = kActivationGroup / a.block;
    std::memset(scratch.sums, 0, (end - begin) * sizeof(scratch.sums[0]));
    for (size_t g = 0; g < a.groups; ++g) {
        if (g + 1 == a.groups) fetch_outputs(arguments, panel * kPanelChannels, begin, end);
        group.first_block = g * blocks_of_group;
        group.blocks = std::min(blocks_of_group, a.blocks - group.first_block);
        group.codes = blocks.codes(group.first_block);
        group.code_stride = blocks.stride();
        read_factors<Bits, Offsets>(blocks, group);
        if (end - begin <= kFewRows) {
            for_each_row_tile<kFewRows>(begin, end, [&]<int Rows>(size_t row) {
                multiply_group<Bits, Offsets, Block, true, Rows, 2>(a, group, g, 0, row, scratch.sums);
            });
            continue;
        }
        if constexpr (Bits < 8) spread_codes<Bits>(group, a.block, scratch.codes);
        for (size_t vector = 0; vector < kPanelChannels / kLaneCount; vector += kTileVectors) {
            for_each_row_tile(begin, end, [&]<int Rows>(size_t row) {
                multiply_group<Bits, Offsets, Block, false, Rows, kTileVectors>(a, group, g, vector, row,
                                                                                scratch.sums + (row - begin));
            });
        }
    }
    for (size_t row = begin; row < end; ++row) {
        finish_row<Bits, Offsets>(arguments, blocks, panel * kPanelChannels, row, scratch.sums[row - begin]);
    }
}

template <int Bits, bool Offsets>
inline void linear_int8_rows(const LinearArguments& arguments, size_t panel, size_t row_begin, size_t row_end,
                             LinearScratch& scratch) {
    const size_t rows = row_end - row_begin;
    const size_t runs = (rows + kMostRows - 1) / kMostRows;
    for (size_t run = 0; run < runs; ++run) {
        const size_t begin = row_begin + rows * run / runs, end = row_begin + rows * (run + 1) / runs;
        switch (arguments.quantised.block) {
            case 16: multiply_panel<Bits, Offsets, 16>(arguments, panel, begin, end, scratch); break;
            case 32: multiply_panel<Bits, Offsets, 32>(arguments, panel, begin, end, scratch); break;
            default: multiply_panel<Bits, Offsets, kBlocksOf32>(arguments, panel, begin, end, scratch);
        }
    }
}

template <int Bits>
inline void linear_int8(const LinearArguments& arguments, size_t panel, size_t row_begin, size_t row_end,
                        uint8_t* scratch) {
    auto& memory = *reinterpret_cast<LinearScratch*>(scratch);
    if (arguments.weights->format().has_offsets) {
        linear_int8_rows<Bits, true>(arguments, panel, row_begin, row_end, memory);
    } else {
        linear_int8_rows<Bits, false>(arguments, panel, row_begin, row_end, memory);
    }
}

}  // namespace nybble::NYBBLE_ISA
