// Compiles kernels/generic for one instruction set. A target file defines NYBBLE_ISA as its namespace, includes its
// vector words and then this. No include guard: one inclusion a target.

#include "kernels/generic/linear_int8.hpp"
#include "kernels/generic/linear_f32.hpp"
#include "kernels/targets/rows.hpp"

namespace nybble::NYBBLE_ISA {

extern const LinearKernel linear_w2_int8_panel32, linear_w4_int8_panel32, linear_w8_int8_panel32;
extern const LinearKernel linear_w2_f32_panel32, linear_w4_f32_panel32, linear_w8_f32_panel32;
extern const LinearKernel linear_f16_f32_panel32, linear_bf16_f32_panel32, linear_f32_f32_panel32;

const LinearKernel linear_w2_int8_panel32 = {linear_int8<PackedCodes<2>>, linear_int8_scratch_bytes};
const LinearKernel linear_w4_int8_panel32 = {linear_int8<PackedCodes<4>>, linear_int8_scratch_bytes};
const LinearKernel linear_w8_int8_panel32 = {linear_int8<PackedCodes<8>>, linear_int8_scratch_bytes};
const LinearKernel linear_w2_f32_panel32 = {linear_f32<WeightType::w2>, linear_f32_scratch_bytes};
const LinearKernel linear_w4_f32_panel32 = {linear_f32<WeightType::w4>, linear_f32_scratch_bytes};
const LinearKernel linear_w8_f32_panel32 = {linear_f32<WeightType::w8>, linear_f32_scratch_bytes};
const LinearKernel linear_f16_f32_panel32 = {linear_f32<WeightType::f16>, linear_f32_scratch_bytes};
const LinearKernel linear_bf16_f32_panel32 = {linear_f32<WeightType::bf16>, linear_f32_scratch_bytes};
const LinearKernel linear_f32_f32_panel32 = {linear_f32<WeightType::f32>, linear_f32_scratch_bytes};

}  // namespace nybble::NYBBLE_ISA
