// The loops of kernels/generic/peaks.hpp as each instruction set exports them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace nybble {

inline constexpr size_t kReadBytes = 256;
inline constexpr int kPeakGroups = 8, kPeakRows = 8, kPeakVectors = 2;

// What the loops multiply; in memory, so that no compiler can work out the result.
struct PeakOperands {
    alignas(64) uint8_t codes[kPeakVectors][64];
    alignas(64) float weights[kPeakVectors][16];
    int32_t activations[kPeakGroups][kPeakRows];
    float factors[kPeakGroups][kPeakRows];
};

struct PeakKernels {
    int32_t (*read)(const uint8_t* from, size_t bytes);
    int32_t (*multiply_integers)(size_t rounds, const PeakOperands&);
    float (*multiply_floats)(size_t rounds, const PeakOperands&);
    // Multiply-adds of a round.
    size_t integer_products, float_products;
};

}  // namespace nybble
