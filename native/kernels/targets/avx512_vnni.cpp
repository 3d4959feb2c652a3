#include "kernels/simd/avx512_vnni.hpp"

#define NYBBLE_ISA avx512_vnni
#include "kernels/targets/target.hpp"
