// Several rows of activations × a panel of panel32k8 on IME1: prefill.
//
// A group of the panel (128 k) is spread once for up to 64 rows: codes to a byte each, signed where there are no
// offsets; steps to registers as the sums want them; all in the order in which it is read. Tiles of 8 rows × 8 channels
// keep the fp32 totals of a group in registers beside the integer sums; with blocks of a whole group there are no such
// totals, and tiles are 16 channels wide. All operands are read with one load for 4 or 8 of them, and those of the next
// 8 channels come while the totals of the last ones are added up.
#pragma once

#include "kernels/spacemit/ime1_stream.hpp"
#include "kernels/spacemit/sums.hpp"
#include "kernels/spacemit/words.hpp"

namespace nybble::NYBBLE_ISA {

inline constexpr size_t kCachedTiles = 8;  // that are multiplied while a group is spread

// What a tile's vectors of 8 lanes are multiplied by. Lanes of sums are 2 rows × 4 channels, two registers an operand.
struct RowFactors {
    float of[kMatrixRows][kMatrixChannels];  // each row's, in 4 lanes
};

struct MatrixScratch {
    alignas(64) uint8_t stream[kPanelChannels * (kActivationGroup + kMostBlocks * 8 * sizeof(float)) + kReadAhead];
    alignas(64) RowFactors scales;
    alignas(64) RowFactors code_sums[kMostBlocks];
    // [tile of rows][tile of channels][operand A][operand B][row][channel]
    alignas(64) float sums[kCachedTiles][kMatrixRows * kPanelChannels];
};

// What belongs to rows row..row+8 of [of group or block][row]; 0 for those that do not exist.
inline void spread_rows(const float* values, size_t row, size_t row_count, RowFactors& to) {
    __asm__ volatile(
        "vsetvli t0, zero, e32, m1, ta, ma\n\t"
        "vmv.v.i v8, 0\n\t"
        "vid.v v0\n\t"
        "vsrl.vi v0, v0, 2\n\t"
        "vadd.vi v1, v0, 2\n\t"
        "vadd.vi v2, v0, 4\n\t"
        "vadd.vi v3, v0, 6\n\t"
        "vsetvli t0, %[rows], e32, m1, tu, ma\n\t"
        "vle32.v v8, (%[values])\n\t"
        "vsetvli t0, zero, e32, m1, ta, ma\n\t"
        "vrgather.vv v12, v8, v0\n\t"
        "vrgather.vv v13, v8, v1\n\t"
        "vrgather.vv v14, v8, v2\n\t"
        "vrgather.vv v15, v8, v3\n\t"
        "vs4r.v v12, (%[to])"
        :
        : [values] "r"(values + row), [rows] "r"(std::min(kMatrixRows, row_count - row)), [to] "r"(&to)
        : "t0", "memory", NYBBLE_VECTOR_CLOBBERS);
}

struct TileGroup {
    const int8_t* activations;
    const int8_t* end;      // of the tile's activations
    const uint8_t* stream;  // of the tile's channels
    const RowFactors* code_sums;
    const RowFactors* scales;
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

// The next 4 registers of the stream.
#define NYBBLE_STREAM(to) "vl4re8.v v" #to ", (%[stream])\n\taddi %[stream], %[stream], 128\n\t"

#define NYBBLE_ACTIVATIONS_OF_16(from) "vl4re8.v v0, (" from ")\n\t"
#define NYBBLE_ACTIVATIONS_OF_32(from) "vl8re8.v v0, (" from ")\n\t"

#define NYBBLE_AS_BYTES "vsetvli t0, zero, e8, m1, ta, ma\n\t"

// 16 k; the block's steps come to v12-v15 meanwhile.
#define NYBBLE_BLOCK_OF_16 NYBBLE_STREAM(12) NYBBLE_8X8(0, 1, 8, 9) NYBBLE_8X8(2, 3, 10, 11)

// 32 k; what follows in the stream comes to v8-v11 while the second half is multiplied.
#define NYBBLE_RUN           \
    NYBBLE_8X8(0, 1, 8, 9)   \
    NYBBLE_8X8(2, 3, 10, 11) \
    NYBBLE_STREAM(8)         \
    NYBBLE_8X8(4, 5, 12, 13) \
    NYBBLE_8X8(6, 7, 14, 15)
#define NYBBLE_NEXT_RUN(activations) NYBBLE_ACTIVATIONS_OF_32(activations) NYBBLE_STREAM(12)

// A block's end: v24..v31 = fma(sums, steps, v24..v31). Halves take turns, so that one is begun anew beside the other's
// floats; the next block's operands are loaded before where registers are free. A group ends with its activations.
#define NYBBLE_AS_FLOATS                    \
    "vsetvli t0, zero, e32, m4, ta, ma\n\t" \
    "vfsub.vf v16, v16, %[as_floats]\n\t"   \
    "vfsub.vf v20, v20, %[as_floats]\n\t"
#define NYBBLE_UNLESS_LAST(next) "beq " next ", %[end], 2f\n\t"
#define NYBBLE_FMA(sum, a, b) "vfmacc.vv v" #sum ", v" #a ", v" #b "\n\t"
#define NYBBLE_ADD_SCALED(steps) NYBBLE_FMA(24, 16, steps) NYBBLE_FMA(28, 20, steps)
#define NYBBLE_ADD_SCALED_AND_BEGIN_ANEW(steps) \
    NYBBLE_FMA(24, 16, steps) "vmv.v.x v16, %[begin]\n\t" NYBBLE_FMA(28, 20, steps) "vmv.v.x v20, %[begin]\n\t"

// And fma(offsets, Σ codes, v24..v31): offsets are 4 registers, `first` to `third` and the one behind; t1 points to Σ.
#define NYBBLE_CODE_SUMS(place) "addi t1, %[code_sums], " place "\n\t"
#define NYBBLE_ADD_OFFSETS(first, third)                                                        \
    "vl4re32.v v16, (t1)\n\t"                                                                   \
    "vsetvli t0, zero, e32, m2, ta, ma\n\t" NYBBLE_FMA(24, 16, first) NYBBLE_FMA(26, 16, third) \
        NYBBLE_FMA(28, 18, first) NYBBLE_FMA(30, 18, third)
#define NYBBLE_BEGIN_ANEW                   \
    "vsetvli t0, zero, e32, m8, ta, ma\n\t" \
    "vmv.v.x v16, %[begin]\n\t"

#define NYBBLE_END_OF_16(next, place) \
    NYBBLE_ACTIVATIONS_OF_16(next)    \
    NYBBLE_AS_FLOATS NYBBLE_UNLESS_LAST(next) NYBBLE_STREAM(8) NYBBLE_ADD_SCALED_AND_BEGIN_ANEW(12) NYBBLE_AS_BYTES
#define NYBBLE_LAST_OF_16(place) NYBBLE_AS_FLOATS "2:\n\t" NYBBLE_ADD_SCALED(12)

#define NYBBLE_END_OF_16_WITH_OFFSETS(next, place)                                                           \
    NYBBLE_STREAM(4)                                                                                         \
    NYBBLE_ACTIVATIONS_OF_16(next)                                                                           \
    NYBBLE_AS_FLOATS NYBBLE_CODE_SUMS(place) NYBBLE_UNLESS_LAST(next) NYBBLE_STREAM(8) NYBBLE_ADD_SCALED(12) \
        NYBBLE_ADD_OFFSETS(4, 6) NYBBLE_BEGIN_ANEW NYBBLE_AS_BYTES
#define NYBBLE_LAST_OF_16_WITH_OFFSETS(place) \
    NYBBLE_STREAM(4) NYBBLE_AS_FLOATS NYBBLE_CODE_SUMS(place) "2:\n\t" NYBBLE_ADD_SCALED(12) NYBBLE_ADD_OFFSETS(4, 6)

#define NYBBLE_END_OF_RUNS(next, place)                                                                              \
    NYBBLE_ACTIVATIONS_OF_32(next)                                                                                   \
    NYBBLE_AS_FLOATS NYBBLE_UNLESS_LAST(next) NYBBLE_ADD_SCALED_AND_BEGIN_ANEW(8) NYBBLE_STREAM(8) NYBBLE_STREAM(12) \
        NYBBLE_AS_BYTES
#define NYBBLE_LAST_OF_RUNS(place) NYBBLE_AS_FLOATS "2:\n\t" NYBBLE_ADD_SCALED(8)

#define NYBBLE_END_OF_RUNS_WITH_OFFSETS(next, place)                                                                  \
    NYBBLE_STREAM(12)                                                                                                 \
    NYBBLE_ACTIVATIONS_OF_32(next)                                                                                    \
    NYBBLE_AS_FLOATS NYBBLE_CODE_SUMS(place) NYBBLE_UNLESS_LAST(next) NYBBLE_ADD_SCALED(8) NYBBLE_ADD_OFFSETS(12, 14) \
        NYBBLE_BEGIN_ANEW NYBBLE_STREAM(8) NYBBLE_STREAM(12) NYBBLE_AS_BYTES
#define NYBBLE_LAST_OF_RUNS_WITH_OFFSETS(place) \
    NYBBLE_STREAM(12) NYBBLE_AS_FLOATS NYBBLE_CODE_SUMS(place) "2:\n\t" NYBBLE_ADD_SCALED(8) NYBBLE_ADD_OFFSETS(12, 14)

// A group: runs and blocks, what ends each block and what the last, and where the block's Σ codes are.
#define NYBBLE_TWO_OF_16(end, activations, place) \
    NYBBLE_BLOCK_OF_16 "addi t2, " activations ", 128\n\t" end("t2", place) NYBBLE_BLOCK_OF_16
#define NYBBLE_GROUP_OF_16(end, last)                                             \
    NYBBLE_TWO_OF_16(end, "%[a0]", "0")                                           \
    end("%[a1]", "128") NYBBLE_TWO_OF_16(end, "%[a1]", "256") end("%[a2]", "384") \
        NYBBLE_TWO_OF_16(end, "%[a2]", "512") end("%[a3]", "640") NYBBLE_TWO_OF_16(end, "%[a3]", "768") last("896")
#define NYBBLE_GROUP_OF_32(end, last) \
    NYBBLE_RUN end("%[a1]", "0") NYBBLE_RUN end("%[a2]", "128") NYBBLE_RUN end("%[a3]", "256") NYBBLE_RUN last("384")
#define NYBBLE_GROUP_OF_64(end, last)                                                                    \
    NYBBLE_RUN NYBBLE_NEXT_RUN("%[a1]") NYBBLE_RUN end("%[a2]", "0") NYBBLE_RUN NYBBLE_NEXT_RUN("%[a3]") \
        NYBBLE_RUN last("128")

// Integer sums are v16-v23, totals v24-v31; operands A begin at v0, B at v8. When the group is done, sums = fma(totals,
// scales, sums), while the next channels' first operands come.
#define NYBBLE_ADD_GROUP                                                                                       \
    "vsetvli t0, zero, e32, m2, ta, ma\n\t" NYBBLE_FMA(16, 8, 24) NYBBLE_FMA(18, 8, 26) NYBBLE_FMA(20, 10, 28) \
        NYBBLE_FMA(22, 10, 30)
#define NYBBLE_MULTIPLY_8X8(activations_of, codes_of, blocks)                                                    \
    __asm__ volatile(                                                                                            \
        activations_of("%[a0]") codes_of                                                                         \
        "vsetvli t0, zero, e32, m8, ta, ma\n"                                                                    \
        "1:\n\t"                                                                                                 \
        "vmv.v.i v24, 0\n\t"                                                                                     \
        "vmv.v.x v16, %[begin]\n\t" NYBBLE_AS_BYTES blocks                                                       \
        "vl8re32.v v16, (%[sums])\n\t"                                                                           \
        "vl4re32.v v8, (%[scales])\n\t" activations_of("%[a0]") NYBBLE_ADD_GROUP codes_of                        \
        "vs8r.v v16, (%[sums])\n\t"                                                                              \
        "addi %[sums], %[sums], 256\n\t"                                                                         \
        "vsetvli t0, zero, e32, m8, ta, ma\n\t"                                                                  \
        "bne %[sums], %[sums_end], 1b"                                                                           \
        : [stream] "+r"(stream), [sums] "+r"(sums)                                                               \
        : [signs] "i"(kSigns<Offsets>), [begin] "r"(kSumsBegin), [as_floats] "f"(kSumsAsFloats),                 \
          [a0] "r"(group.activations), [a1] "r"(group.activations + run), [a2] "r"(group.activations + 2 * run), \
          [a3] "r"(group.activations + 3 * run), [end] "r"(group.end), [code_sums] "r"(group.code_sums),         \
          [scales] "r"(group.scales), [sums_end] "r"(group.sums + kMatrixRows * kPanelChannels)                  \
        : "t0", "t1", "t2", "memory", NYBBLE_VECTOR_CLOBBERS)

// 8 rows × 32 channels × a group, 8 channels at a time: each time the same activations, at addresses that are kept.
template <bool Offsets, size_t Block>
inline void multiply_8x8(const TileGroup& group) {
    constexpr size_t run = 32 * kMatrixRows;
    const uint8_t* stream = group.stream;
    float* sums = group.sums;
    if constexpr (Block == 16 && Offsets) {
        NYBBLE_MULTIPLY_8X8(NYBBLE_ACTIVATIONS_OF_16, NYBBLE_STREAM(8),
                            NYBBLE_GROUP_OF_16(NYBBLE_END_OF_16_WITH_OFFSETS, NYBBLE_LAST_OF_16_WITH_OFFSETS));
    } else if constexpr (Block == 16) {
        NYBBLE_MULTIPLY_8X8(NYBBLE_ACTIVATIONS_OF_16, NYBBLE_STREAM(8),
                            NYBBLE_GROUP_OF_16(NYBBLE_END_OF_16, NYBBLE_LAST_OF_16));
    } else if constexpr (Block == 32 && Offsets) {
        NYBBLE_MULTIPLY_8X8(NYBBLE_ACTIVATIONS_OF_32, NYBBLE_STREAM(8) NYBBLE_STREAM(12),
                            NYBBLE_GROUP_OF_32(NYBBLE_END_OF_RUNS_WITH_OFFSETS, NYBBLE_LAST_OF_RUNS_WITH_OFFSETS));
    } else if constexpr (Block == 32) {
        NYBBLE_MULTIPLY_8X8(NYBBLE_ACTIVATIONS_OF_32, NYBBLE_STREAM(8) NYBBLE_STREAM(12),
                            NYBBLE_GROUP_OF_32(NYBBLE_END_OF_RUNS, NYBBLE_LAST_OF_RUNS));
    } else if constexpr (Offsets) {
        NYBBLE_MULTIPLY_8X8(NYBBLE_ACTIVATIONS_OF_32, NYBBLE_STREAM(8) NYBBLE_STREAM(12),
                            NYBBLE_GROUP_OF_64(NYBBLE_END_OF_RUNS_WITH_OFFSETS, NYBBLE_LAST_OF_RUNS_WITH_OFFSETS));
    } else {
        NYBBLE_MULTIPLY_8X8(NYBBLE_ACTIVATIONS_OF_32, NYBBLE_STREAM(8) NYBBLE_STREAM(12),
                            NYBBLE_GROUP_OF_64(NYBBLE_END_OF_RUNS, NYBBLE_LAST_OF_RUNS));
    }
}

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
    const uint8_t* stream = group.stream;
    __asm__ volatile(
        "vsetvli t0, zero, e32, m8, ta, ma\n\t"
        "vl8re8.v v0, (%[activations])\n\t"
        "vl4re8.v v8, (%[stream])\n\t"
        "vmv.v.x v16, %[begin]\n\t"
        "vmv.v.x v24, %[begin]\n\t"
        "vsetvli t0, zero, e8, m1, ta, ma\n"
        "1:\n\t"
        "addi %[stream], %[stream], 128\n\t"
        "vl4re8.v v12, (%[stream])\n\t"
        NYBBLE_8X16(0, 1, 8, 9, 10, 11)
        "addi %[stream], %[stream], 128\n\t"
        "vl4re8.v v8, (%[stream])\n\t"
        NYBBLE_8X16(2, 3, 12, 13, 14, 15)
        "addi %[stream], %[stream], 128\n\t"
        "vl4re8.v v12, (%[stream])\n\t"
        NYBBLE_8X16(4, 5, 8, 9, 10, 11)
        "addi %[stream], %[stream], 128\n\t"
        "vl4re8.v v8, (%[stream])\n\t"
        "addi %[activations], %[activations], 256\n\t"
        NYBBLE_8X16(6, 7, 12, 13, 14, 15)
        "vl8re8.v v0, (%[activations])\n\t"
        "bne %[activations], %[end], 1b\n\t"
        "vl8re32.v v8, (%[stream])\n\t"
        "vsetvli t0, zero, e32, m8, ta, ma\n\t"
        "vmv.v.i v0, 0\n\t"
        "vfsub.vf v16, v16, %[as_floats]\n\t"
        "vfsub.vf v24, v24, %[as_floats]\n\t"
        "vfmadd.vv v16, v8, v0\n\t"
        "vfmadd.vv v24, v8, v0\n\t"
        "vsetvli t0, zero, e32, m2, ta, ma\n\t"
        "beqz %[code_sums], 3f\n\t"
        "addi %[stream], %[stream], 256\n\t"
        "vl8re32.v v0, (%[stream])\n\t"
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
        : [activations] "+r"(activations), [stream] "+r"(stream)
        : [code_sums] "r"(Offsets ? group.code_sums : nullptr), [end] "r"(group.end),
          [signs] "i"(kSigns<Offsets>), [begin] "r"(kSumsBegin), [as_floats] "f"(kSumsAsFloats),
          [scales] "r"(group.scales), [sums] "r"(group.sums)
        : "t0", "t1", "memory", NYBBLE_VECTOR_CLOBBERS);
}

#undef NYBBLE_8X8
#undef NYBBLE_STREAM
#undef NYBBLE_ACTIVATIONS_OF_16
#undef NYBBLE_ACTIVATIONS_OF_32
#undef NYBBLE_AS_BYTES
#undef NYBBLE_BLOCK_OF_16
#undef NYBBLE_RUN
#undef NYBBLE_NEXT_RUN
#undef NYBBLE_AS_FLOATS
#undef NYBBLE_UNLESS_LAST
#undef NYBBLE_FMA
#undef NYBBLE_ADD_SCALED
#undef NYBBLE_ADD_SCALED_AND_BEGIN_ANEW
#undef NYBBLE_CODE_SUMS
#undef NYBBLE_ADD_OFFSETS
#undef NYBBLE_BEGIN_ANEW
#undef NYBBLE_END_OF_16
#undef NYBBLE_LAST_OF_16
#undef NYBBLE_END_OF_16_WITH_OFFSETS
#undef NYBBLE_LAST_OF_16_WITH_OFFSETS
#undef NYBBLE_END_OF_RUNS
#undef NYBBLE_LAST_OF_RUNS
#undef NYBBLE_END_OF_RUNS_WITH_OFFSETS
#undef NYBBLE_LAST_OF_RUNS_WITH_OFFSETS
#undef NYBBLE_TWO_OF_16
#undef NYBBLE_GROUP_OF_16
#undef NYBBLE_GROUP_OF_32
#undef NYBBLE_GROUP_OF_64
#undef NYBBLE_ADD_GROUP
#undef NYBBLE_MULTIPLY_8X8
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
        const Stream<Offsets, TileChannels> stream{a.block, blocks};
        spread_group<Bits>(panel, stream, first_block, scratch.stream);
        for (size_t tile = 0; tile < tiles; ++tile) {
            const size_t row = first + tile * kMatrixRows;
            spread_rows(a.scales + g * a.row_count, row, a.row_count, scratch.scales);
            if constexpr (Offsets) {
                for (size_t b = 0; b < blocks; ++b) {
                    spread_rows(a.sums + (first_block + b) * a.row_count, row, a.row_count, scratch.code_sums[b]);
                }
            }
            const int8_t* activations = a.tile_of(g, row);
            TileGroup group{activations,     activations + blocks * a.block * kMatrixRows,
                            scratch.stream,  scratch.code_sums,
                            &scratch.scales, scratch.sums[tile]};
            if constexpr (TileChannels == 16) {
                multiply_8x16<Offsets>(group);
                group.stream += stream.tile_bytes();
                group.sums += tile_floats;
                multiply_8x16<Offsets>(group);
            } else {
                switch (a.block) {
                    case 16: multiply_8x8<Offsets, 16>(group); break;
                    case 32: multiply_8x8<Offsets, 32>(group); break;
                    default: multiply_8x8<Offsets, 64>(group);
                }
            }
        }
    }
    for (size_t row = begin; row < end; ++row) {
        const size_t in_tile = (row - first) % kMatrixRows;
        constexpr size_t operands = TileChannels / kMatrixChannels;
        const float* sums =
            scratch.sums[(row - first) / kMatrixRows] + in_tile / 4 * operands * 16 + in_tile % 4 * kMatrixChannels;
        alignas(64) float row_sums[kPanelChannels];
#pragma GCC unroll 8
        for (size_t operand = 0; operand < kPanelChannels / kMatrixChannels; ++operand) {
            std::memcpy(row_sums + operand * kMatrixChannels,
                        sums + operand / operands * tile_floats + operand % operands * 16,
                        kMatrixChannels * sizeof(float));
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
