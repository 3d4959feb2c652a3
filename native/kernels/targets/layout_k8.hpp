// Kernels of an instruction set that read panel32k8. Included behind target.hpp, once a target.

#include "kernels/generic/linear_int8_k8.hpp"

namespace nybble::NYBBLE_ISA {

extern const LinearKernel linear_w4_int8_panel32k8, linear_w8_int8_panel32k8;
extern const LinearKernel linear_w4_f32_panel32k8, linear_w8_f32_panel32k8;

const LinearKernel linear_w4_int8_panel32k8 = {linear_int8_k8<4>, linear_int8_scratch_bytes};
const LinearKernel linear_w8_int8_panel32k8 = {linear_int8_k8<8>, linear_int8_scratch_bytes};
// These decode codes wherever the layout has them.
const LinearKernel linear_w4_f32_panel32k8 = {linear_f32<WeightType::w4>, linear_f32_scratch_bytes};
const LinearKernel linear_w8_f32_panel32k8 = {linear_f32<WeightType::w8>, linear_f32_scratch_bytes};

}  // namespace nybble::NYBBLE_ISA
