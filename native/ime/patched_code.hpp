// Replaces IME instructions in a running program by jumps to generated code, so that each traps only once.
#pragma once

#include <cstdint>

#include "ime/instruction.hpp"

namespace nybble::ime {

// Makes the instruction at pc, which is `word`, a jump. False where that cannot be: no memory within a jump's reach
// of 1 MiB, or the code may not be written. Callers hold a lock; other threads may execute the code meanwhile.
bool patch(uintptr_t pc, uint32_t word, const Instruction& instruction);

// Whether `word` is the jump that patch() wrote at pc.
bool is_patched(uintptr_t pc, uint32_t word);

// The original place of an instruction that turned out illegal in generated code at pc; 0 for any other pc.
uintptr_t original_of(uintptr_t pc);

}  // namespace nybble::ime
