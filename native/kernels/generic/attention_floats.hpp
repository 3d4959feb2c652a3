// Register tiles of attention over keys and values in floats.
#pragma once

#include <type_traits>

#include "kernels/generic/tiles.hpp"

namespace nybble::NYBBLE_ISA {

// Most vectors of a tile of so many rows.
template <int Rows>
inline constexpr int kVectorsOfTile =
    kAttentionSums / Rows < kAttentionVectors ? kAttentionSums / Rows : kAttentionVectors;

struct Half {
    uint16_t bits;
};
struct BFloat {
    uint16_t bits;
};
inline Floats load_number(const float* from) { return load(from); }
inline Floats load_number(const Half* from) { return load_half(&from->bits); }
inline Floats load_number(const BFloat* from) { return load_bfloat(&from->bits); }

// Numbers of the cache are used once: fetch those `ahead`, which are next, meanwhile. Always inlined: GCC takes a
// function that only prefetches for one without effect, and drops its calls.
template <int Vectors, typename Number>
[[gnu::always_inline]] inline void fetch_ahead(const Number* ahead) {
    if constexpr (!std::is_same_v<Number, float>) {
        constexpr int kLine = 64 / sizeof(Number);
#pragma GCC unroll 4
        for (int at = 0; at < Vectors * static_cast<int>(kLaneCount); at += kLine) {
            prefetch(reinterpret_cast<const uint8_t*>(ahead + at));
        }
    }
}

// Sums over `count` vectors of numbers, `stride` apart, times a factor of each row; rows of factors are `row_stride`
// apart.
template <int Rows, int Vectors, typename Number>
inline void sum_products(Floats (&sums)[Rows][Vectors], const float* factors, size_t row_stride, const Number* numbers,
                         const Number* ahead, size_t stride, size_t count) {
    for (size_t i = 0; i < count; ++i) {
        Floats vectors[Vectors];
#pragma GCC unroll 4
        for (int v = 0; v < Vectors; ++v) vectors[v] = load_number(numbers + static_cast<size_t>(v) * kLaneCount);
        fetch_ahead<Vectors>(ahead);
#pragma GCC unroll 8
        for (int r = 0; r < Rows; ++r) {
            const Floats factor = broadcast(factors[static_cast<size_t>(r) * row_stride + i]);
#pragma GCC unroll 4
            for (int v = 0; v < Vectors; ++v) sums[r][v] = multiply_add(vectors[v], factor, sums[r][v]);
        }
        numbers += stride;
        ahead += stride;
    }
}

template <int Rows, int Vectors, typename Number>
inline void score_tile(const float* queries, size_t query_stride, const Number* keys, const Number* ahead,
                       size_t head_dim, float* scores) {
    Floats sums[Rows][Vectors];
    clear(sums);
    sum_products<Rows, Vectors>(sums, queries, query_stride, keys, ahead, kBlockPositions, head_dim);
    for (int r = 0; r < Rows; ++r) {
        float* to = scores + static_cast<size_t>(r) * kChunkPositions;
        for (int v = 0; v < Vectors; ++v) store(to + static_cast<size_t>(v) * kLaneCount, sums[r][v]);
    }
}

template <int Rows, int Vectors, typename Number>
inline void weigh_tile(const float* weights, const Number* values, const Number* ahead, size_t width, size_t positions,
                       float* outputs) {
    Floats sums[Rows][Vectors];
    for (int r = 0; r < Rows; ++r) {
        const float* from = outputs + static_cast<size_t>(r) * width;
        for (int v = 0; v < Vectors; ++v) sums[r][v] = load(from + static_cast<size_t>(v) * kLaneCount);
    }
    sum_products<Rows, Vectors>(sums, weights, kChunkPositions, values, ahead, width, positions);
    for (int r = 0; r < Rows; ++r) {
        float* to = outputs + static_cast<size_t>(r) * width;
        for (int v = 0; v < Vectors; ++v) store(to + static_cast<size_t>(v) * kLaneCount, sums[r][v]);
    }
}

}  // namespace nybble::NYBBLE_ISA
