// SpacemiT's first matrix extension (K1, cluster 0; VLEN 256). Everything around the matrix instructions is spelled
// with plain vectors.
#define NYBBLE_RVV ime1
#define NYBBLE_RVV_VLEN 256
#include "kernels/simd/rvv.hpp"

#define NYBBLE_ISA ime1
#include "kernels/spacemit/ime1_row.hpp"
#include "kernels/spacemit/ime1_tile.hpp"

namespace nybble::ime1 {
namespace {

template <int Bits, bool Offsets>
void multiply(const LinearArguments& arguments, size_t panel, size_t begin, size_t end, uint8_t* scratch) {
    if (end - begin == 1) {
        multiply_row<Bits, Offsets>(arguments, panel, begin);
    } else {
        multiply_matrix<Bits, Offsets>(arguments, panel, begin, end, *reinterpret_cast<MatrixScratch*>(scratch));
    }
}

template <int Bits>
void linear(const LinearArguments& arguments, size_t panel, size_t begin, size_t end, uint8_t* scratch) {
    const bool has_offsets = arguments.weights->format().has_offsets;
    (has_offsets ? multiply<Bits, true> : multiply<Bits, false>)(arguments, panel, begin, end, scratch);
}

size_t scratch_bytes(const PackedMatrix&) { return sizeof(MatrixScratch); }

}  // namespace

extern const LinearKernel linear_w4_int8_panel32k8, linear_w8_int8_panel32k8;

const LinearKernel linear_w4_int8_panel32k8 = {linear<4>, scratch_bytes};
const LinearKernel linear_w8_int8_panel32k8 = {linear<8>, scratch_bytes};

}  // namespace nybble::ime1
