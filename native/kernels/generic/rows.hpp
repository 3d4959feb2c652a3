// The ops that work on one row at a time.
#pragma once

#include <cmath>

#include "kernels/generic/exponential.hpp"
#include "kernels/kernel.hpp"

namespace nybble::NYBBLE_ISA {

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

// Floats from those computed with to those asked for: the rows of a prompt come from beyond the L2 cache, and the
// hardware alone begins anew at each page.
inline constexpr size_t kSwigluAhead = 512;

inline void swiglu(const float* gate, const float* up, float* output, size_t width) {
    const auto silu_times = [](Floats g, Floats u) {
        const Floats decay = exponential(subtract(broadcast(0.0f), g));
        return multiply(divide(g, add(broadcast(1.0f), decay)), u);
    };
    size_t i = 0;
    for (; i + 16 <= width; i += 16) {
        prefetch(reinterpret_cast<const uint8_t*>(gate + i + kSwigluAhead));
        prefetch(reinterpret_cast<const uint8_t*>(up + i + kSwigluAhead));
        store(output + i, silu_times(load(gate + i), load(up + i)));
    }
    if (i < width) {
        const size_t rest = width - i;
        store_first(output + i, silu_times(load_first(gate + i, rest), load_first(up + i, rest)), rest);
    }
}

}  // namespace nybble::NYBBLE_ISA
