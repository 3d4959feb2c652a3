#define NYBBLE_RVV ime2
#define NYBBLE_RVV_VLEN 512
#include "kernels/simd/rvv.hpp"

#define NYBBLE_ISA ime2
#include "kernels/spacemit/linear_ime2.hpp"

namespace nybble::ime2 {

extern const LinearKernel linear_w4_int8_panel32k32, linear_w4_int8_panel32k16, linear_w8_int8_panel32k16;

const LinearKernel linear_w4_int8_panel32k32 = {linear_ime2<4, Layout::panel32k32>, linear_ime2_scratch_bytes};
const LinearKernel linear_w4_int8_panel32k16 = {linear_ime2<4, Layout::panel32k16>, linear_ime2_scratch_bytes};
const LinearKernel linear_w8_int8_panel32k16 = {linear_ime2<8, Layout::panel32k16>, linear_ime2_scratch_bytes};

}  // namespace nybble::ime2
