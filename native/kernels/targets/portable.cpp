#include "kernels/simd/portable.hpp"

#define NYBBLE_ISA portable
#include "kernels/targets/target.hpp"
