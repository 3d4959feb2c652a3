// Linears on int8 activations with IME2's matrix instructions. The sums have the order of
// kernels/generic/linear_int8.hpp and so the same bits.
//
// One row reads a panel in one stream. More are multiplied in tiles of eight rows, of which the last may be filled up
// with rows that are computed and not kept: group by group, so that the group's codes stay in the L1 cache for all
// tiles.
#pragma once

#include <algorithm>
#include <cstring>

#include "kernels/generic/panel_blocks.hpp"
#include "kernels/generic/tiles.hpp"
#include "kernels/spacemit/ime2_groups.hpp"
#include "kernels/spacemit/ime2_outlier.hpp"

namespace nybble::NYBBLE_ISA {

// Tiles multiplied with a group while its codes are in the L1 cache: their activations and sums share that.
inline constexpr size_t kMostTiles = 8;

struct MatrixScratch {
    static constexpr size_t kMostBlocks = kActivationGroup / 16;
    static constexpr size_t kFactorFloats = 4 * kRegisterFloats;

    alignas(128) float sums[kMostTiles][kMatrixRows][kRegisterFloats];
    alignas(128) float factors[kMostBlocks][2][kFactorFloats];  // with offsets; without, blocks have one each
    alignas(
        128) uint8_t codes[kActivationGroup * kPanelChannels];  // of a group, as bytes where they are halves of some
};

inline size_t linear_ime2_scratch_bytes(const PackedMatrix&) { return sizeof(MatrixScratch); }

template <int Bits, bool Halves, bool Offsets>
[[gnu::noinline]] void add_outliers(const LinearArguments& arguments, const PanelBlocks& panel, size_t row,
                                    float* sums) {
    const QuantisedRows& a = arguments.quantised;
    const Outlier* outlier = a.outliers_of(row);
    for (const Outlier* end = outlier + a.outlier_counts[row]; outlier != end; ++outlier) {
        const CodePlace place = place_of_code(arguments.weights->format(), 0, outlier->place);
        add_outlier<Bits, Halves, Offsets>(panel.codes(outlier->block) + place.byte, place.shift,
                                           panel.scales(outlier->block), outlier->value, sums);
    }
}

// What all linears end with, for the 32 channels of a panel.
[[gnu::noinline]] inline void store_row_of_last_panel(const LinearArguments& arguments, size_t row, size_t channel,
                                                      const float* sums) {
    store_outputs(arguments, row, channel, load(sums));
    store_outputs(arguments, row, channel + kLaneCount, load(sums + kLaneCount));
}
inline void store_row(const LinearArguments& arguments, size_t row, size_t channel, const float* sums) {
    using Row = Vector<float, kPanelChannels>;
    Row value = load_as<Row>(sums);
    if (arguments.bias != nullptr) value += load_as<Row>(arguments.bias + channel);
    const FloatRows& residual = arguments.residual;
    if (residual.data != nullptr) value += load_as<Row>(residual.data + row * residual.stride + channel);
    std::memcpy(arguments.output.data + row * arguments.output.stride + channel, &value, sizeof value);
}

// The row where there is only one, added to 32 `sums`.
template <int Bits, bool Halves, bool Offsets, int Lines>
inline void multiply_single_row(const QuantisedRows& a, const PanelBlocks& panel, float* sums) {
    constexpr int bits = Halves ? 8 : Bits;
    constexpr bool one_block = Lines * 128 / bits == kActivationGroup;  // of activations; it may be half one of weights
    constexpr size_t blocks_of_group = kActivationGroup * bits / (Lines * 128);
    PanelBlocks::Cursor<true> blocks(panel);
    RowStream at{panel.codes(0), panel.scales(0), a.codes, a.sums};
    const float* scale = a.scales;
    for (size_t left = a.blocks; left != 0; ++scale) {
        const size_t count = std::min(blocks_of_group, left);
        // Sums that are 16 times as large meet a scale that is a sixteenth: the same bits.
        const float of_group = Halves && !Offsets ? *scale * 0x1p-4f : *scale;
        multiply_row<Bits, Halves, Offsets, Lines>(at, count, panel.stride(), of_group, sums);
        left -= count;
        if constexpr (one_block) {
            blocks.next();
            at.codes = blocks.codes();
            at.factors = blocks.scales();
        }
    }
}

// Rows `begin` to `end`, at most kMostTiles tiles.
template <int Bits, bool Halves, bool Offsets, int Lines>
inline void multiply_panel(const LinearArguments& arguments, size_t panel_index, size_t begin, size_t end,
                           MatrixScratch& scratch) {
    const QuantisedRows& a = arguments.quantised;
    const PanelBlocks panel(*arguments.weights, panel_index, a.block);
    const size_t channel = panel_index * kPanelChannels;
    const size_t blocks_of_group = kActivationGroup / a.block;
    const size_t first_tile = begin / kMatrixRows, tiles = (end + kMatrixRows - 1) / kMatrixRows - first_tile;
    std::memset(scratch.sums, 0, tiles * sizeof scratch.sums[0]);
    if (a.row_count == 1) multiply_single_row<Bits, Halves, Offsets, Lines>(a, panel, scratch.sums[0][0]);
    for (size_t g = 0; a.row_count > 1 && g < a.groups; ++g) {
        const size_t block = g * blocks_of_group;
        MatrixGroup group{};
        group.codes = panel.codes(block);
        group.block_stride = panel.stride();
        group.blocks = std::min(blocks_of_group, a.blocks - block);
        group.code_sums_stride = a.row_count * sizeof(float);
        const auto point_at = [&](size_t row) {
            group.activations = a.tile_of(g, row);
            group.scales = a.scales + g * a.row_count + row;
            group.code_sums = a.sums + block * a.row_count + row;
        };
        float* factors = scratch.factors[0][0];
        for (size_t b = 0; b < group.blocks; ++b) {
            const uint16_t* scales = panel.scales(block + b);
            repeat_factors(scales, factors);
            factors += MatrixScratch::kFactorFloats;
            if constexpr (Offsets) {
                repeat_factors(scales + kPanelChannels, factors);
                factors += MatrixScratch::kFactorFloats;
            }
            if constexpr (Halves) {
                spread_halves<Offsets>(panel.codes(block + b), Lines, scratch.codes + b * Lines * kLineBytes);
            }
        }
        if constexpr (Halves) {
            group.codes = scratch.codes;
            group.block_stride = Lines * kLineBytes;
        }
        for (size_t tile = 0; tile < tiles; ++tile) {
            point_at((first_tile + tile) * kMatrixRows);
            multiply_tile<Halves ? 8 : Bits, Offsets, Lines>(group, scratch.factors[0][0], scratch.sums[tile][0]);
        }
    }
    if (a.row_count > 1) {
        for (size_t tile = 0; tile < tiles; ++tile) sort_by_rows(scratch.sums[tile][0]);
    }
    for (size_t row = begin; row < end; ++row) {
        float* sums = scratch.sums[row / kMatrixRows - first_tile][row % kMatrixRows];
        if (a.outlier_counts[row] != 0) add_outliers<Bits, Halves, Offsets>(arguments, panel, row, sums);
        if (arguments.weights->n() - channel >= kPanelChannels) {
            store_row(arguments, row, channel, sums);
        } else {
            store_row_of_last_panel(arguments, row, channel, sums);
        }
    }
}

template <int Bits, bool Halves, bool Offsets>
inline void linear_ime2_rows(const LinearArguments& arguments, size_t panel, size_t row_begin, size_t row_end,
                             MatrixScratch& scratch) {
    constexpr size_t most_rows = kMostTiles * kMatrixRows;
    constexpr int bits = Halves ? 8 : Bits;  // as they are multiplied
    for (size_t begin = row_begin; begin < row_end;) {
        const size_t end = std::min(begin / most_rows * most_rows + most_rows, row_end);
        switch (arguments.quantised.block * bits / 8) {  // bytes of a channel in a block: 16 a line
            case 16: multiply_panel<Bits, Halves, Offsets, 1>(arguments, panel, begin, end, scratch); break;
            case 32: multiply_panel<Bits, Halves, Offsets, 2>(arguments, panel, begin, end, scratch); break;
            case 64: multiply_panel<Bits, Halves, Offsets, 4>(arguments, panel, begin, end, scratch); break;
            default: multiply_panel<Bits, Halves, Offsets, bits>(arguments, panel, begin, end, scratch);
        }
        begin = end;
    }
}

template <int Bits, Layout Lies>
inline void linear_ime2(const LinearArguments& arguments, size_t panel, size_t row_begin, size_t row_end,
                        uint8_t* scratch) {
    constexpr bool halves = Bits == 4 && traits_of(Lies).share;  // codes of two channels in a byte
    auto& memory = *reinterpret_cast<MatrixScratch*>(scratch);
    if (arguments.weights->format().has_offsets) {
        linear_ime2_rows<Bits, halves, true>(arguments, panel, row_begin, row_end, memory);
    } else {
        linear_ime2_rows<Bits, halves, false>(arguments, panel, row_begin, row_end, memory);
    }
}

}  // namespace nybble::NYBBLE_ISA
