// The matrix instructions of SpacemiT's cores, each defined here and nowhere else, as text of inline assembly: `.insn`
// needs no assembler that knows them. Numbers are those of vector registers. They want LMUL 1 in vtype, all lanes (vl
// is not looked at), and a `vd` that is even and overlaps no source. What they compute: ime/semantics.hpp.
#pragma once

namespace nybble::spacemit {

// Signs of the operands of a dot product, A first: its funct3.
inline constexpr int kSignedUnsigned = 2, kSignedSigned = 3;

}  // namespace nybble::spacemit

#define NYBBLE_IME_WORD(funct3, funct7, vd, a, b) ".insn r 0x2b, " funct3 ", " funct7 ", x" #vd ", x" #a ", x" #b "\n\t"

// smt.vmadot, int8, of IME1: vd:vd+1 (4 × 4 int32) += A (4 rows × 8) · B (4 columns × 8)ᵀ. `signs` is text.
#define NYBBLE_VMADOT(signs, vd, a, b) NYBBLE_IME_WORD(signs, "0x71", vd, a, b)

// smt.vmadot of IME2: vd:vd+1 (8 × 8 int32) += A (8 rows × 16 bytes) · B (8 columns × 16 bytes)ᵀ. The letters are the
// signs of A and B: unsigned or signed.
#define NYBBLE_VMADOT_SU_8(vd, a, b) NYBBLE_IME_WORD("2", "0x71", vd, a, b)
#define NYBBLE_VMADOT_SS_8(vd, a, b) NYBBLE_IME_WORD("3", "0x71", vd, a, b)
#define NYBBLE_VMADOT_UU_4(vd, a, b) NYBBLE_IME_WORD("0", "0x61", vd, a, b)
#define NYBBLE_VMADOT_US_4(vd, a, b) NYBBLE_IME_WORD("1", "0x61", vd, a, b)
#define NYBBLE_VMADOT_SU_4(vd, a, b) NYBBLE_IME_WORD("2", "0x61", vd, a, b)
#define NYBBLE_VMADOT_SS_4(vd, a, b) NYBBLE_IME_WORD("3", "0x61", vd, a, b)

// smt.vpack of IME2: vd:vd+1 = pieces of 256 or 512 bits of a and b in turn.
#define NYBBLE_VPACK_256(vd, a, b) NYBBLE_IME_WORD("2", "0x33", vd, a, b)
#define NYBBLE_VPACK_512(vd, a, b) NYBBLE_IME_WORD("3", "0x33", vd, a, b)
