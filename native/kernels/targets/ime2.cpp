// SpacemiT's second matrix extension (K3's A100 cores; VLEN 1024). Row kernels are its own for attention's sake.
#define NYBBLE_RVV ime2
#define NYBBLE_RVV_VLEN 1024
#include "kernels/simd/rvv.hpp"

#define NYBBLE_ISA ime2
#include "kernels/spacemit/linear_ime2.hpp"
#include "kernels/targets/rows.hpp"
#include "measure/matrix_peak.hpp"

namespace nybble::ime2 {
namespace {

// 8 rows × 32 channels × 16 k a round, of 8-bit codes; 4-bit ones take twice the instructions for twice the k. What is
// multiplied are any bytes of the operands.
int32_t multiply_tiles(size_t rounds, const PeakOperands& operands) {
    static_assert(sizeof operands >= 512);
    int32_t result;
    __asm__ volatile(
        "vsetvli t0, zero, e32, m8, ta, ma\n\t"
        "vmv.v.i v16, 0\n\t"
        "vsetvli t0, zero, e8, m1, ta, ma\n"
        "1:\n\t"
        "vl1re8.v v0, (%[operands])\n\t"
        "vl4re8.v v8, (%[operands])\n\t"
        NYBBLE_VMADOT_SU_8(16, 0, 8)
        NYBBLE_VMADOT_SU_8(18, 0, 9)
        NYBBLE_VMADOT_SU_8(20, 0, 10)
        NYBBLE_VMADOT_SU_8(22, 0, 11)
        "addi %[rounds], %[rounds], -1\n\t"
        "bnez %[rounds], 1b\n\t"
        "vsetvli t0, zero, e32, m1, ta, ma\n\t"
        "vmv.x.s %[result], v16"
        : [rounds] "+r"(rounds), [result] "=r"(result)
        : [operands] "r"(&operands)
        : "t0", "memory", NYBBLE_VECTOR_CLOBBERS);
    return result;
}

// To memory beside the core: eight registers at a time.
void copy_registers(const uint8_t* from, uint8_t* to, size_t bytes) {
    __asm__ volatile(
        "1:\n\t"
        "vsetvli t0, %[bytes], e8, m8, ta, ma\n\t"
        "vle8.v v8, (%[from])\n\t"
        "vse8.v v8, (%[to])\n\t"
        "add %[from], %[from], t0\n\t"
        "add %[to], %[to], t0\n\t"
        "sub %[bytes], %[bytes], t0\n\t"
        "bnez %[bytes], 1b"
        : [from] "+r"(from), [to] "+r"(to), [bytes] "+r"(bytes)
        :
        : "t0", "memory", NYBBLE_VECTOR_CLOBBERS);
}

}  // namespace

extern const LinearKernel linear_w4_int8_panel32k32, linear_w4_int8_panel32k16, linear_w8_int8_panel32k16;
extern const CopyFunction copy;
extern const MatrixPeak matrix_peak;

const LinearKernel linear_w4_int8_panel32k32 = {linear_ime2<4, Layout::panel32k32>, linear_ime2_scratch_bytes};
const LinearKernel linear_w4_int8_panel32k16 = {linear_ime2<4, Layout::panel32k16>, linear_ime2_scratch_bytes};
const LinearKernel linear_w8_int8_panel32k16 = {linear_ime2<8, Layout::panel32k16>, linear_ime2_scratch_bytes};
const CopyFunction copy = copy_registers;
const MatrixPeak matrix_peak = {multiply_tiles, 8 * 32 * 16};

}  // namespace nybble::ime2
