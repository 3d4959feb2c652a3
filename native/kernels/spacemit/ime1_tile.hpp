// Several rows of activations × a panel of panel32k8 on IME1: prefill.
//
// A group of the panel (128 k) is spread once for up to 64 rows: codes to a byte each, signed where there are no
// offsets; steps to registers as the sums want them. Tiles of 8 rows × 8 channels keep the fp32 totals of a group in
// registers beside the integer sums; with blocks of a whole group there are no such totals, and tiles are 16 channels
// wide. All operands are read with one load for 4 or 8 of them.
#pragma once

#include "kernels/generic/linear_int8_k8.hpp"
#include "kernels/spacemit/sums.hpp"
#include "kernels/spacemit/words.hpp"

namespace nybble::NYBBLE_ISA {

inline constexpr size_t kMatrixRows = 8;      // of a tile: two operands A
inline constexpr size_t kMatrixChannels = 4;  // of an operand B
inline constexpr size_t kOperandBytes = 32;
inline constexpr size_t kCachedTiles = 8;  // that are multiplied while a group is spread
inline constexpr size_t kGroupLines = kActivationGroup / kLineDepth;
inline constexpr size_t kMostBlocks = kActivationGroup / 16;

// What a tile's vectors of 8 lanes are multiplied by. Lanes of sums are 2 rows × 4 channels, two registers an operand.
struct RowFactors {
    float of[kMatrixRows][kMatrixChannels];  // each row's, in 4 lanes
};

struct MatrixScratch {
    // Operands B of 4 channels as tiles take them: [tile of 8 or 16 channels][line][operand].
    alignas(64) uint8_t codes[kActivationGroup * kPanelChannels + 512];  // and what is read ahead
    // Each operand's 4, in each register of its sums: [tile of 8 channels][block][operand][4 times][4], or of 16.
    alignas(64) float steps[kMostBlocks * kPanelChannels * 4];
    alignas(64) float offsets[kMostBlocks * kPanelChannels * 4];
    alignas(64) RowFactors scales;
    alignas(64) RowFactors code_sums[kMostBlocks];
    // [tile of rows][tile of channels][operand A][operand B][row][channel]
    alignas(64) float sums[kCachedTiles][kMatrixRows * kPanelChannels];
};

// Where the step of (channel of the panel, block) begins: 4 channels, repeated 4 times.
template <size_t TileChannels>
inline size_t factor_place(size_t operand, size_t block, size_t blocks) {
    constexpr size_t operands = TileChannels / kMatrixChannels;
    return ((operand / operands * blocks + block) * operands + operand % operands) * 16;
}

inline void store_four_times(float* to, const float* four) {
    for (size_t i = 0; i < 4; ++i) std::memcpy(to + 4 * i, four, 4 * sizeof(float));
}

template <int Bits, bool Offsets, size_t TileChannels>
inline void spread_group(const PanelBlocks& panel, size_t block, size_t first, size_t blocks, MatrixScratch& to) {
    constexpr size_t parts = 8 / Bits, pair_bytes = 2 * kOperandBytes, pairs = TileChannels / 8;
    const size_t lines = block / kLineDepth;
    for (size_t b = 0; b < blocks; ++b) {
        const uint8_t* packed = panel.codes(first + b);
        for (size_t line = b * lines; line < (b + 1) * lines; line += parts, packed += kLineBytes) {
            for (size_t pair = 0; pair < kPanelChannels / 8; ++pair) {
                const Codes codes = load_code_group(packed + pair * pair_bytes);
                uint8_t* at = to.codes + ((pair / pairs * kGroupLines + line) * pairs + pair % pairs) * pair_bytes;
                for (size_t part = 0; part < parts; ++part) {
                    Codes spread = part_of<Bits>(codes, static_cast<int>(part));
                    if constexpr (!Offsets) spread.v = spread.v - static_cast<uint8_t>(1 << (Bits - 1));
                    store_code_group(at + part * pairs * pair_bytes, spread);
                }
            }
        }
        const uint16_t* scales = panel.scales(first + b);
        alignas(64) float values[kPanelChannels];
        const auto spread_factors = [&](const uint16_t* halves, float* factors) {
            for (size_t lane = 0; lane < kPanelChannels; lane += kLaneCount) {
                store(values + lane, load_half(halves + lane));
            }
            for (size_t operand = 0; operand < kPanelChannels / kMatrixChannels; ++operand) {
                store_four_times(factors + factor_place<TileChannels>(operand, b, blocks),
                                 values + operand * kMatrixChannels);
            }
        };
        spread_factors(scales, to.steps);
        if constexpr (Offsets) spread_factors(scales + kPanelChannels, to.offsets);
    }
}

// What belongs to rows row..row+8 of [of group or block][row]; 0 for those that do not exist.
inline void spread_rows(const float* values, size_t row, size_t row_count, RowFactors& to) {
    for (size_t r = 0; r < kMatrixRows; ++r) {
        const float value = row + r < row_count ? values[row + r] : 0.0f;
        for (float& lane : to.of[r]) lane = value;
    }
}

struct TileGroup {
    const int8_t* activations;
    const uint8_t* codes;
    const float* steps;
    const float* offsets;  // null: none
    const RowFactors* code_sums;
    const RowFactors* scales;
    size_t blocks;
    size_t runs;  // of 32 k in a block
    float* sums;
};

template <bool Offsets>
inline constexpr int kSigns = Offsets ? spacemit::kSignedUnsigned : spacemit::kSignedSigned;

// Two operands A (rows 0-3 and 4-7) × two operands B.
#define NYBBLE_8X8(a0, a1, b0, b1)        \
    NYBBLE_VMADOT("%[signs]", 16, a0, b0) \
    NYBBLE_VMADOT("%[signs]", 18, a0, b1) \
    NYBBLE_VMADOT("%[signs]", 20, a1, b0) \
    NYBBLE_VMADOT("%[signs]", 22, a1, b1)

// A block's end: v24..v31 = fma(sums, steps, v24..v31), fma(offsets, Σ codes, v24..v31).
#define NYBBLE_8X8_BLOCK_END                   \
    "vl4re32.v v12, (%[steps])\n\t"            \
    "addi %[steps], %[steps], 128\n\t"         \
    "vsetvli t0, zero, e32, m8, ta, ma\n\t"    \
    "vfsub.vf v16, v16, %[as_floats]\n\t"      \
    "vsetvli t0, zero, e32, m4, ta, ma\n\t"    \
    "vfmacc.vv v24, v16, v12\n\t"              \
    "vfmacc.vv v28, v20, v12\n\t"              \
    "addi %[blocks], %[blocks], -1\n\t"        \
    "beqz %[offsets], 3f\n\t"                  \
    "vl4re32.v v12, (%[offsets])\n\t"          \
    "vl4re32.v v16, (%[code_sums])\n\t"        \
    "addi %[offsets], %[offsets], 128\n\t"     \
    "addi %[code_sums], %[code_sums], 128\n\t" \
    "vsetvli t0, zero, e32, m2, ta, ma\n\t"    \
    "vfmacc.vv v24, v16, v12\n\t"              \
    "vfmacc.vv v26, v16, v14\n\t"              \
    "vfmacc.vv v28, v18, v12\n\t"              \
    "vfmacc.vv v30, v18, v14\n"                \
    "3:\n\t"

// The group's end: sums = fma(v24..v31, scales, sums).
#define NYBBLE_8X8_GROUP_END                \
    "vl4re32.v v8, (%[scales])\n\t"         \
    "vl8re32.v v16, (%[sums])\n\t"          \
    "vsetvli t0, zero, e32, m2, ta, ma\n\t" \
    "vfmacc.vv v16, v8, v24\n\t"            \
    "vfmacc.vv v18, v8, v26\n\t"            \
    "vfmacc.vv v20, v10, v28\n\t"           \
    "vfmacc.vv v22, v10, v30\n\t"           \
    "vs8r.v v16, (%[sums])"

// 8 rows × 8 channels × a group; `block` multiplies one block. Integer sums are v16-v23, totals v24-v31.
#define NYBBLE_MULTIPLY_8X8(block)                                                                            \
    __asm__ volatile(                                                                                         \
        "vsetvli t0, zero, e32, m8, ta, ma\n\t"                                                               \
        "vmv.v.i v24, 0\n\t"                                                                                  \
        "vl4re8.v v0, (%[activations])\n\t"                                                                   \
        "vl4re8.v v8, (%[codes])\n"                                                                           \
        "1:\n\t"                                                                                              \
        "vsetvli t0, zero, e32, m8, ta, ma\n\t"                                                               \
        "vmv.v.x v16, %[begin]\n\t" block NYBBLE_8X8_BLOCK_END "bnez %[blocks], 1b\n\t" NYBBLE_8X8_GROUP_END  \
        : [activations] "+r"(activations), [codes] "+r"(codes), [steps] "+r"(steps), [offsets] "+r"(offsets), \
          [code_sums] "+r"(code_sums), [blocks] "+r"(blocks)                                                  \
        : [signs] "i"(kSigns<Offsets>), [begin] "r"(kSumsBegin), [as_floats] "f"(kSumsAsFloats),              \
          [scales] "r"(group.scales), [sums] "r"(group.sums), [runs] "r"(group.runs)                          \
        : "t0", "t1", "memory", NYBBLE_VECTOR_CLOBBERS)

#define NYBBLE_8X8_BLOCK_OF_16 \
    "vsetvli t0, zero, e8, m1, ta, ma\n\t"           \
    NYBBLE_8X8(0, 1, 8, 9)                           \
    NYBBLE_8X8(2, 3, 10, 11)                         \
    "addi %[activations], %[activations], 128\n\t"   \
    "vl4re8.v v0, (%[activations])\n\t"              \
    "addi %[codes], %[codes], 128\n\t"               \
    "vl4re8.v v8, (%[codes])\n\t"

// Operands are read half a run (16 k) ahead: while v0-v3 and v8-v11 are multiplied, v4-v7 and v12-v15 are filled.
#define NYBBLE_8X8_BLOCK_OF_32 \
    "mv t1, %[runs]\n\t"                             \
    "vsetvli t0, zero, e8, m1, ta, ma\n"             \
    "2:\n\t"                                         \
    "addi %[activations], %[activations], 128\n\t"   \
    "vl4re8.v v4, (%[activations])\n\t"              \
    "addi %[codes], %[codes], 128\n\t"               \
    "vl4re8.v v12, (%[codes])\n\t"                   \
    NYBBLE_8X8(0, 1, 8, 9)                           \
    NYBBLE_8X8(2, 3, 10, 11)                         \
    "addi %[activations], %[activations], 128\n\t"   \
    "vl4re8.v v0, (%[activations])\n\t"              \
    "addi %[codes], %[codes], 128\n\t"               \
    "vl4re8.v v8, (%[codes])\n\t"                    \
    "addi t1, t1, -1\n\t"                            \
    NYBBLE_8X8(4, 5, 12, 13)                         \
    NYBBLE_8X8(6, 7, 14, 15)                         \
    "bnez t1, 2b\n\t"

template <bool Offsets, bool BlocksOf16>
inline void multiply_8x8(const TileGroup& group) {
    const int8_t* activations = group.activations;
    const uint8_t* codes = group.codes;
    const float *steps = group.steps, *offsets = group.offsets;
    const RowFactors* code_sums = group.code_sums;
    size_t blocks = group.blocks;
    if constexpr (BlocksOf16) {
        NYBBLE_MULTIPLY_8X8(NYBBLE_8X8_BLOCK_OF_16);
    } else {
        NYBBLE_MULTIPLY_8X8(NYBBLE_8X8_BLOCK_OF_32);
    }
}

#undef NYBBLE_MULTIPLY_8X8
#undef NYBBLE_8X8_BLOCK_OF_16
#undef NYBBLE_8X8_BLOCK_OF_32
#undef NYBBLE_8X8
#undef NYBBLE_8X8_BLOCK_END
#undef NYBBLE_8X8_GROUP_END

// Two operands A × four operands B.
#define NYBBLE_8X16(a0, a1, b0, b1, b2, b3) \
    NYBBLE_VMADOT("%[signs]", 16, a0, b0)   \
    NYBBLE_VMADOT("%[signs]", 18, a0, b1)   \
    NYBBLE_VMADOT("%[signs]", 20, a0, b2)   \
    NYBBLE_VMADOT("%[signs]", 22, a0, b3)   \
    NYBBLE_VMADOT("%[signs]", 24, a1, b0)   \
    NYBBLE_VMADOT("%[signs]", 26, a1, b1)   \
    NYBBLE_VMADOT("%[signs]", 28, a1, b2)   \
    NYBBLE_VMADOT("%[signs]", 30, a1, b3)

// 8 rows × 16 channels × a group that is one block. While operands B of 8 k in v8-v11 are multiplied, those of the next
// are read into v12-v15, and the other way round; operands A of 32 k are v0-v7. Sums are v16-v31.
template <bool Offsets>
inline void multiply_8x16(const TileGroup& group) {
    const int8_t* activations = group.activations;
    const uint8_t* codes = group.codes;
    __asm__ volatile(
        "vsetvli t0, zero, e32, m8, ta, ma\n\t"
        "vl8re8.v v0, (%[activations])\n\t"
        "vl4re8.v v8, (%[codes])\n\t"
        "vmv.v.x v16, %[begin]\n\t"
        "vmv.v.x v24, %[begin]\n\t"
        "addi t1, %[codes], 2047\n\t"
        "addi t1, t1, 1\n\t"
        "vsetvli t0, zero, e8, m1, ta, ma\n"
        "1:\n\t"
        "addi %[codes], %[codes], 128\n\t"
        "vl4re8.v v12, (%[codes])\n\t"
        NYBBLE_8X16(0, 1, 8, 9, 10, 11)
        "addi %[codes], %[codes], 128\n\t"
        "vl4re8.v v8, (%[codes])\n\t"
        NYBBLE_8X16(2, 3, 12, 13, 14, 15)
        "addi %[codes], %[codes], 128\n\t"
        "vl4re8.v v12, (%[codes])\n\t"
        NYBBLE_8X16(4, 5, 8, 9, 10, 11)
        "addi %[codes], %[codes], 128\n\t"
        "vl4re8.v v8, (%[codes])\n\t"
        "addi %[activations], %[activations], 256\n\t"
        NYBBLE_8X16(6, 7, 12, 13, 14, 15)
        "vl8re8.v v0, (%[activations])\n\t"
        "bne %[codes], t1, 1b\n\t"
        "vl8re32.v v8, (%[steps])\n\t"
        "vsetvli t0, zero, e32, m8, ta, ma\n\t"
        "vmv.v.i v0, 0\n\t"
        "vfsub.vf v16, v16, %[as_floats]\n\t"
        "vfsub.vf v24, v24, %[as_floats]\n\t"
        "vfmadd.vv v16, v8, v0\n\t"
        "vfmadd.vv v24, v8, v0\n\t"
        "vsetvli t0, zero, e32, m2, ta, ma\n\t"
        "beqz %[offsets], 3f\n\t"
        "vl8re32.v v0, (%[offsets])\n\t"
        "vl4re32.v v8, (%[code_sums])\n\t"
        "vfmacc.vv v16, v8, v0\n\t"
        "vfmacc.vv v18, v8, v2\n\t"
        "vfmacc.vv v20, v8, v4\n\t"
        "vfmacc.vv v22, v8, v6\n\t"
        "vfmacc.vv v24, v10, v0\n\t"
        "vfmacc.vv v26, v10, v2\n\t"
        "vfmacc.vv v28, v10, v4\n\t"
        "vfmacc.vv v30, v10, v6\n"
        "3:\n\t"
        "vl4re32.v v8, (%[scales])\n\t"
        "addi t1, %[sums], 256\n\t"
        "vl8re32.v v0, (%[sums])\n\t"
        "vfmacc.vv v0, v8, v16\n\t"
        "vfmacc.vv v2, v8, v18\n\t"
        "vfmacc.vv v4, v8, v20\n\t"
        "vfmacc.vv v6, v8, v22\n\t"
        "vs8r.v v0, (%[sums])\n\t"
        "vl8re32.v v16, (t1)\n\t"
        "vfmacc.vv v16, v10, v24\n\t"
        "vfmacc.vv v18, v10, v26\n\t"
        "vfmacc.vv v20, v10, v28\n\t"
        "vfmacc.vv v22, v10, v30\n\t"
        "vs8r.v v16, (t1)"
        : [activations] "+r"(activations), [codes] "+r"(codes)
        : [steps] "r"(group.steps), [offsets] "r"(group.offsets), [code_sums] "r"(group.code_sums),
          [signs] "i"(kSigns<Offsets>), [begin] "r"(kSumsBegin), [as_floats] "f"(kSumsAsFloats),
          [scales] "r"(group.scales), [sums] "r"(group.sums)
        : "t0", "t1", "memory", NYBBLE_VECTOR_CLOBBERS);
}

#undef NYBBLE_8X16

// Rows first..end, at most kCachedTiles tiles; the first is the first of a tile. Those from `begin` on are stored.
template <int Bits, bool Offsets, size_t TileChannels>
inline void multiply_tiles(const LinearArguments& arguments, size_t panel_index, size_t first, size_t begin, size_t end,
                           MatrixScratch& scratch) {
    constexpr size_t tile_floats = kMatrixRows * TileChannels;
    const QuantisedRows& a = arguments.quantised;
    const PanelBlocks panel(*arguments.weights, panel_index, a.block);
    const size_t tiles = (end - first + kMatrixRows - 1) / kMatrixRows, blocks_of_group = kActivationGroup / a.block;
    std::memset(scratch.sums, 0, tiles * sizeof scratch.sums[0]);
    for (size_t g = 0; g < a.groups; ++g) {
        const size_t first_block = g * blocks_of_group, blocks = std::min(blocks_of_group, a.blocks - first_block);
        spread_group<Bits, Offsets, TileChannels>(panel, a.block, first_block, blocks, scratch);
        for (size_t tile = 0; tile < tiles; ++tile) {
            const size_t row = first + tile * kMatrixRows;
            spread_rows(a.scales + g * a.row_count, row, a.row_count, scratch.scales);
            if constexpr (Offsets) {
                for (size_t b = 0; b < blocks; ++b) {
                    spread_rows(a.sums + (first_block + b) * a.row_count, row, a.row_count, scratch.code_sums[b]);
                }
            }
            TileGroup group{a.tile_of(g, row), scratch.codes,   scratch.steps, Offsets ? scratch.offsets : nullptr,
                            scratch.code_sums, &scratch.scales, blocks,        a.block / 32,
                            scratch.sums[tile]};
            for (size_t channel = 0; channel < kPanelChannels; channel += TileChannels) {
                if constexpr (TileChannels == 16) {
                    multiply_8x16<Offsets>(group);
                } else if (a.block == 16) {
                    multiply_8x8<Offsets, true>(group);
                } else {
                    multiply_8x8<Offsets, false>(group);
                }
                group.codes += TileChannels * kActivationGroup;
                group.steps += blocks * TileChannels * 4;
                if constexpr (Offsets) group.offsets += blocks * TileChannels * 4;
                group.sums += tile_floats;
            }
        }
    }
    for (size_t row = begin; row < end; ++row) {
        const size_t in_tile = (row - first) % kMatrixRows;
        const float* sums = scratch.sums[(row - first) / kMatrixRows];
        constexpr size_t operands = TileChannels / kMatrixChannels;
        alignas(64) float row_sums[kPanelChannels];
        for (size_t operand = 0; operand < kPanelChannels / kMatrixChannels; ++operand) {
            const size_t place = operand / operands * tile_floats + (in_tile / 4 * operands + operand % operands) * 16 +
                                 in_tile % 4 * kMatrixChannels;
            std::memcpy(row_sums + operand * kMatrixChannels, sums + place, kMatrixChannels * sizeof(float));
        }
        for (size_t lane = 0; lane < kPanelChannels; lane += kLaneCount) {
            const Floats whole = add_line_outliers<Bits, Offsets>(a, panel, lane, row, load(row_sums + lane));
            store_outputs(arguments, row, panel_index * kPanelChannels + lane, whole);
        }
    }
}

template <int Bits, bool Offsets>
inline void multiply_matrix(const LinearArguments& arguments, size_t panel, size_t begin, size_t end,
                            MatrixScratch& scratch) {
    const size_t first = begin / kMatrixRows * kMatrixRows, tiles = (end - first + kMatrixRows - 1) / kMatrixRows;
    const size_t parts = (tiles + kCachedTiles - 1) / kCachedTiles;
    for (size_t part = 0; part < parts; ++part) {
        const size_t from = first + tiles * part / parts * kMatrixRows;
        const size_t to = std::min(end, first + tiles * (part + 1) / parts * kMatrixRows);
        if (arguments.quantised.block == kActivationGroup) {
            multiply_tiles<Bits, Offsets, 16>(arguments, panel, from, std::max(begin, from), to, scratch);
        } else {
            multiply_tiles<Bits, Offsets, 8>(arguments, panel, from, std::max(begin, from), to, scratch);
        }
    }
}

}  // namespace nybble::NYBBLE_ISA
