#include "cpu/isa.hpp"

namespace nybble {

std::string_view name_of(Isa isa) {
    switch (isa) {
        case Isa::portable: return "portable";
        case Isa::avx2: return "avx2";
        case Isa::avx512_vnni: return "avx512_vnni";
    }
    return "unknown";
}

const std::vector<Isa>& available_isas() {
    static const std::vector<Isa> isas = [] {
        std::vector<Isa> found;
#if defined(__x86_64__)
        __builtin_cpu_init();
        const bool avx2 =
            __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
        const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                            __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                            __builtin_cpu_supports("avx512vnni");
        if (avx512) found.push_back(Isa::avx512_vnni);
        if (avx2) found.push_back(Isa::avx2);
#endif
        found.push_back(Isa::portable);
        return found;
    }();
    return isas;
}

}  // namespace nybble
