#define NYBBLE_RVV rvv128
#define NYBBLE_RVV_VLEN 128
#include "kernels/simd/rvv.hpp"

#define NYBBLE_ISA rvv128
#include "kernels/targets/target.hpp"
#include "kernels/targets/layout_k8.hpp"
