// The instruction sets kernels are written for, and which of them this CPU has.
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

#include "cpu/ime_probe.hpp"

namespace nybble {

// Ordered: a later one is preferred where available. rvv: RISC-V's vectors with Zvfhmin, and the least VLEN. ime1:
// SpacemiT's first matrix extension, beside rvv256; ime2: the second, beside rvv512 at VLEN 1024.
enum class Isa { portable, avx2, avx512_vnni, rvv128, rvv256, rvv512, ime1, ime2 };

std::string_view name_of(Isa isa);

// The instruction set that an extension of one stands beside, whose kernels serve where it has none; others: itself.
Isa base_of(Isa isa);

// VLEN in bits of the CPU under this thread; 0 without vectors, or without conversions between their fp16 and fp32
// (Zvfhmin). Not every core of a chip has the same.
size_t vector_bits();

// Those that this build contains and the CPU under this thread supports, best first; ends with portable. `unit` was
// found there by probe_matrix_unit().
std::vector<Isa> isas_here(MatrixUnit unit);

// The same for threads that stay where they are scheduled by default.
const std::vector<Isa>& available_isas();

}  // namespace nybble
