// The 46 instructions of SpacemiT's matrix extension IME (version 0.6, chapters 2 and 8): encodings and legality.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

namespace nybble::ime {

// The cores that have it: A60 (K1; VLEN 256; 8-bit matrices only) and A100 (K3; VLEN 1024; everything).
enum class Profile { a60, a100 };

constexpr unsigned register_bytes(Profile profile) { return profile == Profile::a60 ? 32 : 128; }

enum class Operation { matrix, sparse, scaled, floats, pack, unpack, narrow, narrow_to_nibbles };

constexpr int kInstructions = 46;

struct Instruction {
    Operation operation;
    int index;               // 0 ≤ index < kInstructions: which instruction, counting i4 and i8 as two
    uint8_t vd, vs1, vs2;    // register numbers
    uint8_t vd_registers;    // 1, or 2 for a group that starts at vd
    uint8_t vs1_registers;   // likewise
    uint8_t parameters = 0;  // sparse and scaled: the register of masks or scales, 0 or 1
    uint8_t immediate = 0;   // imm2 or imm3 of the operations that have one
    uint8_t bits = 8;        // of an element of A and B: 4 or 8
    bool a_signed = false, b_signed = false;
    uint8_t slide = 0;        // rows of A skipped, 0 to 3
    bool saturating = false;  // narrow and narrow_to_nibbles
};

// Nothing for a word that is no IME instruction: another opcode, or a reserved encoding.
std::optional<Instruction> decode(uint32_t word);

// Null where a core of this profile executes it under this vtype; else what is wrong, for people.
const char* why_illegal(const Instruction& instruction, Profile profile, uint64_t vtype);

// The mnemonic and type, as "smt.vmadotsu.hp i4"; what counters are called.
const char* name_of(int index);

// Assembly text as SpacemiT writes it, into at most `size` bytes with the final zero.
void disassemble(const Instruction& instruction, char* text, size_t size);

}  // namespace nybble::ime
