// Rounding rows of activations to int8.
#pragma once

#include <algorithm>
#include <cstring>
#include <iterator>

#include "kernels/generic/tiles.hpp"
#include "kernels/kernel.hpp"

namespace nybble::NYBBLE_ISA {

inline constexpr float kSmallestMaximum = 1e-30f;
inline constexpr float kLargestMeanSquare = 1e37f;  // beyond may be an overflow

// A group's values, zero where they are outliers and behind its `count`.
struct ActivationGroup {
    alignas(64) float values[kActivationGroup];
    size_t count;

    ActivationGroup(const float* x, size_t given) : count(given) {
        for (size_t i = 0; i < kActivationGroup; i += kLaneCount) {
            const size_t rest = i < count ? count - i : 0;
            store(values + i, rest >= kLaneCount ? load(x + i) : rest > 0 ? load_first(x + i, rest) : broadcast(0.0f));
        }
    }
    void clear() { std::fill(std::begin(values), std::end(values), 0.0f); }
};

struct Spread {
    float maximum;      // magnitude
    float mean_square;  // NaN or infinite if any value is
};

inline Spread spread_of(const ActivationGroup& group) {
    Floats magnitudes = broadcast(0.0f), squares = broadcast(0.0f);
    for (size_t i = 0; i < kActivationGroup; i += kLaneCount) {
        const Floats value = load(group.values + i);
        magnitudes = larger(absolute(value), magnitudes);
        squares = multiply_add(value, value, squares);
    }
    return {largest(magnitudes), sum(squares) / static_cast<float>(group.count)};
}

// Takes out the values over kOutlierRatio root mean squares one after another, the first of equal ones first, and
// leaves their places in order. Returns the largest magnitude that is left; NaN for a group with a NaN or an infinity,
// which is cleared.
inline float take_out_outliers(ActivationGroup& group, uint32_t (&places)[kGroupOutliers], size_t& taken) {
    for (taken = 0;;) {
        const Spread spread = spread_of(group);
        if (!(spread.mean_square < kLargestMeanSquare)) {
            Floats zeros = broadcast(0.0f);
            for (size_t i = 0; i < kActivationGroup; i += kLaneCount) {
                zeros = multiply_add(load(group.values + i), broadcast(0.0f), zeros);
            }
            const float poison = sum(zeros);
            if (poison != poison) {
                group.clear();
                return poison;
            }
        }
        const bool found = spread.maximum * spread.maximum > kOutlierRatio * kOutlierRatio * spread.mean_square;
        if (!found || taken == kGroupOutliers) [[likely]]
            return spread.maximum;
        for (size_t i = 0;; i += kLaneCount) {
            const Floats values = load(group.values + i);
            const size_t lane = lane_of(absolute(values), spread.maximum);
            if (lane == kLaneCount) continue;
            const auto place = static_cast<uint32_t>(i + lane);
            size_t at = taken++;
            for (; at > 0 && places[at - 1] > place; --at) places[at] = places[at - 1];
            places[at] = place;
            // The whole vector: what is stored in part is slow to load again.
            store(group.values + i, without_lane(values, lane));
            break;
        }
    }
}

inline uint64_t eight_bytes(const void* from) {
    uint64_t bytes;
    std::memcpy(&bytes, from, sizeof bytes);
    return bytes;
}

// Where the codes of a row's group lie: row by row, or in pieces of at least 8 between those of the tile's other rows,
// as codes or as halves of codes (packing/layout.hpp).
class RowOfCodes {
  public:
    RowOfCodes(const QuantisedRows& to, size_t group, size_t row) {
        const size_t in_tile = row & (to.tile_rows - 1);
        rows_ = to.tile_rows;
        depth_ = traits_of(to.layout).depth;
        codes_ = to.tile_of(group, row - in_tile) + in_tile * depth_;
        split_ = traits_of(to.layout).split;
    }
    // In the order of features.
    void store(size_t feature, Integers sixteen) const {
        if (rows_ == 1 && !split_) {
            store_int8(codes_ + feature, sixteen);
            return;
        }
        int8_t values[kLaneCount];
        store_int8(values, sixteen);
        for (size_t i = 0; i < kLaneCount; i += 8) {
            const size_t k = feature + i;
            const size_t rest = k & (depth_ - 1);
            int8_t* to = codes_ + (k - rest) * rows_ + rest;
            if (split_) {
                store_halves((k & depth_) == 0 ? to : to - rows_ * depth_, (k & depth_) == 0, eight_bytes(values + i));
            } else {
                std::memcpy(to, values + i, 8);
            }
        }
    }

  private:
    // Eight codes to where low halves lie, and to the high ones behind; beside those stored first, or first.
    void store_halves(int8_t* to, bool first, uint64_t codes) const {
        constexpr uint64_t every_low_half = 0x0f0f0f0f0f0f0f0f;
        for (const uint64_t halves : {codes & every_low_half, codes >> 4 & every_low_half}) {
            const uint64_t stored = first ? halves : eight_bytes(to) | halves << 4;
            std::memcpy(to, &stored, sizeof stored);
            to += rows_ * depth_;
        }
    }

    int8_t* codes_;
    size_t rows_, depth_;
    bool split_;
};

inline void quantise(const float* x, size_t width, const QuantisedRows& to, size_t row) {
    const size_t blocks_of_group = kActivationGroup / to.block;
    Outlier* outlier = to.outliers_of(row);
    for (size_t g = 0; g < to.groups; ++g, x += kActivationGroup, width -= kActivationGroup) {
        ActivationGroup group(x, width < kActivationGroup ? width : kActivationGroup);
        uint32_t places[kGroupOutliers];
        size_t taken = 0;
        const float maximum = take_out_outliers(group, places, taken);
        // Anything smaller is 0: its inverse would overflow. Rounding must not hide a NaN: that becomes the scale.
        const bool is_zero = maximum <= kSmallestMaximum;
        to.scales[g * to.row_count + row] = is_zero ? 0.0f : maximum / 127.0f;
        const Floats inverse = broadcast(is_zero || maximum != maximum ? 0.0f : 127.0f / maximum);
        const RowOfCodes codes(to, g, row);
        for (size_t b = 0; b < blocks_of_group; ++b) {
            Integers total = broadcast_integer(0);
            for (size_t i = b * to.block; i < (b + 1) * to.block; i += kLaneCount) {
                // max·(127/max) may round above 127 by an ulp, never to 127.5: no clamp is needed.
                const Integers code = to_integers(multiply(load(group.values + i), inverse));
                codes.store(i, code);
                total = add(total, code);
            }
            const size_t block = g * blocks_of_group + b;
            if (block == to.blocks) break;
            const int32_t code_sum = sum(total);
            to.starts[block * to.row_count + row] = -kZeroPoint * code_sum;
            to.sums[block * to.row_count + row] = static_cast<float>(code_sum);
        }
        for (size_t j = 0; j < taken; ++j) {
            const auto of_block = static_cast<uint32_t>(to.block);
            const auto first = static_cast<uint32_t>(g * blocks_of_group);
            *outlier++ = {first + places[j] / of_block, places[j] % of_block, x[places[j]]};
        }
    }
    to.outlier_counts[row] = static_cast<uint32_t>(outlier - to.outliers_of(row));
}

}  // namespace nybble::NYBBLE_ISA
