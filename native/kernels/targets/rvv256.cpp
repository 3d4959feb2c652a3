#define NYBBLE_RVV rvv256
#define NYBBLE_RVV_VLEN 256
#include "kernels/simd/rvv.hpp"

#define NYBBLE_ISA rvv256
#include "kernels/targets/target.hpp"
#include "kernels/targets/layout_k8.hpp"
