// The matrix instructions of SpacemiT's cores, each defined here and nowhere else, as text of inline assembly: `.insn`
// needs no assembler that knows them. Numbers are those of vector registers. They want LMUL 1 in vtype, all lanes (vl
// is not looked at), and a `vd` that is even and overlaps no source.
#pragma once

namespace nybble::spacemit {

// Signs of the operands of a dot product, A first: its funct3.
inline constexpr int kSignedUnsigned = 2, kSignedSigned = 3;

}  // namespace nybble::spacemit

// smt.vmadot, int8, of IME1: vd:vd+1 (4 × 4 int32) += A (4 rows × 8) · B (4 columns × 8)ᵀ. `signs` is text.
#define NYBBLE_VMADOT(signs, vd, a, b) ".insn r 0x2b, " signs ", 0x71, x" #vd ", x" #a ", x" #b "\n\t"
