// The inner loop of linears with matrix instructions, as the extensions that have them export it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "measure/peak_kernels.hpp"

namespace nybble {

struct MatrixPeak {
    int32_t (*multiply)(size_t rounds, const PeakOperands&);
    size_t products;  // multiply-adds of a round
};

}  // namespace nybble
