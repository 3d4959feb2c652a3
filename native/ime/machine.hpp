// The emulated core: its profile, and running one instruction on it with counting.
#pragma once

#include <cstdint>

#include "ime/instruction.hpp"
#include "ime/semantics.hpp"

namespace nybble::ime {

struct Machine {
    bool enabled = false;  // false where VLEN is that of no profile: then every instruction is illegal
    Profile profile = Profile::a60;
    bool bf16 = false;
    bool patching = true;
};

extern Machine machine;

// False where it is illegal.
bool run(const Instruction& instruction, uint64_t vtype, const Operands& operands);

}  // namespace nybble::ime
