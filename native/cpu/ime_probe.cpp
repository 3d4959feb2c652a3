#include "cpu/ime_probe.hpp"

#if defined(NYBBLE_RVV_KERNELS)

#include <algorithm>
#include <csetjmp>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <dlfcn.h>
#include <mutex>
#include <pthread.h>

#include "base/half.hpp"
#include "kernels/spacemit/words.hpp"

namespace nybble {
namespace {

// One probe at a time: the handler is the process's.
std::mutex probing;
sigjmp_buf escape;
pthread_t prober;
struct sigaction before;

void on_illegal_instruction(int) {
    if (pthread_equal(pthread_self(), prober)) siglongjmp(escape, 1);
    sigaction(SIGILL, &before, nullptr);  // another thread's own: it happens again, to whoever handled it before
}

// What the instructions are given and leave behind.
struct Registers {
    alignas(128) uint8_t a[128], b[128], scales[128];
    alignas(128) int32_t sums[64];
};

// vd += A · B; funct7 is the type, funct3 the signs or the place of the scales.
template <int kFunct7, int kFunct3>
void multiply(Registers& registers) {
    __asm__ volatile(
        ".option push\n"
        ".option arch, +v\n"
        "vsetvli t0, zero, e8, m1, ta, ma\n"
        "vle8.v v0, (%[scales])\n"
        "vle8.v v2, (%[a])\n"
        "vle8.v v3, (%[b])\n"
        "vl2re32.v v4, (%[sums])\n"
        NYBBLE_IME_WORD("%[funct3]", "%[funct7]", 4, 2, 3)
        "vs2r.v v4, (%[sums])\n"
        ".option pop\n" ::[a] "r"(registers.a),
        [b] "r"(registers.b), [scales] "r"(registers.scales), [sums] "r"(registers.sums), [funct3] "i"(kFunct3),
        [funct7] "i"(kFunct7)
        : "t0", "memory");
}

// A tile: rows × depth of A by columns × depth of B.
struct Shape {
    size_t edge;  // rows and columns
    size_t depth;
    size_t bits;
};

int32_t element(const uint8_t* codes, size_t index, size_t bits, bool is_signed) {
    const int32_t code = bits == 8 ? codes[index] : codes[index / 2] >> (index % 2 * 4) & 15;
    return is_signed && code >= 1 << (bits - 1) ? code - (1 << bits) : code;
}

int32_t dot(const Registers& registers, const Shape& shape, size_t place, bool a_signed, bool b_signed) {
    const size_t row = place / shape.edge * shape.depth, column = place % shape.edge * shape.depth;
    int32_t sum = 0;
    for (size_t k = 0; k < shape.depth; ++k) {
        sum += element(registers.a, row + k, shape.bits, a_signed) *
               element(registers.b, column + k, shape.bits, b_signed);
    }
    return sum;
}

// Codes of every sign and size.
Registers operands() {
    Registers registers{};
    for (size_t i = 0; i < sizeof registers.a; ++i) {
        registers.a[i] = static_cast<uint8_t>(i * 37 + 11);
        registers.b[i] = static_cast<uint8_t>(i * i * 29 + 135);
    }
    return registers;
}

// Into sums, on top of what is there.
template <int kFunct7, int kFunct3>
bool integers_are_right(const Shape& shape, bool a_signed, bool b_signed) {
    Registers registers = operands();
    for (size_t i = 0; i < shape.edge * shape.edge; ++i) registers.sums[i] = 1 - static_cast<int32_t>(i);
    multiply<kFunct7, kFunct3>(registers);
    for (size_t i = 0; i < shape.edge * shape.edge; ++i) {
        const int32_t expected = 1 - static_cast<int32_t>(i) + dot(registers, shape, i, a_signed, b_signed);
        if (registers.sums[i] != expected) return false;
    }
    return true;
}

template <int kFunct7>
bool all_signs_are_right(const Shape& shape) {
    return integers_are_right<kFunct7, 0>(shape, false, false) && integers_are_right<kFunct7, 1>(shape, false, true) &&
           integers_are_right<kFunct7, 2>(shape, true, false) && integers_are_right<kFunct7, 3>(shape, true, true);
}

// int4 with fp16 scales into fp16 sums, of numbers that fp16 holds.
bool scaled_sums_are_right(const Shape& shape) {
    constexpr int kSignedWithScalesInV0 = 0x68;
    Registers registers = operands();
    uint16_t halves[64];
    for (size_t i = 0; i < 64; ++i) halves[i] = float_to_half(static_cast<float>(i % 8) * 0.5f);
    std::memcpy(registers.scales, halves, sizeof halves);
    for (uint8_t& pair : registers.b) pair = pair >> 7 | 0x10;  // 0 or 1, and 1
    multiply<kSignedWithScalesInV0, 0>(registers);
    std::memcpy(halves, registers.sums, sizeof halves);
    for (size_t i = 0; i < 64; ++i) {
        const float expected =
            static_cast<float>(dot(registers, shape, i, true, true) * static_cast<int>(i % 8)) * 0.5f;
        if (half_to_float(halves[i]) != expected) return false;
    }
    return true;
}

MatrixUnit try_out(size_t vector_bits) {
    constexpr int kInt8 = 0x71, kInt4 = 0x61;
    if (vector_bits == 256) return all_signs_are_right<kInt8>({4, 8, 8}) ? MatrixUnit::ime1 : MatrixUnit::none;
    if (vector_bits != 1024) return MatrixUnit::none;
    const Shape int4{8, 32, 4};
    const bool right =
        all_signs_are_right<kInt8>({8, 16, 8}) && all_signs_are_right<kInt4>(int4) && scaled_sums_are_right(int4);
    return right ? MatrixUnit::ime2 : MatrixUnit::none;
}

}  // namespace

MatrixUnit probe_matrix_unit(size_t vector_bits) {
    const std::lock_guard one_at_a_time(probing);
    prober = pthread_self();
    struct sigaction ours = {};
    ours.sa_handler = on_illegal_instruction;
    sigaction(SIGILL, &ours, &before);
    volatile MatrixUnit unit = MatrixUnit::none;
    if (sigsetjmp(escape, 1) == 0) unit = try_out(vector_bits);
    sigaction(SIGILL, &before, nullptr);
    return unit;
}

MatrixUnit emulated_matrix_unit(size_t vector_bits) {
    const bool is_loaded = dlsym(RTLD_DEFAULT, "nybble_ime_count") != nullptr;
    return is_loaded ? probe_matrix_unit(vector_bits) : MatrixUnit::none;
}

}  // namespace nybble

#else

namespace nybble {

MatrixUnit probe_matrix_unit(size_t) { return MatrixUnit::none; }
MatrixUnit emulated_matrix_unit(size_t) { return MatrixUnit::none; }

}  // namespace nybble

#endif
