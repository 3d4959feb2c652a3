#include "cpu/isa.hpp"

#if defined(NYBBLE_RVV_KERNELS)
#include <cstdint>
#include <fstream>
#include <string>
#include <sys/auxv.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace nybble {

std::string_view name_of(Isa isa) {
    switch (isa) {
        case Isa::portable: return "portable";
        case Isa::avx2: return "avx2";
        case Isa::avx512_vnni: return "avx512_vnni";
        case Isa::rvv128: return "rvv128";
        case Isa::rvv256: return "rvv256";
        case Isa::rvv512: return "rvv512";
        case Isa::ime1: return "ime1";
        case Isa::ime2: return "ime2";
    }
    return "unknown";
}

Isa base_of(Isa isa) { return isa == Isa::ime1 ? Isa::rvv256 : isa == Isa::ime2 ? Isa::rvv512 : isa; }

#if defined(NYBBLE_RVV_KERNELS)

namespace {

bool has_vectors_with_halves() {
    constexpr unsigned long kVector = 1ul << ('V' - 'A');
    if ((getauxval(AT_HWCAP) & kVector) == 0) return false;
    struct {
        int64_t key;
        uint64_t value;
    } extensions = {4, 0};  // RISCV_HWPROBE_KEY_IMA_EXT_0
    constexpr long kHwprobe = 258;
    constexpr uint64_t kHalves = (1ull << 30) | (1ull << 31);  // ZVFH, ZVFHMIN
    syscall(kHwprobe, &extensions, 1, 0, nullptr, 0);
    if (extensions.key == 4 && (extensions.value & kHalves) != 0) return true;
    // Kernels before 6.8 do not tell of these there.
    std::ifstream cpus("/proc/cpuinfo");
    for (std::string line; std::getline(cpus, line);) {
        if (line.starts_with("isa") && line.find("_zvfh") != std::string::npos) return true;
    }
    return false;
}

}  // namespace

size_t vector_bits() {
    static const bool has_vectors = has_vectors_with_halves();
    if (!has_vectors) return 0;
    size_t bytes;
    __asm__ volatile(".option push\n.option arch, +v\ncsrr %0, vlenb\n.option pop" : "=r"(bytes));
    return bytes * 8;
}

#else

size_t vector_bits() { return 0; }

#endif

std::vector<Isa> isas_here([[maybe_unused]] MatrixUnit unit) {
    std::vector<Isa> found;
#if defined(__x86_64__)
    __builtin_cpu_init();
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
    const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                        __builtin_cpu_supports("avx512vnni");
    if (avx512) found.push_back(Isa::avx512_vnni);
    if (avx2) found.push_back(Isa::avx2);
#elif defined(NYBBLE_RVV_KERNELS)
#if defined(NYBBLE_IME1_KERNELS)
    if (unit == MatrixUnit::ime1) found.push_back(Isa::ime1);
#endif
#if defined(NYBBLE_IME2_KERNELS)
    if (unit == MatrixUnit::ime2) found.push_back(Isa::ime2);
#endif
    const size_t bits = vector_bits();
    if (bits >= 512) found.push_back(Isa::rvv512);
    if (bits >= 256) found.push_back(Isa::rvv256);
    if (bits >= 128) found.push_back(Isa::rvv128);
#endif
    found.push_back(Isa::portable);
    return found;
}

const std::vector<Isa>& available_isas() {
    static const std::vector<Isa> isas = isas_here(emulated_matrix_unit(vector_bits()));
    return isas;
}

}  // namespace nybble
