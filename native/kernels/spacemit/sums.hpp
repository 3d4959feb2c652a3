// How the kernels of matrix instructions count, and what they tell the compiler.
#pragma once

#include <cstdint>

#include "kernels/kernel.hpp"

namespace nybble::NYBBLE_ISA {

// Integer sums begin at these bits and so are floats all the while: kSumsAsFloats + sum, exactly, as long as
// |sum| < 2²². Taking that off is cheaper than a conversion.
inline constexpr int32_t kSumsBegin = 0x4b400000;
inline constexpr float kSumsAsFloats = 12582912.0f;
static_assert(255 * 127 * kActivationGroup < 1 << 22);

}  // namespace nybble::NYBBLE_ISA

#define NYBBLE_VECTOR_CLOBBERS                                                                                    \
    "vl", "vtype", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11", "v12", "v13", "v14", \
        "v15", "v16", "v17", "v18", "v19", "v20", "v21", "v22", "v23", "v24", "v25", "v26", "v27", "v28", "v29",  \
        "v30", "v31"
