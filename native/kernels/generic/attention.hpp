// Attention of successive query positions and the query heads of one KV head, against that head's KV cache.
// For each chunk of positions: all scores, their softmax, then the weighted sum of values; no score matrix but that of
// a chunk. A row meets the same operations in the same order whether its position is computed alone (decode) or with
// others (prefill), and whoever computes its chunks.
#pragma once

#include <cstring>
#include <type_traits>

#include "kernels/generic/attention_state.hpp"

namespace nybble::NYBBLE_ISA {

struct AttentionScratch {
    float* queries;  // [row][feature], times the scale
    float* numbers;  // keys, then values, of a block in fp32
    float* weights;  // [row][position of the chunk]: scores, then their softmax
    float* states;   // of all chunks so far, and of the next

    AttentionScratch(uint8_t* memory, const KVBlock& block, size_t rows)
        : queries(reinterpret_cast<float*>(memory)),
          numbers(queries + rows * block.padded_head_dim()),
          weights(numbers + kBlockPositions * block.padded_head_dim()),
          states(weights + rows * kChunkPositions) {}
};

inline size_t attention_scratch_bytes(const KVBlock& block, size_t rows) {
    const size_t width = block.padded_head_dim();
    const size_t floats = rows * width + kBlockPositions * width + rows * kChunkPositions;
    return (floats + 2 * attention_state_floats(block, rows)) * sizeof(float);
}

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

// One chunk of a KV head, for the rows that see it.
class AttendedChunk {
  public:
    AttendedChunk(const AttentionArguments& a, size_t chunk, const AttentionScratch& scratch, float* state)
        : a_(a),
          begin_(chunk * kChunkPositions),
          first_(first_row_at(a, begin_)),
          rows_(a.rows()),
          width_(a.block.padded_head_dim()),
          positions_(visible_positions(a, rows_ - 1, begin_, kChunkPositions)),
          scratch_(scratch),
          state_(state, a.block, rows_) {}

    template <typename Number>
    void attend() const {
        const size_t blocks = (positions_ + kBlockPositions - 1) / kBlockPositions;
        const bool is_shared = rows_ - first_ > 2 * kAttentionRows;  // many tiles share a conversion to fp32
        for (size_t block = 0; block < blocks; ++block) {
            if (is_shared) {
                to_floats(keys<Number>(block), a_.block.head_dim * kBlockPositions);
                score<float>(block, scratch_.numbers, scratch_.numbers);
            } else {
                score(block, keys<Number>(block), block + 1 < blocks ? keys<Number>(block + 1) : values<Number>(0));
            }
        }
        for (size_t row = first_; row < rows_; ++row) soften(row);
        std::memset(state_.outputs + first_ * width_, 0, (rows_ - first_) * width_ * sizeof(float));
        for (size_t block = 0; block < blocks; ++block) {
            if (is_shared) {
                to_floats(values<Number>(block), kBlockPositions * width_);
                weigh<float>(block, scratch_.numbers, scratch_.numbers);
            } else {
                const bool is_last = block + 1 == blocks;
                weigh(block, values<Number>(block), is_last ? keys<Number>(block + 1) : values<Number>(block + 1));
            }
        }
    }

  private:
    // A block of this chunk or the one behind it.
    template <typename Number>
    const Number* keys(size_t block) const {
        return reinterpret_cast<const Number*>(a_.cache + (begin_ / kBlockPositions + block) * a_.block_stride);
    }
    template <typename Number>
    const Number* values(size_t block) const {
        return keys<Number>(block) + a_.block.values_offset() / sizeof(Number);
    }
    template <typename Number>
    void to_floats(const Number* from, size_t count) const {
        for (size_t i = 0; i < count; i += kLaneCount) store(scratch_.numbers + i, load_number(from + i));
    }
    size_t first_row_of_block(size_t block) const { return first_row_at(a_, begin_ + block * kBlockPositions); }
    // How many positions of the block the row sees at most.
    size_t visible(size_t row, size_t block) const {
        return visible_positions(a_, row, begin_ + block * kBlockPositions, kBlockPositions);
    }

    template <typename Number>
    void score(size_t block, const Number* keys, const Number* ahead) const {
        for_each_row_tile<kAttentionRows>(first_row_of_block(block), rows_, [&]<int Rows>(size_t row) {
            const size_t vectors = (visible(row + Rows - 1, block) + kLaneCount - 1) / kLaneCount;
            for_each_row_tile<kVectorsOfTile<Rows>>(0, vectors, [&]<int Vectors>(size_t vector) {
                const size_t at = vector * kLaneCount;
                score_tile<Rows, Vectors>(scratch_.queries + row * width_, width_, keys + at, ahead + at,
                                          a_.block.head_dim,
                                          scratch_.weights + row * kChunkPositions + block * kBlockPositions + at);
            });
        });
    }

    // Scores of one row become weights.
    void soften(size_t row) const {
        float* scores = scratch_.weights + row * kChunkPositions;
        const size_t visible = visible_positions(a_, row, begin_, kChunkPositions);
        const size_t whole = visible / kLaneCount * kLaneCount, rest = visible - whole;
        Floats highest = broadcast(kLowest);
        for (size_t i = 0; i < whole; i += kLaneCount) highest = larger(load(scores + i), highest);
        if (rest != 0) highest = larger(first_or(load(scores + whole), rest, kLowest), highest);
        state_.maxima[row] = largest(highest);
        const Floats maximum = broadcast(state_.maxima[row]);
        Floats total = broadcast(0.0f);
        size_t i = 0;
        for (; i < whole; i += kLaneCount) {
            const Floats weight = exponential_of_negative(subtract(load(scores + i), maximum));
            store(scores + i, weight);
            total = add(total, weight);
        }
        if (rest != 0) {
            const Floats weight = exponential_of_negative(subtract(load(scores + i), maximum));
            store(scores + i, first_or(weight, rest, 0.0f));
            total = add(total, load(scores + i));
            i += kLaneCount;
        }
        // Other rows of a tile see more.
        for (; i < positions_; i += kLaneCount) store(scores + i, broadcast(0.0f));
        store(state_.totals + row * kLaneCount, total);
    }

    template <typename Number>
    void weigh(size_t block, const Number* values, const Number* ahead) const {
        for_each_row_tile<kAttentionRows>(first_row_of_block(block), rows_, [&]<int Rows>(size_t row) {
            const size_t positions = visible(row + Rows - 1, block);
            for_each_row_tile<kVectorsOfTile<Rows>>(0, width_ / kLaneCount, [&]<int Vectors>(size_t vector) {
                const size_t at = vector * kLaneCount;
                weigh_tile<Rows, Vectors>(scratch_.weights + row * kChunkPositions + block * kBlockPositions,
                                          values + at, ahead + at, width_, positions,
                                          state_.outputs + row * width_ + at);
            });
        });
    }

    const AttentionArguments& a_;
    size_t begin_, first_, rows_, width_;
    size_t positions_;  // of the chunk that the last row sees
    const AttentionScratch& scratch_;
    AttentionState state_;
};

inline void scale_queries(const AttentionArguments& a, const AttentionScratch& scratch) {
    const size_t width = a.block.padded_head_dim(), head_dim = a.block.head_dim;
    for (size_t row = 0; row < a.rows(); ++row) {
        const float* from = a.query + row / a.group * a.query_stride + row % a.group * head_dim;
        float* to = scratch.queries + row * width;
        for (size_t i = 0; i < head_dim; ++i) to[i] = from[i] * a.scale;
    }
}

inline void attend(const AttentionArguments& a, size_t chunk, const AttentionScratch& scratch, float* state) {
    const AttendedChunk attended(a, chunk, scratch, state);
    switch (a.block.type) {
        case KVType::fp16: return attended.attend<Half>();
        case KVType::bf16: return attended.attend<BFloat>();
    }
}

inline void attend_to_chunk(const AttentionArguments& a, size_t chunk, float* state, uint8_t* memory) {
    const AttentionScratch scratch(memory, a.block, a.rows());
    scale_queries(a, scratch);
    attend(a, chunk, scratch, state);
}

inline void attention(const AttentionArguments& a, uint8_t* memory) {
    const AttentionScratch scratch(memory, a.block, a.rows());
    scale_queries(a, scratch);
    const AttentionState state(scratch.states, a.block, a.rows());
    float* next = scratch.states + attention_state_floats(a.block, a.rows());
    attend(a, 0, scratch, scratch.states);
    for (size_t chunk = 1; chunk < a.chunks(); ++chunk) {
        attend(a, chunk, scratch, next);
        const size_t first = first_row_at(a, chunk * kChunkPositions);
        merge_state(a, state, AttentionState(next, a.block, a.rows()), first);
    }
    write_outputs(a, state);
}

}  // namespace nybble::NYBBLE_ISA
