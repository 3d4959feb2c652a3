// The ops that work on one row at a time.
#pragma once

#include <cmath>

#include "kernels/generic/exponential.hpp"
#include "kernels/kernel.hpp"

namespace nybble::NYBBLE_ISA {

inline constexpr float kSmallestMaximum = 1e-30f;
inline constexpr float kLargestMeanSquare = 1e37f;  // beyond may be an overflow

// The places of the outliers of one block, in the order they are found.
struct BlockOutliers {
    uint32_t places[kBlockOutliers];
    size_t count = 0;

    // Values i..i+15 of the block, zero where they are outliers and from `end` on.
    Floats others(const float* x, size_t i, size_t end) const {
        if (i >= end) return broadcast(0.0f);
        Floats values = end - i >= 16 ? load(x + i) : load_first(x + i, end - i);
        for (size_t j = 0; j < count; ++j) {
            if (places[j] >= i && places[j] < i + 16) values = without_lane(values, places[j] - i);
        }
        return values;
    }
};

inline bool is_outlier(float magnitude, float mean_square) {
    return magnitude * magnitude > kOutlierRatio * kOutlierRatio * mean_square;
}

// Largest magnitude of a block's values but its outliers; those over kOutlierRatio root mean squares become outliers
// one after another. `poison` becomes NaN if a value is NaN or infinite.
inline float take_out_outliers(const float* x, size_t count, BlockOutliers& outliers, float& poison) {
    for (;;) {
        Floats magnitudes = broadcast(0.0f), squares = broadcast(0.0f), zeros = broadcast(0.0f);
        for (size_t i = 0; i < count; i += 16) {
            const Floats value = outliers.others(x, i, count);
            magnitudes = larger(absolute(value), magnitudes);
            squares = multiply_add(value, value, squares);
            zeros = multiply_add(value, broadcast(0.0f), zeros);
        }
        const float maximum = largest(magnitudes);
        poison = sum(zeros);
        const bool found = is_outlier(maximum, sum(squares) / static_cast<float>(count));
        if (!found || poison != poison || outliers.count == kBlockOutliers) return maximum;
        // The first of that magnitude that is not taken out yet.
        for (size_t i = 0;; i += 16) {
            const size_t lane = lane_of(absolute(outliers.others(x, i, count)), maximum);
            if (lane == 16) continue;
            outliers.places[outliers.count++] = static_cast<uint32_t>(i + lane);
            break;
        }
    }
}

struct RoundedBlock {
    float scale;
    int32_t code_sum;
};

// `count` values of a block to codes, zeros behind them up to the block's end.
// A block with a NaN or an infinity gets a NaN scale: rounding must not hide that the model has broken down.
inline RoundedBlock quantise_block(const float* x, size_t count, size_t block, int8_t* codes, BlockOutliers& outliers) {
    float poison = 0.0f;
    const float maximum = take_out_outliers(x, count, outliers, poison);
    // Anything smaller is 0: its inverse would overflow.
    const bool is_zero = !(maximum > kSmallestMaximum);
    const float scale = (is_zero ? 0.0f : maximum / 127.0f) + poison;
    const size_t rounded = is_zero || scale != scale ? 0 : count;  // codes from there on are 0
    const Floats inverse = broadcast(127.0f / maximum);
    Integers total = broadcast_integer(0);
    for (size_t i = 0; i < block; i += 16) {
        // max·(127/max) may round above 127 by an ulp, never to 127.5: no clamp is needed.
        const Integers code =
            to_integers(i >= rounded ? broadcast(0.0f) : multiply(outliers.others(x, i, rounded), inverse));
        store_int8(codes + i, code);
        total = add(total, code);
    }
    return {scale, sum(total)};
}

// The same, bit for bit, for a whole block of 32 in registers. False, with nothing done, for one that holds NaN,
// infinity, values near overflow, or nothing but zeros.
inline bool quantise_block_of_32(const float* x, int8_t* codes, BlockOutliers& outliers, RoundedBlock& result) {
    Floats first = load(x), second = load(x + 16);
    float maximum = 0.0f;
    for (size_t taken = 0;; ++taken) {
        maximum = largest(larger(absolute(second), larger(absolute(first), broadcast(0.0f))));
        const Floats squares = multiply_add(second, second, multiply_add(first, first, broadcast(0.0f)));
        const float mean_square = sum(squares) / 32.0f;
        if (!(maximum > kSmallestMaximum && mean_square < kLargestMeanSquare)) return false;
        if (taken == kBlockOutliers || !is_outlier(maximum, mean_square)) [[likely]] {
            outliers.count = taken;
            break;
        }
        const size_t lane = lane_of(absolute(first), maximum);
        if (lane < 16) {
            outliers.places[taken] = static_cast<uint32_t>(lane);
            first = without_lane(first, lane);
        } else {
            const size_t in_second = lane_of(absolute(second), maximum);
            outliers.places[taken] = static_cast<uint32_t>(16 + in_second);
            second = without_lane(second, in_second);
        }
    }
    const Floats inverse = broadcast(127.0f / maximum);
    const Integers low = to_integers(multiply(first, inverse)), high = to_integers(multiply(second, inverse));
    store_int8(codes, low);
    store_int8(codes + 16, high);
    result = {maximum / 127.0f, sum(add(low, high))};
    return true;
}

inline void quantise(const float* values, size_t width, const QuantisedRows& to, size_t row) {
    int8_t* codes = to.codes + row * to.code_stride;
    Outlier* outlier = to.outliers + row * to.blocks * kBlockOutliers;
    const Outlier* first_outlier = outlier;
    for (size_t b = 0; b < to.blocks; ++b, values += to.block, codes += to.block, width -= to.block) {
        RoundedBlock rounded{};
        BlockOutliers outliers;
        if (to.block != 32 || width < 32 || !quantise_block_of_32(values, codes, outliers, rounded)) {
            const size_t count = width < to.block ? width : to.block;
            rounded = quantise_block(values, count, to.block, codes, outliers);
        }
        float scaled_sum = rounded.scale * static_cast<float>(rounded.code_sum);
        for (size_t j = 0; j < outliers.count; ++j) {
            *outlier = {static_cast<uint32_t>(b), outliers.places[j], values[outliers.places[j]]};
            scaled_sum += (outlier++)->value;
        }
        const size_t at = b * to.row_count + row;
        to.scales[at] = rounded.scale;
        to.scaled_sums[at] = scaled_sum;
        to.negative_sums[at] = -rounded.code_sum;
    }
    to.outlier_counts[row] = static_cast<uint32_t>(outlier - first_outlier);
}

inline void rms_norm(const NormArguments& a) {
    for (size_t begin = 0; begin < a.width; begin += a.group) {
        const float* input = a.input + begin;
        float* output = a.output + begin;
        const size_t whole = a.group / 16 * 16, rest = a.group - whole;
        Floats squares = broadcast(0.0f);
        for (size_t i = 0; i < whole; i += 16) {
            const Floats value = load(input + i);
            squares = multiply_add(value, value, squares);
        }
        if (rest != 0) {
            const Floats value = load_first(input + whole, rest);
            squares = multiply_add(value, value, squares);
        }
        const float mean = sum(squares) / static_cast<float>(a.group);
        // mean − mean is NaN where squares overflowed: a factor of 0 would hide it.
        const Floats factor = broadcast(1.0f / std::sqrt(mean + a.epsilon) + (mean - mean));
        for (size_t i = 0; i < whole; i += 16) {
            store(output + i, multiply(multiply(load(input + i), factor), load(a.weight + i)));
        }
        if (rest != 0) {
            const Floats value = multiply(load_first(input + whole, rest), factor);
            store_first(output + whole, multiply(value, load_first(a.weight + whole, rest)), rest);
        }
    }
}

inline void rotate(const RotateArguments& a) {
    const size_t half = a.head_dim / 2;
    const auto step = [&](size_t i, size_t count) {
        const bool whole = count == 16;
        const Floats x = whole ? load(a.input + i) : load_first(a.input + i, count);
        const Floats y = whole ? load(a.input + half + i) : load_first(a.input + half + i, count);
        const Floats c = whole ? load(a.cosines + i) : load_first(a.cosines + i, count);
        const Floats s = whole ? load(a.sines + i) : load_first(a.sines + i, count);
        const Floats turned_x = subtract(multiply(x, c), multiply(y, s));
        const Floats turned_y = add(multiply(y, c), multiply(x, s));
        if (whole) {
            store(a.output + i, turned_x);
            store(a.output + half + i, turned_y);
        } else {
            store_first(a.output + i, turned_x, count);
            store_first(a.output + half + i, turned_y, count);
        }
    };
    size_t i = 0;
    for (; i + 16 <= half; i += 16) step(i, 16);
    if (i < half) step(i, half - i);
}

inline void swiglu(const float* gate, const float* up, float* output, size_t width) {
    const auto silu_times = [](Floats g, Floats u) {
        const Floats decay = exponential(subtract(broadcast(0.0f), g));
        return multiply(divide(g, add(broadcast(1.0f), decay)), u);
    };
    size_t i = 0;
    for (; i + 16 <= width; i += 16) store(output + i, silu_times(load(gate + i), load(up + i)));
    if (i < width) {
        const size_t rest = width - i;
        store_first(output + i, silu_times(load_first(gate + i, rest), load_first(up + i, rest)), rest);
    }
}

}  // namespace nybble::NYBBLE_ISA
