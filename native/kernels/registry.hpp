// The kernels of registry.inc as a table.
#pragma once

#include <string>
#include <vector>

#include "cpu/isa.hpp"
#include "kernels/kernel.hpp"
#include "measure/matrix_peak.hpp"
#include "measure/peak_kernels.hpp"

namespace nybble {

struct LinearEntry {
    std::string name;
    Isa isa;
    WeightType weights;
    Activations activations;
    Layout layout;
    const LinearKernel* kernel;
};

const std::vector<LinearEntry>& linear_kernels();

// Null when there is none of that name.
const LinearEntry* find_linear_kernel(const std::string& name);

// The one of `isa`, or of its base, that reads weights packed so. Null when there is none.
const LinearEntry* find_linear_kernel(const PackedFormat& format, Activations activations, Isa isa);

const RowKernels& row_kernels(Isa isa);

// What copies weights from memory fastest.
CopyFunction copy_function(Isa isa);

const PeakKernels& peak_kernels(Isa isa);

// Null where linears have no matrix instructions.
const MatrixPeak* matrix_peak(Isa isa);

}  // namespace nybble
