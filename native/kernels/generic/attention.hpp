// Attention of successive query positions and the query heads of one KV head, against that head's KV cache.
// Online softmax over blocks of 32 positions in order, without a score matrix: a row meets the same operations in the
// same order whether its position is computed alone (decode) or with others (prefill).
#pragma once

#include <cstring>
#include <limits>

#include "kernels/generic/exponential.hpp"
#include "kernels/generic/tiles.hpp"

namespace nybble::NYBBLE_ISA {

// No score but -infinity is lower, and its difference to one is never NaN.
inline constexpr float kLowest = -std::numeric_limits<float>::max();

struct AttentionScratch {
    float* keys;         // [feature][32]
    float* values;       // [32][feature]
    float* scores;       // [row][32]
    float* outputs;      // [row][feature], not yet divided by the total
    float* totals;       // [row][16]: lanes of the softmax denominator
    float* maxima;       // [row]
    float* corrections;  // [row]: what the last block's new maximum scales older sums by
};

inline size_t attention_scratch_bytes(size_t padded_head_dim, size_t rows) {
    const size_t per_row = kBlockPositions + padded_head_dim + kLaneCount + 2;
    return (2 * padded_head_dim * kBlockPositions + rows * per_row) * sizeof(float);
}

inline AttentionScratch attention_scratch(uint8_t* memory, size_t padded_head_dim, size_t rows) {
    AttentionScratch s;
    s.keys = reinterpret_cast<float*>(memory);
    s.values = s.keys + padded_head_dim * kBlockPositions;
    s.scores = s.values + padded_head_dim * kBlockPositions;
    s.outputs = s.scores + rows * kBlockPositions;
    s.totals = s.outputs + rows * padded_head_dim;
    s.maxima = s.totals + rows * kLaneCount;
    s.corrections = s.maxima + rows;
    return s;
}

inline void to_f32(const uint16_t* from, float* to, size_t count) {
    for (size_t i = 0; i < count; i += kLaneCount) store(to + i, load_half(from + i));
}

inline const float* query_row(const AttentionArguments& a, size_t row) {
    return a.query + row / a.group * a.query_stride + row % a.group * a.head_dim;
}

// How many positions of the block that starts at `begin` the row may see.
inline size_t visible_positions(const AttentionArguments& a, size_t row, size_t begin) {
    const size_t end = a.first_position + row / a.group + 1;
    return end <= begin ? 0 : end - begin < kBlockPositions ? end - begin : kBlockPositions;
}

inline Floats load_number(const float* from) { return load(from); }
inline Floats load_number(const uint16_t* from) { return load_half(from); }

// Number: fp32, or fp16 as the cache has it.
template <int Rows, int Vectors, typename Number>
inline void score_tile(const AttentionArguments& a, const AttentionScratch& s, const Number* keys, size_t first_vector,
                       size_t row) {
    Floats sums[Rows][Vectors];
    const float* queries[Rows];
    for (int r = 0; r < Rows; ++r) {
        queries[r] = query_row(a, row + static_cast<size_t>(r));
        for (Floats& value : sums[r]) value = broadcast(0.0f);
    }
    keys += first_vector * kLaneCount;
    for (size_t feature = 0; feature < a.head_dim; ++feature, keys += kBlockPositions) {
        Floats key[Vectors];
#pragma GCC unroll 2
        for (int v = 0; v < Vectors; ++v) key[v] = load_number(keys + static_cast<size_t>(v) * kLaneCount);
#pragma GCC unroll 8
        for (int r = 0; r < Rows; ++r) {
            const Floats x = broadcast(queries[r][feature]);
#pragma GCC unroll 2
            for (int v = 0; v < Vectors; ++v) sums[r][v] = multiply_add(key[v], x, sums[r][v]);
        }
    }
    for (int r = 0; r < Rows; ++r) {
        float* to = s.scores + (row + static_cast<size_t>(r)) * kBlockPositions + first_vector * kLaneCount;
        for (int v = 0; v < Vectors; ++v) {
            store(to + static_cast<size_t>(v) * kLaneCount, multiply(sums[r][v], broadcast(a.scale)));
        }
    }
}

// Scores of one row and block become weights; maximum, total and correction are brought up to date.
inline void soften_row(const AttentionScratch& s, size_t row, size_t visible) {
    float* scores = s.scores + row * kBlockPositions;
    for (size_t i = visible; i < kBlockPositions; ++i) scores[i] = kLowest;
    const Floats first = load(scores), second = load(scores + kLaneCount);
    const float block_maximum = largest(larger(first, second));
    const float maximum = block_maximum > s.maxima[row] ? block_maximum : s.maxima[row];
    const bool is_new = maximum != s.maxima[row];  // else the correction is e⁰
    const Floats correction =
        is_new ? exponential(subtract(broadcast(s.maxima[row]), broadcast(maximum))) : broadcast(1.0f);
    store(scores, exponential(subtract(first, broadcast(maximum))));
    store(scores + kLaneCount, exponential(subtract(second, broadcast(maximum))));
    for (size_t i = visible; i < kBlockPositions; ++i) scores[i] = 0.0f;
    float* totals = s.totals + row * kLaneCount;
    store(totals, add(multiply_add(load(totals), correction, load(scores)), load(scores + kLaneCount)));
    store_first(s.corrections + row, correction, 1);
    s.maxima[row] = maximum;
}

template <int Rows, int Vectors, typename Number>
inline void weigh_values_tile(const AttentionArguments& a, const AttentionScratch& s, const Number* values,
                              size_t feature, size_t row, size_t positions) {
    Floats sums[Rows][Vectors];
    for (int r = 0; r < Rows; ++r) {
        const size_t at = row + static_cast<size_t>(r);
        const float* from = s.outputs + at * a.padded_head_dim + feature;
        for (int v = 0; v < Vectors; ++v) {
            sums[r][v] = multiply(load(from + static_cast<size_t>(v) * kLaneCount), broadcast(s.corrections[at]));
        }
    }
    values += feature;
    const float* weights = s.scores + row * kBlockPositions;
    for (size_t position = 0; position < positions; ++position, values += a.padded_head_dim) {
        Floats value[Vectors];
#pragma GCC unroll 2
        for (int v = 0; v < Vectors; ++v) value[v] = load_number(values + static_cast<size_t>(v) * kLaneCount);
#pragma GCC unroll 8
        for (int r = 0; r < Rows; ++r) {
            const Floats weight = broadcast(weights[static_cast<size_t>(r) * kBlockPositions + position]);
#pragma GCC unroll 2
            for (int v = 0; v < Vectors; ++v) sums[r][v] = multiply_add(value[v], weight, sums[r][v]);
        }
    }
    for (int r = 0; r < Rows; ++r) {
        float* to = s.outputs + (row + static_cast<size_t>(r)) * a.padded_head_dim + feature;
        for (int v = 0; v < Vectors; ++v) store(to + static_cast<size_t>(v) * kLaneCount, sums[r][v]);
    }
}

template <typename Number>
inline void attend_to_block(const AttentionArguments& a, const AttentionScratch& s, const Number* keys,
                            const Number* values, size_t rows, size_t begin) {
    // Rows are in order of position: those before the block see none of it.
    size_t first = 0;
    while (visible_positions(a, first, begin) == 0) ++first;
    for (size_t vector = 0; vector < kBlockPositions / kLaneCount; vector += kTileVectors) {
        for_each_row_tile(first, rows,
                          [&]<int Rows>(size_t row) { score_tile<Rows, kTileVectors>(a, s, keys, vector, row); });
    }
    for (size_t row = first; row < rows; ++row) soften_row(s, row, visible_positions(a, row, begin));
    const size_t positions = visible_positions(a, rows - 1, begin);
    size_t feature = 0;
    for (; feature + kTileVectors * kLaneCount <= a.padded_head_dim; feature += kTileVectors * kLaneCount) {
        for_each_row_tile(first, rows, [&]<int Rows>(size_t row) {
            weigh_values_tile<Rows, kTileVectors>(a, s, values, feature, row, positions);
        });
    }
    for (; feature < a.padded_head_dim; feature += kLaneCount) {
        for_each_row_tile(first, rows, [&]<int Rows>(size_t row) {
            weigh_values_tile<Rows, 1>(a, s, values, feature, row, positions);
        });
    }
}

inline void attention(const AttentionArguments& a, uint8_t* memory) {
    const size_t rows = a.query_rows * a.group;
    const AttentionScratch s = attention_scratch(memory, a.padded_head_dim, rows);
    std::memset(s.outputs, 0, rows * a.padded_head_dim * sizeof(float));
    std::memset(s.totals, 0, rows * kLaneCount * sizeof(float));
    for (size_t row = 0; row < rows; ++row) s.maxima[row] = kLowest;
    for (size_t begin = 0; begin < a.first_position + a.query_rows; begin += kBlockPositions) {
        const uint16_t* keys = a.cache + begin / kBlockPositions * a.block_stride;
        const uint16_t* values = keys + a.values_offset;
        if (rows <= 2 * kTileRows) {
            attend_to_block(a, s, keys, values, rows, begin);
        } else {
            // Many tiles of rows share the conversion.
            to_f32(keys, s.keys, a.head_dim * kBlockPositions);
            to_f32(values, s.values, kBlockPositions * a.padded_head_dim);
            attend_to_block<float>(a, s, s.keys, s.values, rows, begin);
        }
    }
    for (size_t row = 0; row < rows; ++row) {
        // The largest score weighs e⁰ = 1. A smaller total means that every score was -infinity or NaN.
        const float total = sum(load(s.totals + row * kLaneCount));
        const Floats divisor = broadcast(total >= 1.0f ? total : std::numeric_limits<float>::quiet_NaN());
        const float* from = s.outputs + row * a.padded_head_dim;
        float* to = a.output + row / a.group * a.output_stride + row % a.group * a.head_dim;
        for (size_t i = 0; i < a.head_dim; i += kLaneCount) {
            const size_t count = a.head_dim - i < kLaneCount ? a.head_dim - i : kLaneCount;
            store_first(to + i, divide(load(from + i), divisor), count);
        }
    }
}

}  // namespace nybble::NYBBLE_ISA
