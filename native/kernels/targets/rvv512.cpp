#define NYBBLE_RVV rvv512
#define NYBBLE_RVV_VLEN 512
#include "kernels/simd/rvv.hpp"

#define NYBBLE_ISA rvv512
#include "kernels/targets/target.hpp"
#include "kernels/targets/layout_k8.hpp"

// The layouts of ime2, where linears that keep their activations share weights with others.
namespace nybble::rvv512 {

extern const LinearKernel linear_w4_f32_panel32k32, linear_w4_f32_panel32k16, linear_w8_f32_panel32k16;

const LinearKernel linear_w4_f32_panel32k32 = {linear_f32<WeightType::w4>, linear_f32_scratch_bytes};
const LinearKernel linear_w4_f32_panel32k16 = {linear_f32<WeightType::w4>, linear_f32_scratch_bytes};
const LinearKernel linear_w8_f32_panel32k16 = {linear_f32<WeightType::w8>, linear_f32_scratch_bytes};

}  // namespace nybble::rvv512
