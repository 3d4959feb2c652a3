// What each IME instruction computes (version 0.6 of the specification, chapters 5 to 7). Runs on any machine.
//
// C is rows x rows, A is rows x depth, B is rows x depth: C[i][j] += A[i] · B[j]. All lie row after row in their
// registers; rows is 4 for A60 and 8 for A100. Two 4-bit elements share a byte, the first in the low half.
//
// Where the specification is silent or at odds with itself, this is what we assume:
// - .hp: the integer sum is rounded to fp16 (as the pseudo-code's cast says), times the scale plus C is computed in
//   fp32, and that is rounded to fp16 once. Compare with a tolerance.
// - vfwmadot: k ascending, each product added in fp32.
// - .sp: its text, figures and example agree on a depth of 16 (i8) or 32 (i4) kept elements, the pseudo-code's K is
//   twice that.
// - vnpack4 takes bytes whatever SEW is (SpacemiT's kernels use it so under e8 and e16), and writes imm2's unit of bits
//   from vs1, then from vs2, as the length of its pseudo-code's loops says.
// - vnpack under SEW 64, or with a unit of packing below 2 SEW, is refused.
// - NaN results are the canonical NaN, as in RISC-V.
#pragma once

#include <cstdint>

#include "ime/instruction.hpp"

namespace nybble::ime {

// Bytes of the register groups an instruction names, which may be the same memory where registers overlap.
struct Operands {
    const uint8_t* a;           // vs1
    const uint8_t* b;           // vs2
    const uint8_t* parameters;  // v0 or v1: masks (.sp) or scales (.hp); else unused
    uint8_t* d;                 // vd
};

// The instruction must be legal (why_illegal). sew_bits: 8, 16, 32 or 64, of vtype. bf16: MCPM.BF16, whether 16-bit
// floats are bf16 instead of fp16.
void execute(const Instruction& instruction, Profile profile, unsigned sew_bits, bool bf16, const Operands& operands);

}  // namespace nybble::ime
