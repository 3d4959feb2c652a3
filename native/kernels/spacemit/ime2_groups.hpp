// What IME2 (A100 cores, VLEN 1024) multiplies at a time: a group of activations (128 features) of one row, or of a
// tile of eight, with a panel of 32 channels. Assembly, because matrix instructions have no intrinsics.
//
// A line of weights fills four registers, with 8 channels each: 32 4-bit codes of a channel, or 16 of 8 bits. A matrix
// instruction multiplies one of them with the same features of eight rows, and adds to a register for rows 0-3 and the
// next for rows 4-7: a row after another, 8 channels each. Activations meet 4-bit codes in two halves,
// a = 16 · high + low with a signed high and an unsigned low: two products, as exact as one. 4-bit codes that share
// bytes with other channels' become bytes instead: 16 of a channel fill what an instruction takes, so that blocks of 16
// do.
//
//   v0-v7    fp32 totals of the group: for each 8 channels rows 0-3 and rows 4-7
//   v8-v15   integer sums of a block, likewise; of 4-bit codes those with the low halves
//   v16-v23  those with the high halves; then factors of channels
//   v24-v27  a line of codes
//   v28 v29  activations, for 4-bit codes low and high halves; then factors of rows
//   v30 v31  lane numbers
// Of a single row: v0 its totals, v4 v5 its masks, v16-v23 its sums on their way to one register.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/spacemit/sums.hpp"
#include "kernels/spacemit/words.hpp"

namespace nybble::NYBBLE_ISA {

inline constexpr size_t kMatrixRows = 8;
inline constexpr size_t kRegisterFloats = 32;
inline constexpr size_t kLineBytes = 512;

// Where a group of a panel lies and what it is multiplied with, in a tile of rows.
struct MatrixGroup {
    const uint8_t* codes;       // of the first block
    size_t block_stride;        // bytes from one block to the next
    size_t blocks;              // at least 1
    const int8_t* activations;  // of the row or tile
    const float* scales;        // of activations: rows side by side
    const float* code_sums;     // of activations: of the first block, rows side by side
    size_t code_sums_stride;    // bytes from one block to the next
};

// How far a single row has come in a panel.
struct RowStream {
    const uint8_t* codes;
    const uint16_t* factors;  // scales and, with offsets, offsets
    const int8_t* activations;
    const float* code_sums;
};

// Lane numbers: of what rows have, for rows 0-3 and 4-7; of what channels have, for each 8 channels.
struct LaneNumbers {
    alignas(64) uint32_t of_rows[2][kRegisterFloats];
    alignas(64) uint32_t of_channels[4][kRegisterFloats];
};

// What makes operands of a single row of its halves: which bits of what follows the row's features stay, and which
// are flipped then.
struct RowMasks {
    alignas(128) uint8_t kept[128];
    alignas(128) uint8_t flipped[128];
};

inline constexpr RowMasks kRowMasks = [] {
    RowMasks masks{};
    for (int i = 0; i < 32; ++i) masks.kept[i] = 0xff;
    for (int i = 0; i < 16; ++i) masks.flipped[i] = masks.flipped[32 + i] = 0x88;
    return masks;
}();

inline constexpr LaneNumbers kLanes = [] {
    LaneNumbers lanes{};
    for (uint32_t lane = 0; lane < kRegisterFloats; ++lane) {
        for (uint32_t half = 0; half < 2; ++half) lanes.of_rows[half][lane] = 4 * half + lane / 8;
        for (uint32_t eight = 0; eight < 4; ++eight) lanes.of_channels[eight][lane] = 8 * eight + lane % 8;
    }
    return lanes;
}();

// clang-format off

// v24-v27 times `activations`.
#define NYBBLE_MATRICES(word, d0, d1, d2, d3, activations) \
    word(d0, activations, 24)                              \
    word(d1, activations, 25)                              \
    word(d2, activations, 26)                              \
    word(d3, activations, 27)

// Activations of a line. A register holds those of eight rows, 16 bytes each. Of a single row it holds what follows in
// place of the others, which is multiplied for nothing.
#define NYBBLE_TILE_8                                 \
    "vl1re8.v v28, (%[activations])\n\t"              \
    "addi %[activations], %[activations], 128\n\t"
#define NYBBLE_TILE_4                                 \
    "vl2re8.v v28, (%[activations])\n\t"              \
    "addi %[activations], %[activations], 256\n\t"
#define NYBBLE_ROW_8                                  \
    "vl1re8.v v28, (%[activations])\n\t"              \
    "addi %[activations], %[activations], 16\n\t"

// v8-v15 = the sums of a block, with LMUL 8 at the end.
#define NYBBLE_SUMS_8(activations, word)              \
    "vsetvli t0, zero, e32, m8, ta, ma\n\t"           \
    "vmv.v.x v8, %[sums_begin]\n\t"                   \
    "vsetvli t0, zero, e8, m1, ta, ma\n\t"            \
    ".rept %[lines]\n\t"                              \
    "vl4re8.v v24, (%[codes])\n\t"                    \
    "addi %[codes], %[codes], 512\n\t"                \
    activations                                       \
    NYBBLE_MATRICES(word, 8, 10, 12, 14, 28)          \
    ".endr\n\t"                                       \
    "add %[codes], %[codes], %[gap]\n\t"              \
    "vsetvli t0, zero, e32, m8, ta, ma\n\t"
#define NYBBLE_SUMS_4(activations, low, high)         \
    "vsetvli t0, zero, e32, m8, ta, ma\n\t"           \
    "vmv.v.x v8, %[sums_begin]\n\t"                   \
    "vmv.v.i v16, 0\n\t"                              \
    "vsetvli t0, zero, e8, m1, ta, ma\n\t"            \
    ".rept %[lines]\n\t"                              \
    "vl4re8.v v24, (%[codes])\n\t"                    \
    "addi %[codes], %[codes], 512\n\t"                \
    activations                                       \
    NYBBLE_MATRICES(low, 8, 10, 12, 14, 28)           \
    NYBBLE_MATRICES(high, 16, 18, 20, 22, 29)         \
    ".endr\n\t"                                       \
    "add %[codes], %[codes], %[gap]\n\t"              \
    "vsetvli t0, zero, e32, m8, ta, ma\n\t"           \
    "vmacc.vx v8, %[sixteen], v16\n\t"

// Of halves of bytes: a line is half as long, and codes times 16 where they are signed.
#define NYBBLE_SUMS_OF_HALVES(low, high, word)        \
    "vsetvli t0, zero, e32, m8, ta, ma\n\t"           \
    "vmv.v.x v8, %[sums_begin]\n\t"                   \
    ".rept %[lines]\n\t"                              \
    "vsetvli t0, zero, e8, m2, ta, ma\n\t"            \
    "vl2re8.v v24, (%[codes])\n\t"                    \
    "addi %[codes], %[codes], 256\n\t"                \
    high                                              \
    low                                               \
    "vsetvli t0, zero, e8, m1, ta, ma\n\t"            \
    NYBBLE_ROW_8                                      \
    NYBBLE_MATRICES(word, 8, 10, 12, 14, 28)          \
    ".endr\n\t"                                       \
    "add %[codes], %[codes], %[gap]\n\t"

// Of a single row. The first two rows of an operand are its low and its high halves, as they lie; the low ones become
// low − 8, which is as signed as the high ones are, and the third row is made of −8s. So the sums of three rows come at
// once: Σ (16 · high + low) · code = 16 · the second + the first − the third.
#define NYBBLE_SUMS_OF_ROW_4(word)                    \
    "vsetvli t0, zero, e32, m8, ta, ma\n\t"           \
    "vmv.v.i v8, 0\n\t"                               \
    "vsetvli t0, zero, e8, m1, ta, ma\n\t"            \
    ".rept %[lines]\n\t"                              \
    "vl4re8.v v24, (%[codes])\n\t"                    \
    "addi %[codes], %[codes], 512\n\t"                \
    "vl1re8.v v28, (%[activations])\n\t"              \
    "addi %[activations], %[activations], 32\n\t"     \
    "vand.vv v28, v28, v4\n\t"                        \
    "vxor.vv v28, v28, v5\n\t"                        \
    NYBBLE_MATRICES(word, 8, 10, 12, 14, 28)          \
    ".endr\n\t"                                       \
    "add %[codes], %[codes], %[gap]\n\t"

// v28, v29 = what each of eight rows has in v24, for the lanes of rows 0-3 and 4-7.
#define NYBBLE_REPEAT_ROWS                            \
    "vrgather.vv v28, v24, v30\n\t"                   \
    "vrgather.vv v29, v24, v31\n\t"

// The totals += offsets of channels × sums of the rows' codes.
#define NYBBLE_TILE_OFFSETS                           \
    "vl4re32.v v20, (%[factors])\n\t"                 \
    "addi %[factors], %[factors], 512\n\t"            \
    "vl1re32.v v24, (%[code_sums])\n\t"               \
    "add %[code_sums], %[code_sums], %[stride]\n\t"   \
    NYBBLE_REPEAT_ROWS                                \
    "vfmacc.vv v0, v20, v28\n\t"                      \
    "vfmacc.vv v1, v20, v29\n\t"                      \
    "vfmacc.vv v2, v21, v28\n\t"                      \
    "vfmacc.vv v3, v21, v29\n\t"                      \
    "vfmacc.vv v4, v22, v28\n\t"                      \
    "vfmacc.vv v5, v22, v29\n\t"                      \
    "vfmacc.vv v6, v23, v28\n\t"                      \
    "vfmacc.vv v7, v23, v29\n\t"

#define NYBBLE_MULTIPLY_TILE(sums, add_offsets)                                                                     \
    __asm__ volatile(                                                                                               \
        "vl2re32.v v30, (%[lanes])\n\t"                                                                             \
        "vsetvli t0, zero, e32, m8, ta, ma\n\t"                                                                     \
        "vmv.v.i v0, 0\n"                                                                                           \
        "1:\n\t"                                                                                                    \
        sums                                                                                                        \
        "vfsub.vf v8, v8, %[sums_as_floats]\n\t"                                                                    \
        "vl4re32.v v16, (%[factors])\n\t"                                                                           \
        "addi %[factors], %[factors], 512\n\t"                                                                      \
        "vsetvli t0, zero, e32, m1, ta, ma\n\t"                                                                     \
        "vfmacc.vv v0, v8, v16\n\t"                                                                                 \
        "vfmacc.vv v1, v9, v16\n\t"                                                                                 \
        "vfmacc.vv v2, v10, v17\n\t"                                                                                \
        "vfmacc.vv v3, v11, v17\n\t"                                                                                \
        "vfmacc.vv v4, v12, v18\n\t"                                                                                \
        "vfmacc.vv v5, v13, v18\n\t"                                                                                \
        "vfmacc.vv v6, v14, v19\n\t"                                                                                \
        "vfmacc.vv v7, v15, v19\n\t"                                                                                \
        add_offsets                                                                                                 \
        "addi %[blocks], %[blocks], -1\n\t"                                                                         \
        "bnez %[blocks], 1b\n\t"                                                                                    \
        "vl1re32.v v24, (%[scales])\n\t"                                                                            \
        "vl8re32.v v8, (%[to])\n\t"                                                                                 \
        NYBBLE_REPEAT_ROWS                                                                                          \
        "vfmacc.vv v8, v0, v28\n\t"                                                                                 \
        "vfmacc.vv v9, v1, v29\n\t"                                                                                 \
        "vfmacc.vv v10, v2, v28\n\t"                                                                                \
        "vfmacc.vv v11, v3, v29\n\t"                                                                                \
        "vfmacc.vv v12, v4, v28\n\t"                                                                                \
        "vfmacc.vv v13, v5, v29\n\t"                                                                                \
        "vfmacc.vv v14, v6, v28\n\t"                                                                                \
        "vfmacc.vv v15, v7, v29\n\t"                                                                                \
        "vs8r.v v8, (%[to])"                                                                                        \
        : [codes] "+r"(codes), [activations] "+r"(activations), [factors] "+r"(factors),                            \
          [code_sums] "+r"(code_sums), [blocks] "+r"(blocks)                                                        \
        : [lines] "i"(Lines), [gap] "r"(gap), [stride] "r"(group.code_sums_stride), [scales] "r"(group.scales),     \
          [to] "r"(to), [lanes] "r"(kLanes.of_rows), [sixteen] "r"(16), [sums_begin] "r"(kSumsBegin),               \
          [sums_as_floats] "f"(kSumsAsFloats)                                                                       \
        : "t0", "memory", NYBBLE_VECTOR_CLOBBERS)

// A group of a tile of eight rows, added to `to`: eight registers that lie as the totals do. `factors` are those of each
// block as repeat_factors leaves them: scales and, with offsets, offsets. Codes without offsets are signed.
template <int Bits, bool Offsets, int Lines>
inline void multiply_tile(const MatrixGroup& group, const float* factors, float* to) {
    const uint8_t* codes = group.codes;
    const int8_t* activations = group.activations;
    const float* code_sums = group.code_sums;
    size_t blocks = group.blocks;
    const size_t gap = group.block_stride - Lines * kLineBytes;
    if constexpr (Bits == 4 && Offsets) {
        NYBBLE_MULTIPLY_TILE(NYBBLE_SUMS_4(NYBBLE_TILE_4, NYBBLE_VMADOT_UU_4, NYBBLE_VMADOT_SU_4), NYBBLE_TILE_OFFSETS);
    } else if constexpr (Bits == 4) {
        NYBBLE_MULTIPLY_TILE(NYBBLE_SUMS_4(NYBBLE_TILE_4, NYBBLE_VMADOT_US_4, NYBBLE_VMADOT_SS_4), );
    } else if constexpr (Offsets) {
        NYBBLE_MULTIPLY_TILE(NYBBLE_SUMS_8(NYBBLE_TILE_8, NYBBLE_VMADOT_SU_8), NYBBLE_TILE_OFFSETS);
    } else {
        NYBBLE_MULTIPLY_TILE(NYBBLE_SUMS_8(NYBBLE_TILE_8, NYBBLE_VMADOT_SS_8), );
    }
}

// fp32 factors of 32 channels as tiles read them: those of each 8 channels for four rows.
inline void repeat_factors(const uint16_t* halves, float* to) {
    __asm__ volatile(
        "vsetvli t0, zero, e16, mf2, ta, ma\n\t"
        "vle16.v v8, (%[halves])\n\t"
        "vfwcvt.f.f.v v24, v8\n\t"
        "vl4re32.v v28, (%[lanes])\n\t"
        "vsetvli t0, zero, e32, m1, ta, ma\n\t"
        "vrgather.vv v16, v24, v28\n\t"
        "vrgather.vv v17, v24, v29\n\t"
        "vrgather.vv v18, v24, v30\n\t"
        "vrgather.vv v19, v24, v31\n\t"
        "vs4r.v v16, (%[to])"
        :
        : [halves] "r"(halves), [to] "r"(to), [lanes] "r"(kLanes.of_channels)
        : "t0", "memory", NYBBLE_VECTOR_CLOBBERS);
}

// What multiply_tile added up, in place: row by row, 32 channels each.
inline void sort_by_rows(float* sums) {
    __asm__ volatile(
        "vsetvli t0, zero, e32, m1, ta, ma\n\t"
        "vl8re32.v v8, (%[sums])\n\t"
        NYBBLE_VPACK_256(0, 8, 10)    // channels 0-15 of rows 0 and 1, of rows 2 and 3
        NYBBLE_VPACK_256(2, 12, 14)   // channels 16-31
        NYBBLE_VPACK_256(4, 9, 11)    // of rows 4 and 5, of rows 6 and 7
        NYBBLE_VPACK_256(6, 13, 15)
        NYBBLE_VPACK_512(16, 0, 2)
        NYBBLE_VPACK_512(18, 1, 3)
        NYBBLE_VPACK_512(20, 4, 6)
        NYBBLE_VPACK_512(22, 5, 7)
        "vs8r.v v16, (%[sums])"
        :
        : [sums] "r"(sums)
        : "t0", "memory", NYBBLE_VECTOR_CLOBBERS);
}

#define NYBBLE_LOAD_ROW_OFFSETS                       \
    "vle16.v v26, (%[offsets])\n\t"                   \
    "add %[offsets], %[offsets], %[block_stride]\n\t" \
    "vfwcvt.f.f.v v27, v26\n\t"                       \
    "flw ft0, (%[code_sums])\n\t"                     \
    "addi %[code_sums], %[code_sums], 4\n\t"

// The sums of a row are the first 8 lanes of v8, v10, v12 and v14; they become one register of floats.
#define NYBBLE_JOIN_ROW                               \
    "vslideup.vi v8, v10, 8\n\t"                      \
    "vslideup.vi v8, v12, 16\n\t"                     \
    "vslideup.vi v8, v14, 24\n\t"                     \
    "vfsub.vf v8, v8, %[sums_as_floats]\n\t"
// So do those of three rows, which are the first 24.
#define NYBBLE_JOIN_ROWS                              \
    NYBBLE_VPACK_256(16, 8, 10)                       \
    NYBBLE_VPACK_256(18, 12, 14)                      \
    NYBBLE_VPACK_512(20, 16, 18)                      \
    NYBBLE_VPACK_512(22, 17, 19)                      \
    "vmacc.vx v20, %[sixteen], v21\n\t"               \
    "vsub.vv v20, v20, v22\n\t"                       \
    "vfcvt.f.x.v v8, v20\n\t"

#define NYBBLE_MULTIPLY_ROW(begin, sums, join, load_offsets, add_offsets)                                           \
    __asm__ volatile(                                                                                               \
        begin                                                                                                       \
        "vsetvli t0, zero, e32, m1, ta, ma\n\t"                                                                     \
        "vmv.v.i v0, 0\n"                                                                                           \
        "1:\n\t"                                                                                                    \
        sums                                                                                                        \
        "vsetvli t0, zero, e16, mf2, ta, ma\n\t"                                                                    \
        "vle16.v v24, (%[factors])\n\t"                                                                             \
        "add %[factors], %[factors], %[block_stride]\n\t"                                                           \
        "vfwcvt.f.f.v v25, v24\n\t"                                                                                 \
        load_offsets                                                                                                \
        "vsetvli t0, zero, e32, m1, ta, ma\n\t"                                                                     \
        join                                                                                                        \
        "vfmacc.vv v0, v8, v25\n\t"                                                                                 \
        add_offsets                                                                                                 \
        "addi %[blocks], %[blocks], -1\n\t"                                                                         \
        "bnez %[blocks], 1b\n\t"                                                                                    \
        "vl1re32.v v1, (%[to])\n\t"                                                                                 \
        "vfmacc.vf v1, %[scale], v0\n\t"                                                                            \
        "vs1r.v v1, (%[to])"                                                                                        \
        : [codes] "+r"(at.codes), [activations] "+r"(at.activations), [factors] "+r"(at.factors),                   \
          [offsets] "+r"(offsets), [code_sums] "+r"(at.code_sums), [blocks] "+r"(blocks)                            \
        : [lines] "i"(Lines), [gap] "r"(gap), [scale] "f"(scale), [block_stride] "r"(block_stride), [to] "r"(to),   \
          [sixteen] "r"(16), [sums_begin] "r"(kSumsBegin), [sums_as_floats] "f"(kSumsAsFloats),                     \
          [masks] "r"(&kRowMasks)                                                                                   \
        : "t0", "ft0", "memory", NYBBLE_VECTOR_CLOBBERS)

// `blocks` of a group of one row, times the group's scale added to the 32 floats of `to`. Codes that are `Halves` of
// bytes count 16 times where they have no offsets.
template <int Bits, bool Halves, bool Offsets, int Lines>
inline void multiply_row(RowStream& at, size_t blocks, size_t block_stride, float scale, float* to) {
    const uint16_t* offsets = at.factors + kRegisterFloats;
    const size_t gap = block_stride - Lines * kLineBytes / (Halves ? 2 : 1);
    if constexpr (Halves && Offsets) {
        NYBBLE_MULTIPLY_ROW(, NYBBLE_SUMS_OF_HALVES("vand.vi v24, v24, 15\n\t", "vsrl.vi v26, v24, 4\n\t",
                                                    NYBBLE_VMADOT_SU_8),
                            NYBBLE_JOIN_ROW, NYBBLE_LOAD_ROW_OFFSETS, "vfmacc.vf v0, ft0, v27\n\t");
    } else if constexpr (Halves) {
        NYBBLE_MULTIPLY_ROW(, NYBBLE_SUMS_OF_HALVES("vsll.vi v24, v24, 4\n\t", "vand.vi v26, v24, -16\n\t",
                                                    NYBBLE_VMADOT_SS_8),
                            NYBBLE_JOIN_ROW, , );
    } else if constexpr (Bits == 4 && Offsets) {
        NYBBLE_MULTIPLY_ROW("vl2re8.v v4, (%[masks])\n\t", NYBBLE_SUMS_OF_ROW_4(NYBBLE_VMADOT_SU_4), NYBBLE_JOIN_ROWS,
                            NYBBLE_LOAD_ROW_OFFSETS, "vfmacc.vf v0, ft0, v27\n\t");
    } else if constexpr (Bits == 4) {
        NYBBLE_MULTIPLY_ROW("vl2re8.v v4, (%[masks])\n\t", NYBBLE_SUMS_OF_ROW_4(NYBBLE_VMADOT_SS_4), NYBBLE_JOIN_ROWS,
                            , );
    } else if constexpr (Offsets) {
        NYBBLE_MULTIPLY_ROW(, NYBBLE_SUMS_8(NYBBLE_ROW_8, NYBBLE_VMADOT_SU_8), NYBBLE_JOIN_ROW, NYBBLE_LOAD_ROW_OFFSETS,
                            "vfmacc.vf v0, ft0, v27\n\t");
    } else {
        NYBBLE_MULTIPLY_ROW(, NYBBLE_SUMS_8(NYBBLE_ROW_8, NYBBLE_VMADOT_SS_8), NYBBLE_JOIN_ROW, , );
    }
}

// The codes of a block's `lines`, halves of bytes, as bytes in lines of their own; signed where they have no offsets.
template <bool Offsets>
inline void spread_halves(const uint8_t* codes, size_t lines, uint8_t* to) {
    __asm__ volatile(
        "vsetvli t0, zero, e8, m2, ta, ma\n"
        "1:\n\t"
        "vl2re8.v v8, (%[codes])\n\t"
        "addi %[codes], %[codes], 256\n\t"
        ".if %[has_offsets]\n\t"
        "vsrl.vi v10, v8, 4\n\t"
        "vand.vi v8, v8, 15\n\t"
        ".else\n\t"
        "vsra.vi v10, v8, 4\n\t"
        "vsll.vi v8, v8, 4\n\t"
        "vsra.vi v8, v8, 4\n\t"
        ".endif\n\t"
        "vs4r.v v8, (%[to])\n\t"
        "addi %[to], %[to], 512\n\t"
        "addi %[lines], %[lines], -1\n\t"
        "bnez %[lines], 1b"
        : [codes] "+r"(codes), [to] "+r"(to), [lines] "+r"(lines)
        : [has_offsets] "i"(Offsets)
        : "t0", "memory", NYBBLE_VECTOR_CLOBBERS);
}

// clang-format on

}  // namespace nybble::NYBBLE_ISA
