// The instruction sets kernels are written for, and which of them this CPU has.
#pragma once

#include <string_view>
#include <vector>

namespace nybble {

// Ordered: a later one is preferred where available. rvv: RISC-V's vectors with Zvfhmin, and the least VLEN.
enum class Isa { portable, avx2, avx512_vnni, rvv128, rvv256, rvv512 };

std::string_view name_of(Isa isa);

// Those that this build contains and this CPU and operating system support, best first; ends with portable.
const std::vector<Isa>& available_isas();

}  // namespace nybble
