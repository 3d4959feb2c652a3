// Rounding to integer codes with one scale.
#pragma once

#include <cstring>

#include "kernels/generic/tiles.hpp"

namespace nybble::NYBBLE_ISA {

// code = round(x · inverse), x ≈ code · scale.
struct Rounding {
    Floats inverse;
    float scale;
};

// Codes of `count` values within ±largest_code. The scale is NaN, and codes mean nothing, if a value is NaN or
// infinite. If none exceeds 1e-30, whose inverse could overflow, codes and scale are 0.
inline Rounding rounding_of(const float* x, size_t count, float largest_code) {
    Floats magnitudes = broadcast(0.0f), zeros = broadcast(0.0f);
    for (size_t i = 0; i < count; i += kLaneCount) {
        const Floats value = count - i >= kLaneCount ? load(x + i) : load_first(x + i, count - i);
        magnitudes = larger(absolute(value), magnitudes);
        zeros = multiply_add(value, broadcast(0.0f), zeros);
    }
    const float maximum = largest(magnitudes), poison = sum(zeros);
    const bool is_zero = !(maximum > 1e-30f);
    return {broadcast(is_zero ? 0.0f : largest_code / maximum), (is_zero ? 0.0f : maximum / largest_code) + poison};
}

// 16-bit codes of activations that WideDot multiplies: both bytes of a code are signed ones.
inline constexpr float kLargestWideCode = 127.0f * 256.0f;

struct WideRow {
    float scale;
    int32_t start;  // −128 · Σ code: what a sum begins with, since the codes that are multiplied are 128 too large
};

// `count` values, a multiple of 16, to 2 · count bytes.
inline WideRow round_wide(const float* x, size_t count, uint8_t* to) {
    const Rounding rounding = rounding_of(x, count, kLargestWideCode);
    if (rounding.scale != rounding.scale) {
        // No codes are the codes of NaN, and the sum of what they become would overflow.
        std::memset(to, 0, 2 * count);
        return {rounding.scale, 0};
    }
    Integers total = broadcast_integer(0);
    for (size_t i = 0; i < count; i += kLaneCount) {
        const Integers codes = to_integers(multiply(load(x + i), rounding.inverse));
        store_wide(to + 2 * i, codes);
        total = add(total, codes);
    }
    return {rounding.scale, static_cast<int32_t>(static_cast<uint32_t>(sum(total)) * static_cast<uint32_t>(-128))};
}

}  // namespace nybble::NYBBLE_ISA
