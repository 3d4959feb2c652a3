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

// The words for a tile's vectors.
template <typename Vector>
struct TileWords {
    template <typename Number>
    [[gnu::always_inline]] static Vector load(const Number* from) {
        return load_number(from);
    }
    [[gnu::always_inline]] static Vector broadcast(float value) { return NYBBLE_ISA::broadcast(value); }
};
#if defined(NYBBLE_FLOAT_PAIRS)
template <>
struct TileWords<FloatPair> {
    static FloatPair load(const float* from) { return load_pair(from); }
    static FloatPair load(const Half* from) { return load_half_pair(&from->bits); }
    static FloatPair load(const BFloat* from) { return load_bfloat_pair(&from->bits); }
    static FloatPair broadcast(float value) { return broadcast_pair(value); }
};
inline constexpr bool kHasPairs = true;
#else
using FloatPair = Floats;
inline constexpr bool kHasPairs = false;
#endif
// Whether a tile's vectors of 16 lanes are to be taken in pairs; one that is left is taken alone.
template <typename Vector, int Vectors>
inline constexpr bool kInPairs = kHasPairs && Vectors > 1 && std::is_same_v<Vector, Floats>;

// Numbers of the cache are used once: fetch those `ahead`, which are next, meanwhile. Always inlined: GCC takes a
// function that only prefetches for one without effect, and drops its calls.
template <int Lanes, typename Number>
[[gnu::always_inline]] inline void fetch_ahead(const Number* ahead) {
    if constexpr (!std::is_same_v<Number, float>) {
        constexpr int kLine = 64 / sizeof(Number);
#pragma GCC unroll 4
        for (int at = 0; at < Lanes; at += kLine) prefetch(reinterpret_cast<const uint8_t*>(ahead + at));
    }
}

// Sums over `count` vectors of numbers, `stride` apart, times a factor of each row; rows of factors are `row_stride`
// apart.
template <typename Vector, int Rows, int Vectors, typename Number>
inline void sum_products(Vector (&sums)[Rows][Vectors], const float* factors, size_t row_stride, const Number* numbers,
                         const Number* ahead, size_t stride, size_t count) {
    using Words = TileWords<Vector>;
    constexpr int lanes = sizeof(Vector) / sizeof(float);
    for (size_t i = 0; i < count; ++i) {
        Vector vectors[Vectors];
#pragma GCC unroll 4
        for (int v = 0; v < Vectors; ++v) vectors[v] = Words::load(numbers + static_cast<size_t>(v * lanes));
        fetch_ahead<Vectors * lanes>(ahead);
#pragma GCC unroll 8
        for (int r = 0; r < Rows; ++r) {
            const Vector factor = Words::broadcast(factors[static_cast<size_t>(r) * row_stride + i]);
#pragma GCC unroll 4
            for (int v = 0; v < Vectors; ++v) sums[r][v] = multiply_add(vectors[v], factor, sums[r][v]);
        }
        numbers += stride;
        ahead += stride;
    }
}

template <int Rows, int Vectors, typename Vector = Floats, typename Number>
inline void score_tile(const float* queries, size_t query_stride, const Number* keys, const Number* ahead,
                       size_t head_dim, float* scores) {
    if constexpr (kInPairs<Vector, Vectors>) {
        score_tile<Rows, Vectors / 2, FloatPair>(queries, query_stride, keys, ahead, head_dim, scores);
        constexpr size_t rest = Vectors / 2 * 2 * kLaneCount;
        if constexpr (Vectors % 2 != 0) {
            score_tile<Rows, 1>(queries, query_stride, keys + rest, ahead + rest, head_dim, scores + rest);
        }
    } else {
        constexpr int lanes = sizeof(Vector) / sizeof(float);
        Vector sums[Rows][Vectors];
        clear(sums);
        sum_products(sums, queries, query_stride, keys, ahead, kBlockPositions, head_dim);
        for (int r = 0; r < Rows; ++r) {
            float* to = scores + static_cast<size_t>(r) * kChunkPositions;
            for (int v = 0; v < Vectors; ++v) store(to + static_cast<size_t>(v * lanes), sums[r][v]);
        }
    }
}

template <int Rows, int Vectors, typename Vector = Floats, typename Number>
inline void weigh_tile(const float* weights, const Number* values, const Number* ahead, size_t width, size_t positions,
                       float* outputs) {
    if constexpr (kInPairs<Vector, Vectors>) {
        weigh_tile<Rows, Vectors / 2, FloatPair>(weights, values, ahead, width, positions, outputs);
        constexpr size_t rest = Vectors / 2 * 2 * kLaneCount;
        if constexpr (Vectors % 2 != 0) {
            weigh_tile<Rows, 1>(weights, values + rest, ahead + rest, width, positions, outputs + rest);
        }
    } else {
        constexpr int lanes = sizeof(Vector) / sizeof(float);
        Vector sums[Rows][Vectors];
        for (int r = 0; r < Rows; ++r) {
            const float* from = outputs + static_cast<size_t>(r) * width;
            for (int v = 0; v < Vectors; ++v) {
                sums[r][v] = TileWords<Vector>::load(from + static_cast<size_t>(v * lanes));
            }
        }
        sum_products(sums, weights, kChunkPositions, values, ahead, width, positions);
        for (int r = 0; r < Rows; ++r) {
            float* to = outputs + static_cast<size_t>(r) * width;
            for (int v = 0; v < Vectors; ++v) store(to + static_cast<size_t>(v * lanes), sums[r][v]);
        }
    }
}

}  // namespace nybble::NYBBLE_ISA
