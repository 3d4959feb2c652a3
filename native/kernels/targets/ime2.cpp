#define NYBBLE_RVV ime2
#define NYBBLE_RVV_VLEN 512
#include "kernels/simd/rvv.hpp"

#define NYBBLE_ISA ime2
#include "kernels/spacemit/linear_ime2.hpp"

namespace nybble::ime2 {

// To memory beside the core: eight registers at a time.
void copy(const uint8_t* from, uint8_t* to, size_t bytes);
void copy(const uint8_t* from, uint8_t* to, size_t bytes) {
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

extern const LinearKernel linear_w4_int8_panel32k32, linear_w4_int8_panel32k16, linear_w8_int8_panel32k16;

const LinearKernel linear_w4_int8_panel32k32 = {linear_ime2<4, Layout::panel32k32>, linear_ime2_scratch_bytes};
const LinearKernel linear_w4_int8_panel32k16 = {linear_ime2<4, Layout::panel32k16>, linear_ime2_scratch_bytes};
const LinearKernel linear_w8_int8_panel32k16 = {linear_ime2<8, Layout::panel32k16>, linear_ime2_scratch_bytes};

}  // namespace nybble::ime2
