#define NYBBLE_RVV rvv512
#define NYBBLE_RVV_VLEN 512
#include "kernels/simd/rvv.hpp"

#define NYBBLE_ISA rvv512
#include "kernels/targets/target.hpp"
#include "kernels/targets/layout_k8.hpp"
