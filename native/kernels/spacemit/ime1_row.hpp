// One row of activations × a panel of panel32k8 on IME1: decode.
//
// An A operand is 4 rows × 8 k. A register of the row's activations is such an operand, of which only the first row,
// its lowest 8 bytes, means anything, and so only the first 4 lanes of each sum; those of 8 operands B are brought
// together once a block. The next 8 activations are slid to the bottom. Packed codes are read in one stream, each 128
// bytes before the 128 ahead of them are multiplied.
#pragma once

#include <cstring>

#include "kernels/generic/linear_int8_k8.hpp"
#include "kernels/spacemit/sums.hpp"
#include "kernels/spacemit/words.hpp"

namespace nybble::NYBBLE_ISA {

// A group of activations and the blocks it meets.
struct RowGroup {
    const int8_t* activations;  // one after the other
    const uint8_t* codes;       // of the first block
    const uint16_t* scales;     // likewise; offsets follow
    const int32_t* starts;      // of each block, `stride` bytes apart
    const float* code_sums;     // likewise
    size_t stride;
    size_t blocks;
    size_t runs;         // of 32 k in a block; 0: it is 16
    size_t block_bytes;  // from block to block
    size_t gap;          // from the codes of a block to the next one's
    float scale;         // of the activations
};

// Sums are the even registers from v16 on, 4 channels each, in the order that lets two moves bring them together. Those
// of the first and of the second 16 channels += A (signed) · B (unsigned codes).
#define NYBBLE_FIRST_HALF(a, b0, b1, b2, b3) \
    NYBBLE_VMADOT("2", 16, a, b0)            \
    NYBBLE_VMADOT("2", 20, a, b1)            \
    NYBBLE_VMADOT("2", 24, a, b2)            \
    NYBBLE_VMADOT("2", 26, a, b3)
#define NYBBLE_SECOND_HALF(a, b0, b1, b2, b3) \
    NYBBLE_VMADOT("2", 18, a, b0)             \
    NYBBLE_VMADOT("2", 22, a, b1)             \
    NYBBLE_VMADOT("2", 28, a, b2)             \
    NYBBLE_VMADOT("2", 30, a, b3)

#define NYBBLE_CODES(to)               \
    "addi %[codes], %[codes], 128\n\t" \
    "vl4re8.v v" #to ", (%[codes])\n\t"

// As NYBBLE_CODES unless this was the block's last run.
#define NYBBLE_CODES_OF_NEXT_RUN       \
    "addi %[codes], %[codes], 128\n\t" \
    "addi t2, t2, -1\n\t"              \
    "beqz t2, 3f\n\t"                  \
    "vl4re8.v v4, (%[codes])\n"        \
    "3:\n\t"

#define NYBBLE_ACTIVATIONS(bytes)       \
    "vl1re8.v v2, (%[activations])\n\t" \
    "addi %[activations], %[activations], " #bytes "\n\t"
#define NYBBLE_SLIDE(to, bytes) "vslidedown.vi v" #to ", v2, " #bytes "\n\t"

// 4 bits: low halves stay where they were, high ones come to v8-v11.
#define NYBBLE_UNPACK(codes)               \
    "vsetvli t0, zero, e8, m4, ta, ma\n\t" \
    "vsrl.vi v8, v" #codes                 \
    ", 4\n\t"                              \
    "vand.vi v" #codes ", v" #codes ", 15\n\t"
#define NYBBLE_AS_BYTES "vsetvli t0, zero, e8, m1, ta, ma\n\t"

#define NYBBLE_FIRST_HALF_OF_LINE    \
    NYBBLE_UNPACK(4)                 \
    NYBBLE_CODES(12)                 \
    NYBBLE_AS_BYTES                  \
    NYBBLE_SLIDE(3, 8)               \
    NYBBLE_FIRST_HALF(2, 4, 5, 6, 7) \
    NYBBLE_FIRST_HALF(3, 8, 9, 10, 11)
#define NYBBLE_SECOND_HALF_OF_LINE(codes_of_next) \
    NYBBLE_UNPACK(12)                             \
    codes_of_next NYBBLE_AS_BYTES NYBBLE_SECOND_HALF(2, 12, 13, 14, 15) NYBBLE_SECOND_HALF(3, 8, 9, 10, 11)

#define NYBBLE_RUN_4                            \
    NYBBLE_ACTIVATIONS(32)                      \
    NYBBLE_FIRST_HALF_OF_LINE                   \
    NYBBLE_SECOND_HALF_OF_LINE(NYBBLE_CODES(4)) \
    NYBBLE_SLIDE(2, 16)                         \
    NYBBLE_FIRST_HALF_OF_LINE                   \
    NYBBLE_SECOND_HALF_OF_LINE(NYBBLE_CODES_OF_NEXT_RUN)
#define NYBBLE_HALF_RUN_4     \
    NYBBLE_ACTIVATIONS(16)    \
    NYBBLE_FIRST_HALF_OF_LINE \
    NYBBLE_SECOND_HALF_OF_LINE("addi %[codes], %[codes], 128\n\t")

// 8 bits.
#define NYBBLE_LINE_8(a, codes_of_next) \
    NYBBLE_CODES(8)                     \
    NYBBLE_FIRST_HALF(a, 4, 5, 6, 7)    \
    codes_of_next NYBBLE_SECOND_HALF(a, 8, 9, 10, 11)

#define NYBBLE_RUN_8                  \
    NYBBLE_AS_BYTES                   \
    NYBBLE_ACTIVATIONS(32)            \
    NYBBLE_SLIDE(3, 8)                \
    NYBBLE_LINE_8(2, NYBBLE_CODES(4)) \
    NYBBLE_SLIDE(2, 16)               \
    NYBBLE_LINE_8(3, NYBBLE_CODES(4)) \
    NYBBLE_SLIDE(3, 8)                \
    NYBBLE_LINE_8(2, NYBBLE_CODES(4)) \
    NYBBLE_LINE_8(3, NYBBLE_CODES_OF_NEXT_RUN)
#define NYBBLE_HALF_RUN_8             \
    NYBBLE_AS_BYTES                   \
    NYBBLE_ACTIVATIONS(16)            \
    NYBBLE_SLIDE(3, 8)                \
    NYBBLE_LINE_8(2, NYBBLE_CODES(4)) \
    NYBBLE_LINE_8(3, "addi %[codes], %[codes], 128\n\t")

// Where a block's sums begin. Codes are multiplied from the bottom of their byte, by scales for steps: the same
// product, exactly.
#define NYBBLE_START                          \
    "lw t1, (%[starts])\n\t"                  \
    "add %[starts], %[starts], %[stride]\n\t" \
    "sraiw t1, t1, 8 - %[bits]\n\t"           \
    "addw t1, t1, %[begin]\n\t" NYBBLE_SUMS_BEGIN_AT("t1")
#define NYBBLE_SUMS_BEGIN_AT(value)         \
    "vsetvli t0, zero, e32, m8, ta, ma\n\t" \
    "vmv.v.x v16, " value                   \
    "\n\t"                                  \
    "vmv.v.x v24, " value "\n\t"

// The 32 sums go to v16-v19, lane by lane; then totals = fma(sum, step, totals). The next block's codes are on their
// way.
#define NYBBLE_BLOCK_END                    \
    "addi %[blocks], %[blocks], -1\n\t"     \
    "add %[codes], %[codes], %[gap]\n\t"    \
    "beqz %[blocks], 4f\n\t"                \
    "vl4re8.v v4, (%[codes])\n"             \
    "4:\n\t"                                \
    "vsetivli zero, 8, e32, m1, ta, ma\n\t" \
    "vslideup.vi v16, v20, 4\n\t"           \
    "vslideup.vi v18, v22, 4\n\t"           \
    "vmv1r.v v17, v24\n\t"                  \
    "vslideup.vi v17, v26, 4\n\t"           \
    "vmv1r.v v19, v28\n\t"                  \
    "vslideup.vi v19, v30, 4\n\t"           \
    "vsetvli t0, zero, e16, m2, ta, ma\n\t" \
    "vle16.v v2, (%[scales])\n\t"           \
    "vfwcvt.f.f.v v12, v2\n\t"
#define NYBBLE_ADD_SCALED                          \
    "add %[scales], %[scales], %[block_bytes]\n\t" \
    "vsetvli t0, zero, e32, m4, ta, ma\n\t"        \
    "vle32.v v8, (%[totals])\n\t"                  \
    "vfsub.vf v16, v16, %[as_floats]\n\t"          \
    "vfmacc.vv v8, v16, v12\n\t"
#define NYBBLE_TOTALS_ARE_V8      \
    "vse32.v v8, (%[totals])\n\t" \
    "bnez %[blocks], 1b\n\t"

// The group's end: sums = fma(totals, scale, sums), totals = 0.
#define NYBBLE_GROUP_END              \
    "vle32.v v16, (%[sums])\n\t"      \
    "vfmacc.vf v16, %[scale], v8\n\t" \
    "vse32.v v16, (%[sums])\n\t"      \
    "vmv.v.i v8, 0\n\t"               \
    "vse32.v v8, (%[totals])"

// Then fma(offset, Σ codes, totals) where there are offsets.
#define NYBBLE_OFFSETS           \
    "addi t1, %[scales], 64\n\t" \
    "vle16.v v2, (t1)\n\t"       \
    "vfwcvt.f.f.v v20, v2\n\t"
#define NYBBLE_ADD_OFFSETS                          \
    "flw ft0, (%[code_sums])\n\t"                   \
    "add %[code_sums], %[code_sums], %[stride]\n\t" \
    "vfmacc.vf v8, ft0, v20\n\t"

#define NYBBLE_MULTIPLY_BLOCKS(start, run, end)                                                          \
    __asm__ volatile(                                                                                    \
        "vl4re8.v v4, (%[codes])\n"                                                                      \
        "1:\n\t" start                                                                                   \
        "mv t2, %[runs]\n"                                                                               \
        "2:\n\t" run "bnez t2, 2b\n\t" end NYBBLE_GROUP_END                                              \
        : [codes] "+r"(group.codes), [activations] "+r"(group.activations), [scales] "+r"(group.scales), \
          [starts] "+r"(group.starts), [code_sums] "+r"(group.code_sums), [blocks] "+r"(group.blocks)    \
        : [stride] "r"(group.stride), [runs] "r"(group.runs), [block_bytes] "r"(group.block_bytes),      \
          [gap] "r"(group.gap), [totals] "r"(totals), [sums] "r"(sums), [scale] "f"(group.scale),        \
          [begin] "r"(kSumsBegin), [as_floats] "f"(kSumsAsFloats), [bits] "i"(Bits)                      \
        : "t0", "t1", "t2", "ft0", "memory", NYBBLE_VECTOR_CLOBBERS)

#define NYBBLE_MULTIPLY_GROUP(run)                                                                          \
    if constexpr (Offsets) {                                                                                \
        NYBBLE_MULTIPLY_BLOCKS(                                                                             \
            NYBBLE_SUMS_BEGIN_AT("%[begin]"), run,                                                          \
            NYBBLE_BLOCK_END NYBBLE_OFFSETS NYBBLE_ADD_SCALED NYBBLE_ADD_OFFSETS NYBBLE_TOTALS_ARE_V8);     \
    } else {                                                                                                \
        NYBBLE_MULTIPLY_BLOCKS(NYBBLE_START, run, NYBBLE_BLOCK_END NYBBLE_ADD_SCALED NYBBLE_TOTALS_ARE_V8); \
    }

// sums[32] = fma(totals, scale, sums); totals[32], zeros before and after, = fma(Σ code · activation, step, totals),
// block by block, each with its offset.
template <int Bits, bool Offsets>
[[gnu::always_inline]] inline void multiply_row_group(RowGroup& group, float* totals, float* sums) {
    if (Bits == 4 && group.runs != 0) {
        NYBBLE_MULTIPLY_GROUP(NYBBLE_RUN_4)
    } else if (Bits == 4) {
        NYBBLE_MULTIPLY_GROUP(NYBBLE_HALF_RUN_4)
    } else if (group.runs != 0) {
        NYBBLE_MULTIPLY_GROUP(NYBBLE_RUN_8)
    } else {
        NYBBLE_MULTIPLY_GROUP(NYBBLE_HALF_RUN_8)
    }
}

// The row's 128 activations of a group, one after the other: in `to`, unless they lie so.
inline const int8_t* row_activations(const QuantisedRows& a, size_t g, size_t row, int8_t* to) {
    if (a.tile_rows == 1) return a.tile_of(g, row);
    const size_t in_tile = row % a.tile_rows;
    const int8_t* from = a.tile_of(g, row - in_tile) + in_tile * kLineDepth;
    for (size_t k = 0; k < kActivationGroup; k += kLineDepth) std::memcpy(to + k, from + k * a.tile_rows, kLineDepth);
    return to;
}

template <int Bits, bool Offsets>
inline void multiply_row(const LinearArguments& arguments, size_t panel_index, size_t row) {
    const QuantisedRows& a = arguments.quantised;
    const PanelBlocks panel(*arguments.weights, panel_index, a.block);
    const size_t blocks_of_group = kActivationGroup / a.block;
    RowGroup group{};
    group.starts = a.starts + row;
    group.code_sums = a.sums + row;
    group.stride = a.row_count * sizeof(int32_t);
    group.runs = a.block / 32;
    group.block_bytes = panel.stride();
    group.gap = panel.stride() - a.block * kPanelChannels * Bits / 8;
    alignas(64) int8_t activations[kActivationGroup + 16];
    alignas(64) float sums[kPanelChannels] = {}, totals[kPanelChannels] = {};
    for (size_t g = 0, block = 0; g < a.groups; ++g, block += blocks_of_group) {
        group.activations = row_activations(a, g, row, activations);
        group.codes = panel.codes(block);
        group.scales = panel.scales(block);
        group.blocks = std::min(blocks_of_group, a.blocks - block);
        group.scale = a.scales[g * a.row_count + row];
        multiply_row_group<Bits, Offsets>(group, totals, sums);
    }
    for (size_t lane = 0; lane < kPanelChannels; lane += kLaneCount) {
        const Floats whole = add_line_outliers<Bits, Offsets>(a, panel, lane, row, load(sums + lane));
        store_outputs(arguments, row, panel_index * kPanelChannels + lane, whole);
    }
}

#undef NYBBLE_FIRST_HALF
#undef NYBBLE_SECOND_HALF
#undef NYBBLE_CODES
#undef NYBBLE_CODES_OF_NEXT_RUN
#undef NYBBLE_ACTIVATIONS
#undef NYBBLE_SLIDE
#undef NYBBLE_UNPACK
#undef NYBBLE_AS_BYTES
#undef NYBBLE_FIRST_HALF_OF_LINE
#undef NYBBLE_SECOND_HALF_OF_LINE
#undef NYBBLE_RUN_4
#undef NYBBLE_HALF_RUN_4
#undef NYBBLE_LINE_8
#undef NYBBLE_RUN_8
#undef NYBBLE_HALF_RUN_8
#undef NYBBLE_START
#undef NYBBLE_SUMS_BEGIN_AT
#undef NYBBLE_BLOCK_END
#undef NYBBLE_ADD_SCALED
#undef NYBBLE_TOTALS_ARE_V8
#undef NYBBLE_GROUP_END
#undef NYBBLE_OFFSETS
#undef NYBBLE_ADD_OFFSETS
#undef NYBBLE_MULTIPLY_BLOCKS
#undef NYBBLE_MULTIPLY_GROUP

}  // namespace nybble::NYBBLE_ISA
