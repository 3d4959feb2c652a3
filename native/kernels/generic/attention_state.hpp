// What attention knows of a chunk of positions, or of several merged.
#pragma once

#include <limits>

#include "kernels/generic/exponential.hpp"
#include "kernels/generic/tiles.hpp"

namespace nybble::NYBBLE_ISA {

// No score but −infinity is lower, and its difference to one is never NaN.
inline constexpr float kLowest = -std::numeric_limits<float>::max();

struct AttentionState {
    float* outputs;  // [row][feature]: Σ weight · value, the largest weight being 1
    float* totals;   // [row][16]: lanes of Σ weight
    float* maxima;   // [row]: the score that weighs 1

    AttentionState(float* memory, size_t width, size_t rows)
        : outputs(memory), totals(outputs + rows * width), maxima(totals + rows * kLaneCount) {}
};

inline size_t attention_state_floats(size_t width, size_t rows) {
    return rows * (width + kLaneCount) + round_up(rows, kLaneCount);
}

// The first row that sees a position; rows are in order of position.
inline size_t first_row_at(const AttentionArguments& a, size_t position) {
    return position <= a.first_position ? 0 : (position - a.first_position) * a.group;
}

// How many positions from `begin` on, `most` at most, the row may see; it sees the first.
inline size_t visible_positions(const AttentionArguments& a, size_t row, size_t begin, size_t most) {
    const size_t visible = a.first_position + row / a.group + 1 - begin;
    return visible < most ? visible : most;
}

// Adds to rows `first`.. of `state` what those of the next chunk have.
inline void merge_state(const AttentionArguments& a, const AttentionState& state, const AttentionState& next,
                        size_t first) {
    const size_t rows = a.rows(), width = a.block.padded_head_dim();
    float maxima[kLaneCount], corrections[kLaneCount], next_corrections[kLaneCount];
    for (size_t begin = first / kLaneCount * kLaneCount; begin < rows; begin += kLaneCount) {
        const Floats old = load(state.maxima + begin), other = load(next.maxima + begin);
        const Floats maximum = larger(other, old);
        store(maxima, maximum);
        store(corrections, exponential_of_negative(subtract(old, maximum)));
        store(next_corrections, exponential_of_negative(subtract(other, maximum)));
        const size_t end = rows - begin < kLaneCount ? rows : begin + kLaneCount;
        for (size_t row = begin < first ? first : begin; row < end; ++row) {
            const Floats correction = broadcast(corrections[row - begin]);
            const Floats next_correction = broadcast(next_corrections[row - begin]);
            const auto add_up = [&](float* sums, const float* more) {
                store(sums, multiply_add(load(more), next_correction, multiply(load(sums), correction)));
            };
            add_up(state.totals + row * kLaneCount, next.totals + row * kLaneCount);
            for (size_t i = row * width; i < (row + 1) * width; i += kLaneCount) {
                add_up(state.outputs + i, next.outputs + i);
            }
            state.maxima[row] = maxima[row - begin];
        }
    }
}

inline void write_outputs(const AttentionArguments& a, const AttentionState& state) {
    const size_t head_dim = a.block.head_dim;
    for (size_t row = 0; row < a.rows(); ++row) {
        // The largest score weighs e⁰ = 1. A smaller total means that every score was −infinity or NaN.
        const float total = sum(load(state.totals + row * kLaneCount));
        const Floats divisor = broadcast(total >= 1.0f ? total : std::numeric_limits<float>::quiet_NaN());
        const float* from = state.outputs + row * a.block.padded_head_dim();
        float* to = a.output + row / a.group * a.output_stride + row % a.group * head_dim;
        for (size_t i = 0; i < head_dim; i += kLaneCount) {
            const size_t count = head_dim - i < kLaneCount ? head_dim - i : kLaneCount;
            store_first(to + i, divide(load(from + i), divisor), count);
        }
    }
}

inline void merge_chunks(const AttentionArguments& a, float* states) {
    const size_t rows = a.rows(), width = a.block.padded_head_dim(), floats = attention_state_floats(width, rows);
    const AttentionState state(states, width, rows);
    for (size_t chunk = 1; chunk < a.chunks(); ++chunk) {
        const size_t first = first_row_at(a, chunk * kChunkPositions);
        merge_state(a, state, AttentionState(states + chunk * floats, width, rows), first);
    }
    write_outputs(a, state);
}

}  // namespace nybble::NYBBLE_ISA
