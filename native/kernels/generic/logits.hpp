// Looking at the logits of one token.
#pragma once

#include <cstddef>

#include "kernels/generic/tiles.hpp"

namespace nybble::NYBBLE_ISA {

// Where the highest of `count` logits (at least one) is, the first of equals; `count` if any is NaN or infinite.
inline size_t highest_logit(const float* logits, size_t count) {
    const auto vector = [&](size_t i) {
        return count - i >= kLaneCount ? load(logits + i) : load_first(logits + i, count - i);
    };
    const size_t last = (count - 1) / kLaneCount * kLaneCount;
    Floats maxima = broadcast(logits[0]), zeros = broadcast(0.0f);
    for (size_t i = 0; i < last; i += kLaneCount) {
        const Floats value = load(logits + i);
        maxima = larger(value, maxima);
        zeros = multiply_add(value, broadcast(0.0f), zeros);  // NaN for ever after a NaN or an infinity
    }
    float highest = largest(maxima);
    zeros = multiply_add(vector(last), broadcast(0.0f), zeros);
    for (size_t i = last; i < count; ++i) highest = logits[i] > highest ? logits[i] : highest;
    if (const float zero = sum(zeros); zero != zero) return count;
    for (size_t i = 0;; i += kLaneCount) {
        const size_t lane = lane_of(vector(i), highest);
        // Lanes behind the end are 0: they come after the one that is meant.
        if (lane < kLaneCount) return i + lane;
    }
}

}  // namespace nybble::NYBBLE_ISA
