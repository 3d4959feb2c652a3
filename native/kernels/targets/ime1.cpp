// SpacemiT's first matrix extension (K1, cluster 0; VLEN 256). Everything around the matrix instructions is spelled
// with plain vectors.
#define NYBBLE_RVV ime1
#define NYBBLE_RVV_VLEN 256
#include "kernels/simd/rvv.hpp"

#define NYBBLE_ISA ime1
#include "kernels/spacemit/ime1_row.hpp"
#include "kernels/spacemit/ime1_tile.hpp"
#include "measure/matrix_peak.hpp"

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

// 8 rows × 16 channels × 8 k a round, with the fewest loads a tile has.
int32_t multiply_tiles(size_t rounds, const PeakOperands& operands) {
    static_assert(sizeof operands.codes >= 128 && sizeof operands.activations >= 64);
    int32_t result;
    __asm__ volatile(
        "vsetvli t0, zero, e32, m8, ta, ma\n\t"
        "vmv.v.i v16, 0\n\t"
        "vmv.v.i v24, 0\n\t"
        "vsetvli t0, zero, e8, m1, ta, ma\n"
        "1:\n\t"
        "vl2re8.v v0, (%[activations])\n\t"
        "vl4re8.v v8, (%[codes])\n\t"
        NYBBLE_VMADOT("2", 16, 0, 8)
        NYBBLE_VMADOT("2", 18, 0, 9)
        NYBBLE_VMADOT("2", 20, 0, 10)
        NYBBLE_VMADOT("2", 22, 0, 11)
        NYBBLE_VMADOT("2", 24, 1, 8)
        NYBBLE_VMADOT("2", 26, 1, 9)
        NYBBLE_VMADOT("2", 28, 1, 10)
        NYBBLE_VMADOT("2", 30, 1, 11)
        "addi %[rounds], %[rounds], -1\n\t"
        "bnez %[rounds], 1b\n\t"
        "vsetvli t0, zero, e32, m1, ta, ma\n\t"
        "vmv.x.s %[result], v16"
        : [rounds] "+r"(rounds), [result] "=r"(result)
        : [codes] "r"(operands.codes), [activations] "r"(operands.activations)
        : "t0", "memory", NYBBLE_VECTOR_CLOBBERS);
    return result;
}

}  // namespace

extern const LinearKernel linear_w4_int8_panel32k8, linear_w8_int8_panel32k8;
extern const MatrixPeak matrix_peak;

const LinearKernel linear_w4_int8_panel32k8 = {linear<4>, scratch_bytes};
const LinearKernel linear_w8_int8_panel32k8 = {linear<8>, scratch_bytes};
const MatrixPeak matrix_peak = {multiply_tiles, 8 * 16 * 8};

}  // namespace nybble::ime1
