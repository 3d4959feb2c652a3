// Attention of successive query positions and the query heads of one KV head, against that head's KV cache.
// For each chunk of positions: all scores, their softmax, then the weighted sum of values; no score matrix but that of
// a chunk. A row meets the same operations in the same order whether its position is computed alone (decode) or with
// others (prefill), and whoever computes its chunks.
#pragma once

#include <cstring>

#include "kernels/generic/attention_codes.hpp"
#include "kernels/generic/attention_floats.hpp"
#include "kernels/generic/attention_state.hpp"

namespace nybble::NYBBLE_ISA {

struct AttentionScratch {
    float* queries;         // [row][feature], times the scale
    float* numbers;         // keys, then values, of a block in fp32
    float* weights;         // [row][position of the chunk]: scores, then their softmax
    float* states;          // of all chunks so far, and of the next
    WideRow* wide_queries;  // [row], of an int8 cache, and their codes
    WideRow* wide_weights;  // [row], times the scales of the values
    uint8_t* query_codes;   // [row][feature], 2 bytes each
    uint8_t* weight_codes;  // [row][position of the chunk]

    AttentionScratch(uint8_t* memory, size_t width, size_t rows)
        : queries(reinterpret_cast<float*>(memory)),
          numbers(queries + rows * width),
          weights(numbers + kBlockPositions * width),
          states(weights + rows * kChunkPositions),
          wide_queries(reinterpret_cast<WideRow*>(states + 2 * attention_state_floats(width, rows))),
          wide_weights(wide_queries + rows),
          query_codes(reinterpret_cast<uint8_t*>(wide_weights + rows)),
          weight_codes(query_codes + rows * 2 * width) {}
};

inline size_t attention_scratch_bytes(size_t width, size_t rows) {
    const size_t floats = rows * width + kBlockPositions * width + rows * kChunkPositions;
    const size_t wide = rows * (2 * sizeof(WideRow) + 2 * width + 2 * kChunkPositions);
    return (floats + 2 * attention_state_floats(width, rows)) * sizeof(float) + wide;
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
          state_(state, width_, rows_) {}

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

    void attend_to_codes() const {
        const size_t blocks = (positions_ + kBlockPositions - 1) / kBlockPositions;
        for (size_t block = 0; block < blocks; ++block) {
            score_codes(block);
        }
        for (size_t row = first_; row < rows_; ++row) {
            soften(row);
            round_weights(row, blocks);
        }
        weigh_codes();
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

    // Rows of a tile that see different positions share only those that all see: a weight of 0 would not keep an
    // infinite or NaN value out of a row.
    template <typename Number>
    void weigh(size_t block, const Number* values, const Number* ahead) const {
        for_each_row_tile<kAttentionRows>(first_row_of_block(block), rows_, [&]<int Rows>(size_t row) {
            const size_t shared = visible(row, block), most = visible(row + Rows - 1, block);
            for_each_row_tile<kVectorsOfTile<Rows>>(0, width_ / kLaneCount, [&]<int Vectors>(size_t vector) {
                const size_t at = vector * kLaneCount;
                const float* weights = scratch_.weights + row * kChunkPositions + block * kBlockPositions;
                float* outputs = state_.outputs + row * width_ + at;
                weigh_tile<Rows, Vectors>(weights, values + at, ahead + at, width_, shared, outputs);
                if (most == shared) return;
                for (size_t r = 1; r < Rows; ++r) {
                    const size_t more = visible(row + r, block) - shared, place = shared * width_ + at;
                    if (more == 0) continue;
                    weigh_tile<1, Vectors>(weights + r * kChunkPositions + shared, values + place, ahead + place,
                                           width_, more, outputs + r * width_);
                }
            });
        });
    }

    const float* scales_behind(const uint8_t* codes) const {
        return reinterpret_cast<const float*>(codes + a_.block.scales_offset());
    }

    // Fetches the block's values meanwhile.
    void score_codes(size_t block) const {
        const uint8_t *codes = keys<uint8_t>(block), *ahead = values<uint8_t>(block);
        for_each_row_tile<kWideRows>(first_row_of_block(block), rows_, [&]<int Rows>(size_t row) {
            const size_t vectors = (visible(row + Rows - 1, block) + kLaneCount - 1) / kLaneCount;
            for_each_row_tile<kVectorsOfWideTile<Rows>>(0, vectors, [&]<int Vectors>(size_t vector) {
                const size_t at = vector * kLaneCount;
                score_codes_tile<Rows, Vectors>(
                    scratch_.query_codes + row * 2 * width_, scratch_.wide_queries + row, width_, codes + 4 * at,
                    ahead + 4 * at, scales_behind(codes) + at,
                    scratch_.weights + row * kChunkPositions + block * kBlockPositions + at);
            });
        });
    }

    // Weights, times the scales of the values they weigh, become codes.
    void round_weights(size_t row, size_t blocks) const {
        const float* weights = scratch_.weights + row * kChunkPositions;
        const size_t visible = visible_positions(a_, row, begin_, kChunkPositions);
        float scaled[kChunkPositions];
        for (size_t block = 0; block < blocks; ++block) {
            const float* scales = scales_behind(values<uint8_t>(block));
            for (size_t i = 0; i < kBlockPositions; i += kLaneCount) {
                // What lies where nothing is visible may be anything.
                const size_t at = block * kBlockPositions + i, left = visible <= at ? 0 : visible - at;
                const Floats products = multiply(load(weights + at), load(scales + i));
                store(scaled + at, left >= kLaneCount ? products : first_or(products, left, 0.0f));
            }
        }
        uint8_t* codes = scratch_.weight_codes + row * 2 * kChunkPositions;
        scratch_.wide_weights[row] = round_wide(scaled, blocks * kBlockPositions, codes);
    }

    // Fetches the next chunk's keys meanwhile.
    void weigh_codes() const {
        const uint8_t* ahead = keys<uint8_t>(kChunkPositions / kBlockPositions);
        for_each_row_tile<kWideRows>(first_, rows_, [&]<int Rows>(size_t row) {
            const size_t positions = visible_positions(a_, row + Rows - 1, begin_, kChunkPositions);
            for_each_row_tile<kVectorsOfWideTile<Rows>>(0, width_ / kLaneCount, [&]<int Vectors>(size_t vector) {
                const size_t at = vector * kLaneCount;
                weigh_codes_tile<Rows, Vectors>(scratch_.weight_codes + row * 2 * kChunkPositions,
                                                scratch_.wide_weights + row, values<uint8_t>(0) + 4 * at,
                                                ahead + 4 * at, a_.block_stride, width_, positions,
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

inline void prepare_queries(const AttentionArguments& a, const AttentionScratch& scratch) {
    const size_t width = a.block.padded_head_dim(), head_dim = a.block.head_dim;
    for (size_t row = 0; row < a.rows(); ++row) {
        const float* from = a.query + row / a.group * a.query_stride + row % a.group * head_dim;
        float* to = scratch.queries + row * width;
        for (size_t i = 0; i < head_dim; ++i) to[i] = from[i] * a.scale;
        if (!a.block.has_codes()) continue;
        std::memset(to + head_dim, 0, (width - head_dim) * sizeof(float));
        scratch.wide_queries[row] = round_wide(to, width, scratch.query_codes + row * 2 * width);
    }
}

inline void attend(const AttentionArguments& a, size_t chunk, const AttentionScratch& scratch, float* state) {
    const AttendedChunk attended(a, chunk, scratch, state);
    switch (a.block.type) {
        case KVType::fp32: return attended.attend<float>();
        case KVType::fp16: return attended.attend<Half>();
        case KVType::bf16: return attended.attend<BFloat>();
        case KVType::int8: return attended.attend_to_codes();
    }
}

inline void attend_to_chunk(const AttentionArguments& a, size_t chunk, float* state, uint8_t* memory) {
    const AttentionScratch scratch(memory, a.block.padded_head_dim(), a.rows());
    prepare_queries(a, scratch);
    attend(a, chunk, scratch, state);
}

inline void attention(const AttentionArguments& a, uint8_t* memory) {
    const AttentionScratch scratch(memory, a.block.padded_head_dim(), a.rows());
    prepare_queries(a, scratch);
    const size_t rows = a.rows(), width = a.block.padded_head_dim();
    const AttentionState state(scratch.states, width, rows);
    float* next = scratch.states + attention_state_floats(width, rows);
    attend(a, 0, scratch, scratch.states);
    for (size_t chunk = 1; chunk < a.chunks(); ++chunk) {
        attend(a, chunk, scratch, next);
        const size_t first = first_row_at(a, chunk * kChunkPositions);
        merge_state(a, state, AttentionState(next, width, rows), first);
    }
    write_outputs(a, state);
}

}  // namespace nybble::NYBBLE_ISA
