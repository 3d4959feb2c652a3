#include "kernels/simd/portable.hpp"

#define NYBBLE_ISA portable
#include "kernels/targets/target.hpp"
#include "kernels/targets/layout_k8.hpp"
