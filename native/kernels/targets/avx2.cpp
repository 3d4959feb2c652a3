#include "kernels/simd/avx2.hpp"

#define NYBBLE_ISA avx2
#include "kernels/targets/target.hpp"
