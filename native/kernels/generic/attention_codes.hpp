// Register tiles of attention over int8 keys and values. Queries and weights are rounded to 16 bits, so that all
// products and sums are those of integers.
#pragma once

#include "kernels/generic/rounding.hpp"

namespace nybble::NYBBLE_ISA {

// Most vectors of a tile of so many rows.
template <int Rows>
inline constexpr int kVectorsOfWideTile = kWideSums / Rows < kAttentionVectors ? kWideSums / Rows : kAttentionVectors;

// Sums over `groups` of 4, of codes whose groups are `stride` bytes apart, and activations of rows that are `row_bytes`
// apart. Codes are used once: fetches those `ahead`, which are next, meanwhile.
template <int Rows, int Vectors>
inline void sum_codes(WideDot (&sums)[Rows][Vectors], const uint8_t* activations, size_t row_bytes,
                      const uint8_t* codes, const uint8_t* ahead, size_t stride, size_t groups) {
    for (size_t group = 0; group < groups; ++group) {
        const uint8_t* run = activations + group / 4 * 32;
        Codes vectors[Vectors];
#pragma GCC unroll 4
        for (int v = 0; v < Vectors; ++v) {
            vectors[v] = load_code_group(codes + static_cast<size_t>(v) * 64);
            prefetch(ahead + static_cast<size_t>(v) * 64);
        }
#pragma GCC unroll 8
        for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 4
            for (int v = 0; v < Vectors; ++v) {
                sums[r][v].accumulate(vectors[v], run + static_cast<size_t>(r) * row_bytes, group % 4);
            }
        }
        codes += stride;
        ahead += stride;
    }
}

template <int Rows, int Vectors>
inline void score_codes_tile(const uint8_t* queries, const WideRow* rows, size_t width, const uint8_t* keys,
                             const uint8_t* ahead, const float* key_scales, float* scores) {
    WideDot sums[Rows][Vectors];
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 4
        for (int v = 0; v < Vectors; ++v) sums[r][v].start(rows[r].start);
    }
    sum_codes<Rows, Vectors>(sums, queries, 2 * width, keys, ahead, 4 * kBlockPositions, width / 4);
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 4
        for (int v = 0; v < Vectors; ++v) {
            const size_t at = static_cast<size_t>(v) * kLaneCount;
            const Floats products = multiply(to_floats(sums[r][v].total()), broadcast(rows[r].scale));
            store(scores + static_cast<size_t>(r) * kChunkPositions + at, multiply(products, load(key_scales + at)));
        }
    }
}

// `weights` are of rows 2 · kChunkPositions bytes apart, `values` those of a chunk's first block. The sums of a whole
// chunk are within int32.
static_assert(127 * 256 * 127 * kChunkPositions < size_t{1} << 31);
template <int Rows, int Vectors>
inline void weigh_codes_tile(const uint8_t* weights, const WideRow* rows, const uint8_t* values, const uint8_t* ahead,
                             size_t block_stride, size_t width, size_t positions, float* outputs) {
    WideDot sums[Rows][Vectors];
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 4
        for (int v = 0; v < Vectors; ++v) sums[r][v].start(rows[r].start);
    }
    for (size_t begin = 0; begin < positions; begin += kBlockPositions) {
        const size_t count = positions - begin < kBlockPositions ? positions - begin : kBlockPositions;
        sum_codes<Rows, Vectors>(sums, weights + 2 * begin, 2 * kChunkPositions, values, ahead, 4 * width,
                                 (count + 3) / 4);
        values += block_stride;
        ahead += block_stride;
    }
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
        const Floats scale = broadcast(rows[r].scale);
#pragma GCC unroll 4
        for (int v = 0; v < Vectors; ++v) {
            float* output = outputs + static_cast<size_t>(r) * width + static_cast<size_t>(v) * kLaneCount;
            store(output, multiply(to_floats(sums[r][v].total()), scale));
        }
    }
}

}  // namespace nybble::NYBBLE_ISA
