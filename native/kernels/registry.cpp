#include "kernels/registry.hpp"

#include <cstring>
#include <stdexcept>

namespace nybble {

#define LINEAR_KERNEL(isa, weights, activations, layout)                   \
    namespace isa {                                                        \
    extern const LinearKernel linear_##weights##_##activations##_##layout; \
    }
#define ROW_KERNELS(isa)                   \
    namespace isa {                        \
    extern const RowKernels row_kernels;   \
    extern const PeakKernels peak_kernels; \
    }
#include "kernels/registry.inc"
#undef LINEAR_KERNEL
#undef ROW_KERNELS

const char* name_of(Activations activations) { return activations == Activations::int8 ? "int8" : "f32"; }

const std::vector<LinearEntry>& linear_kernels() {
    static const std::vector<LinearEntry> entries = {
#define LINEAR_KERNEL(isa_, weights_, activations_, layout_)       \
    {"linear_" #weights_ "_" #activations_ "_" #layout_ "_" #isa_, \
     Isa::isa_,                                                    \
     WeightType::weights_,                                         \
     Activations::activations_,                                    \
     Layout::layout_,                                              \
     &isa_::linear_##weights_##_##activations_##_##layout_},
#define ROW_KERNELS(isa_)
#include "kernels/registry.inc"
#undef LINEAR_KERNEL
#undef ROW_KERNELS
    };
    return entries;
}

const LinearEntry* find_linear_kernel(const std::string& name) {
    for (const LinearEntry& entry : linear_kernels()) {
        if (entry.name == name) return &entry;
    }
    return nullptr;
}

const LinearEntry* find_linear_kernel(const PackedFormat& format, Activations activations, Isa isa) {
    for (const LinearEntry& entry : linear_kernels()) {
        if (entry.isa == isa && entry.weights == format.type && entry.activations == activations &&
            entry.layout == format.layout) {
            return &entry;
        }
    }
    return base_of(isa) == isa ? nullptr : find_linear_kernel(format, activations, base_of(isa));
}

namespace {

struct KernelsOfIsa {
    const RowKernels& rows;
    const PeakKernels& peaks;
};

KernelsOfIsa kernels_of(Isa isa) {
    switch (isa) {
#define LINEAR_KERNEL(isa_, weights_, activations_, layout_)
#define ROW_KERNELS(isa_) \
    case Isa::isa_: return {isa_::row_kernels, isa_::peak_kernels};
#include "kernels/registry.inc"
#undef LINEAR_KERNEL
#undef ROW_KERNELS
        default: break;
    }
    if (base_of(isa) == isa) throw std::invalid_argument("no row kernels for this instruction set in this build");
    return kernels_of(base_of(isa));
}

}  // namespace

const RowKernels& row_kernels(Isa isa) { return kernels_of(isa).rows; }

#if defined(NYBBLE_IME1_KERNELS)
namespace ime1 {
extern const MatrixPeak matrix_peak;
}
#endif
#if defined(NYBBLE_IME2_KERNELS)
namespace ime2 {
extern const MatrixPeak matrix_peak;
extern const CopyFunction copy;
}  // namespace ime2
#endif

CopyFunction copy_function([[maybe_unused]] Isa isa) {
#if defined(NYBBLE_IME2_KERNELS)
    if (isa == Isa::ime2) return ime2::copy;
#endif
    return [](const uint8_t* from, uint8_t* to, size_t bytes) { std::memcpy(to, from, bytes); };
}

const PeakKernels& peak_kernels(Isa isa) { return kernels_of(isa).peaks; }

const MatrixPeak* matrix_peak([[maybe_unused]] Isa isa) {
#if defined(NYBBLE_IME1_KERNELS)
    if (isa == Isa::ime1) return &ime1::matrix_peak;
#endif
#if defined(NYBBLE_IME2_KERNELS)
    if (isa == Isa::ime2) return &ime2::matrix_peak;
#endif
    return nullptr;
}

}  // namespace nybble
