// One row of activations × a panel of panel32k8 on IME1: decode.
//
// An A operand is 4 rows × 8 k. 32 bytes from the row's 8 activations on are such an operand, of which only the first
// row means anything, and so only the first 4 lanes of each sum; those of 8 operands B are brought together once a
// block. Packed codes are read in one stream, each 128 bytes before the 128 ahead of them are multiplied.
#pragma once

#include "kernels/generic/linear_int8_k8.hpp"
#include "kernels/spacemit/sums.hpp"
#include "kernels/spacemit/words.hpp"

namespace nybble::NYBBLE_ISA {

struct RowBlock {
    const uint8_t* codes;
    const uint16_t* scales;
    const uint16_t* offsets;    // null: none
    const int8_t* activations;  // left behind the block's
    size_t stride;              // from 8 activations to the next 8
    size_t lines;
    int32_t start;
    float code_sum;
};

// Sums are v16, v18, .. v30, 4 channels each. Those of the first and of the second 16 channels += A (signed) · B
// (unsigned codes).
#define NYBBLE_FIRST_HALF(a, b0, b1, b2, b3) \
    NYBBLE_VMADOT("2", 16, a, b0)            \
    NYBBLE_VMADOT("2", 18, a, b1)            \
    NYBBLE_VMADOT("2", 20, a, b2)            \
    NYBBLE_VMADOT("2", 22, a, b3)
#define NYBBLE_SECOND_HALF(a, b0, b1, b2, b3) \
    NYBBLE_VMADOT("2", 24, a, b0)             \
    NYBBLE_VMADOT("2", 26, a, b1)             \
    NYBBLE_VMADOT("2", 28, a, b2)             \
    NYBBLE_VMADOT("2", 30, a, b3)

// The 32 sums go to v16..v19, lane by lane; then totals = fma(sum, step, totals), fma(offset, Σ codes, totals).
#define NYBBLE_ROW_EPILOGUE                 \
    "vsetivli zero, 8, e32, m1, ta, ma\n\t" \
    "vslideup.vi v16, v18, 4\n\t"           \
    "vslideup.vi v20, v22, 4\n\t"           \
    "vslideup.vi v24, v26, 4\n\t"           \
    "vslideup.vi v28, v30, 4\n\t"           \
    "vmv1r.v v17, v20\n\t"                  \
    "vmv1r.v v18, v24\n\t"                  \
    "vmv1r.v v19, v28\n\t"                  \
    "vsetvli t0, zero, e16, m2, ta, ma\n\t" \
    "vle16.v v4, (%[scales])\n\t"           \
    "vfwcvt.f.f.v v8, v4\n\t"               \
    "beqz %[offsets], 3f\n\t"               \
    "vle16.v v6, (%[offsets])\n\t"          \
    "vfwcvt.f.f.v v20, v6\n"                \
    "3:\n\t"                                \
    "vsetvli t0, zero, e32, m4, ta, ma\n\t" \
    "vle32.v v12, (%[totals])\n\t"          \
    "vfsub.vf v16, v16, %[as_floats]\n\t"   \
    "vfmacc.vv v12, v16, v8\n\t"            \
    "beqz %[offsets], 4f\n\t"               \
    "vfmacc.vf v12, %[code_sum], v20\n"     \
    "4:\n\t"                                \
    "vse32.v v12, (%[totals])"

// `lines_of_codes` multiplies the lines of a block, of which the first half of the first is in v4..v7.
#define NYBBLE_MULTIPLY_ROW_BLOCK(lines_of_codes)                                                                   \
    __asm__ volatile(                                                                                               \
        "vsetvli t0, zero, e32, m8, ta, ma\n\t"                                                                     \
        "vl4re8.v v4, (%[codes])\n\t"                                                                               \
        "vmv.v.x v16, %[start]\n\t"                                                                                 \
        "vmv.v.x v24, %[start]\n\t" lines_of_codes "bnez %[lines], 1b\n\t" NYBBLE_ROW_EPILOGUE                      \
        : [codes] "+r"(codes), [activations] "+r"(block.activations), [lines] "+r"(lines)                           \
        : [stride] "r"(block.stride), [start] "r"(start), [scales] "r"(block.scales), [offsets] "r"(block.offsets), \
          [totals] "r"(totals), [as_floats] "f"(kSumsAsFloats), [code_sum] "f"(block.code_sum)                      \
        : "t0", "memory", NYBBLE_VECTOR_CLOBBERS)

#define NYBBLE_ROW_LINES_4 \
    "1:\n\t"                                         \
    "vl1re8.v v2, (%[activations])\n\t"              \
    "add %[activations], %[activations], %[stride]\n\t" \
    "vl1re8.v v3, (%[activations])\n\t"              \
    "add %[activations], %[activations], %[stride]\n\t" \
    "vsetvli t0, zero, e8, m4, ta, ma\n\t"           \
    "vand.vi v12, v4, 15\n\t"                        \
    "vsrl.vi v8, v4, 4\n\t"                          \
    "addi %[codes], %[codes], 128\n\t"               \
    "vl4re8.v v4, (%[codes])\n\t"                    \
    "vsetvli t0, zero, e8, m1, ta, ma\n\t"           \
    NYBBLE_FIRST_HALF(2, 12, 13, 14, 15)             \
    NYBBLE_FIRST_HALF(3, 8, 9, 10, 11)               \
    "addi %[lines], %[lines], -1\n\t"                \
    "vsetvli t0, zero, e8, m4, ta, ma\n\t"           \
    "vand.vi v12, v4, 15\n\t"                        \
    "vsrl.vi v8, v4, 4\n\t"                          \
    "addi %[codes], %[codes], 128\n\t"               \
    "beqz %[lines], 2f\n\t"                          \
    "vl4re8.v v4, (%[codes])\n"                      \
    "2:\n\t"                                         \
    "vsetvli t0, zero, e8, m1, ta, ma\n\t"           \
    NYBBLE_SECOND_HALF(2, 12, 13, 14, 15)            \
    NYBBLE_SECOND_HALF(3, 8, 9, 10, 11)

#define NYBBLE_ROW_LINES_8 \
    "vsetvli t0, zero, e8, m1, ta, ma\n"             \
    "1:\n\t"                                         \
    "vl1re8.v v2, (%[activations])\n\t"              \
    "add %[activations], %[activations], %[stride]\n\t" \
    "addi %[codes], %[codes], 128\n\t"               \
    "vl4re8.v v8, (%[codes])\n\t"                    \
    "addi %[lines], %[lines], -1\n\t"                \
    NYBBLE_FIRST_HALF(2, 4, 5, 6, 7)                 \
    "addi %[codes], %[codes], 128\n\t"               \
    "beqz %[lines], 2f\n\t"                          \
    "vl4re8.v v4, (%[codes])\n"                      \
    "2:\n\t"                                         \
    NYBBLE_SECOND_HALF(2, 8, 9, 10, 11)

// One block: totals[32] = fma(Σ code · activation, step, totals), and with its offset.
template <int Bits>
[[gnu::always_inline]] inline void multiply_row_block(RowBlock& block, float* totals) {
    const uint8_t* codes = block.codes;
    size_t lines = block.lines;
    // Codes are multiplied from the bottom of their byte, by scales for steps: the same product, exactly.
    const int32_t start = kSumsBegin + (block.start >> (8 - Bits));
    if constexpr (Bits == 4) {
        NYBBLE_MULTIPLY_ROW_BLOCK(NYBBLE_ROW_LINES_4);
    } else {
        NYBBLE_MULTIPLY_ROW_BLOCK(NYBBLE_ROW_LINES_8);
    }
}

#undef NYBBLE_MULTIPLY_ROW_BLOCK
#undef NYBBLE_ROW_LINES_4
#undef NYBBLE_ROW_LINES_8
#undef NYBBLE_FIRST_HALF
#undef NYBBLE_SECOND_HALF
#undef NYBBLE_ROW_EPILOGUE

// MayHalve: blocks of weights may be two groups.
template <int Bits, bool Offsets, bool MayHalve>
inline void multiply_row(const LinearArguments& arguments, size_t panel_index, size_t row) {
    const QuantisedRows& a = arguments.quantised;
    const PanelBlocks panel(*arguments.weights, panel_index, a.block);
    const size_t blocks_of_group = kActivationGroup / a.block, in_tile = row & (a.tile_rows - 1);
    [[maybe_unused]] const int32_t* start = a.starts + row;
    [[maybe_unused]] const float* code_sum = a.sums + row;
    PanelBlocks::Cursor<MayHalve> blocks(panel);
    RowBlock of{};
    of.stride = kLineDepth * a.tile_rows;
    of.lines = a.block * Bits / (8 * kLineDepth);
    alignas(64) float sums[kPanelChannels] = {}, totals[kPanelChannels];
    for (size_t g = 0, block = 0; g < a.groups; ++g) {
        of.activations = a.tile_of(g, row - in_tile) + in_tile * kLineDepth;
        std::memset(totals, 0, sizeof totals);
        for (const size_t end = std::min(block + blocks_of_group, a.blocks); block < end; ++block) {
            of.codes = blocks.codes();
            of.scales = blocks.scales();
            if constexpr (Offsets) {
                of.offsets = of.scales + kPanelChannels;
                of.code_sum = *code_sum;
                code_sum += a.row_count;
            } else {
                of.start = *start;
                start += a.row_count;
            }
            multiply_row_block<Bits>(of, totals);
            blocks.next();
        }
        const Floats scale = broadcast(a.scales[g * a.row_count + row]);
        for (size_t lane = 0; lane < kPanelChannels; lane += kLaneCount) {
            store(sums + lane, multiply_add(load(totals + lane), scale, load(sums + lane)));
        }
    }
    for (size_t lane = 0; lane < kPanelChannels; lane += kLaneCount) {
        const Floats whole = add_line_outliers<Bits, Offsets>(a, panel, lane, row, load(sums + lane));
        store_outputs(arguments, row, panel_index * kPanelChannels + lane, whole);
    }
}

}  // namespace nybble::NYBBLE_ISA
