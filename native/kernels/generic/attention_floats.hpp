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

// Numbers of the cache are used once: fetch those `ahead`, which are next, meanwhile.
template <int Vectors, typename Number>
inline void fetch_ahead(const Number* ahead) {
    if constexpr (!std::is_same_v<Number, float>) {
        constexpr int kLine = 64 / sizeof(Number);
#pragma GCC unroll 4
        for (int at = 0; at < Vectors * static_cast<int>(kLaneCount); at += kLine) {
            prefetch(reinterpret_cast<const uint8_t*>(ahead + at));
        }
    }
}

template <int Rows, int Vectors, typename Number>
inline void score_tile(const float* queries, size_t query_stride, const Number* keys, const Number* ahead,
                       size_t head_dim, float* scores) {
    Floats sums[Rows][Vectors];
    for (auto& row : sums) {
        for (Floats& value : row) value = broadcast(0.0f);
    }
    for (size_t feature = 0; feature < head_dim; ++feature) {
        Floats key[Vectors];
#pragma GCC unroll 4
        for (int v = 0; v < Vectors; ++v) key[v] = load_number(keys + static_cast<size_t>(v) * kLaneCount);
        fetch_ahead<Vectors>(ahead);
#pragma GCC unroll 8
        for (int r = 0; r < Rows; ++r) {
            const Floats query = broadcast(queries[static_cast<size_t>(r) * query_stride + feature]);
#pragma GCC unroll 4
            for (int v = 0; v < Vectors; ++v) sums[r][v] = multiply_add(key[v], query, sums[r][v]);
        }
        keys += kBlockPositions;
        ahead += kBlockPositions;
    }
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
    for (size_t position = 0; position < positions; ++position) {
        Floats value[Vectors];
#pragma GCC unroll 4
        for (int v = 0; v < Vectors; ++v) value[v] = load_number(values + static_cast<size_t>(v) * kLaneCount);
        fetch_ahead<Vectors>(ahead);
#pragma GCC unroll 8
        for (int r = 0; r < Rows; ++r) {
            const Floats weight = broadcast(weights[static_cast<size_t>(r) * kChunkPositions + position]);
#pragma GCC unroll 4
            for (int v = 0; v < Vectors; ++v) sums[r][v] = multiply_add(value[v], weight, sums[r][v]);
        }
        values += width;
        ahead += width;
    }
    for (int r = 0; r < Rows; ++r) {
        float* to = outputs + static_cast<size_t>(r) * width;
        for (int v = 0; v < Vectors; ++v) store(to + static_cast<size_t>(v) * kLaneCount, sums[r][v]);
    }
}

}  // namespace nybble::NYBBLE_ISA
