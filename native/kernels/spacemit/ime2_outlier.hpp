// What an outlier of a row adds to the row's sums, on the cores that have IME2.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/spacemit/ime2_groups.hpp"
#include "kernels/spacemit/words.hpp"

namespace nybble::NYBBLE_ISA {

// clang-format off

// `sums` of 32 channels += an outlier times their weights; their codes lie 16 bytes apart, as `Halves` those of 16 with
// those of the others.
template <int Bits, bool Halves, bool Offsets>
inline void add_outlier(const uint8_t* codes, int first_bit, const uint16_t* factors, float value, float* sums) {
    __asm__ volatile(
        "vsetvli t0, %[bytes], e8, mf4, ta, ma\n\t"
        "vlse8.v v9, (%[codes]), %[sixteen]\n\t"
        "vsetvli t0, zero, e8, mf4, ta, ma\n\t"
        "vsll.vx v8, v9, %[up]\n\t"
        ".if %[halves]\n\t"
        "vslideup.vi v8, v9, 16\n\t"
        ".endif\n\t"
        ".if %[has_offsets]\n\t"
        "vsrl.vi v8, v8, %[down]\n\t"
        ".else\n\t"
        "vsra.vi v8, v8, %[down]\n\t"
        ".endif\n\t"
        "vsetvli t0, zero, e32, m1, ta, ma\n\t"
        ".if %[has_offsets]\n\t"
        "vzext.vf4 v9, v8\n\t"
        ".else\n\t"
        "vsext.vf4 v9, v8\n\t"
        ".endif\n\t"
        "vfcvt.f.x.v v9, v9\n\t"
        "vl1re32.v v12, (%[sums])\n\t"
        "vsetvli t0, zero, e16, mf2, ta, ma\n\t"
        "vle16.v v10, (%[scales])\n\t"
        "vfwcvt.f.f.v v11, v10\n\t"
        ".if %[has_offsets]\n\t"
        "vle16.v v10, (%[offsets])\n\t"
        "vfwcvt.f.f.v v13, v10\n\t"
        "vsetvli t0, zero, e32, m1, ta, ma\n\t"
        "vfmadd.vv v9, v11, v13\n\t"
        ".else\n\t"
        "vsetvli t0, zero, e32, m1, ta, ma\n\t"
        "vfmul.vv v9, v9, v11\n\t"
        ".endif\n\t"
        "vfmacc.vf v12, %[value], v9\n\t"
        "vs1r.v v12, (%[sums])"
        :
        : [codes] "r"(codes), [bytes] "r"(Halves ? 16 : 32), [halves] "i"(Halves), [sixteen] "r"(16),
          [up] "r"(8 - Bits - first_bit), [down] "i"(8 - Bits), [has_offsets] "i"(Offsets), [scales] "r"(factors),
          [offsets] "r"(factors + kRegisterFloats), [value] "f"(value), [sums] "r"(sums)
        : "t0", "memory", NYBBLE_VECTOR_CLOBBERS);
}

// clang-format on

}  // namespace nybble::NYBBLE_ISA
