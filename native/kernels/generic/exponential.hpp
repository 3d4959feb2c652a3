// eˣ in fp32, to about one unit in the last place, with the same bits on every instruction set.
#pragma once

#include "kernels/kernel.hpp"

namespace nybble::NYBBLE_ISA {

// For x in -87..89 or NaN, which stays NaN. x = n·ln 2 + r with |r| ≤ ln 2 / 2; eˣ = 2ⁿ · eʳ, eʳ by a polynomial whose
// coefficients make the largest relative error least: 2⁻²⁸. Above 2¹²⁷·⁵: infinity.
inline Floats exponential_within_range(Floats x) {
    // Adding 1.5·2²³ rounds to an integer, which the low bits then hold; 127 is the bias of an exponent.
    const Floats shift = broadcast(0x1.8p23f + 127.0f);
    const Floats shifted = multiply_add(x, broadcast(1.44269504f), shift);
    const Floats n = subtract(shifted, shift);
    // ln 2 in two parts: n times the first is exact.
    Floats r = multiply_add(n, broadcast(-0.693359375f), x);
    r = multiply_add(n, broadcast(2.12194440e-4f), r);
    Floats p = broadcast(0x1.6a23dp-10f);
    for (const float coefficient : {0x1.123a2p-7f, 0x1.5558f2p-5f, 0x1.555492p-3f, 0x1.fffffcp-2f, 1.0f, 1.0f}) {
        p = multiply_add(p, r, broadcast(coefficient));
    }
    return multiply(p, power_of_low_bits(shifted));
}

// Results below 2⁻¹²⁶ become about that.
inline Floats exponential(Floats x) {
    return exponential_within_range(smaller(broadcast(89.0f), larger(broadcast(-87.0f), x)));
}

// The same for x ≤ 0, sooner.
inline Floats exponential_of_negative(Floats x) { return exponential_within_range(larger(broadcast(-87.0f), x)); }

}  // namespace nybble::NYBBLE_ISA
