// eˣ in fp32, to about one unit in the last place, with the same bits on every instruction set.
#pragma once

#include "kernels/kernel.hpp"

namespace nybble::NYBBLE_ISA {

// x = n·ln 2 + r with |r| ≤ ln 2 / 2; eˣ = 2ⁿ · eʳ, eʳ by its Taylor series to r⁷ (truncation < 2⁻²⁷).
// Results below 2⁻¹²⁶ become about that, above 2¹²⁷·⁵ infinity; NaN stays NaN.
inline Floats exponential(Floats x) {
    x = larger(broadcast(-87.0f), x);
    x = smaller(broadcast(89.0f), x);
    const Floats n = round_to_even(multiply(x, broadcast(1.44269504f)));
    // ln 2 in two parts: n times the first is exact.
    Floats r = multiply_add(n, broadcast(-0.693359375f), x);
    r = multiply_add(n, broadcast(2.12194440e-4f), r);
    Floats p = broadcast(1.0f / 5040.0f);
    for (const float coefficient : {1.0f / 720.0f, 1.0f / 120.0f, 1.0f / 24.0f, 1.0f / 6.0f, 0.5f, 1.0f, 1.0f}) {
        p = multiply_add(p, r, broadcast(coefficient));
    }
    return multiply(p, power_of_two(to_integers(n)));
}

}  // namespace nybble::NYBBLE_ISA
