// What all bindings share: array types, checks, and the functions that add each part to the module.
// Shapes and ranges are checked here, once; what is wrong raises ValueError, as only nybble's own Python calls this.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <string>
#include <vector>

#include "base/memory.hpp"
#include "cpu/isa.hpp"

namespace nybble {

namespace nb = nanobind;

void bind_kernels(nb::module_& m);
void bind_weights(nb::module_& m);
void bind_programs(nb::module_& m);
void bind_measure(nb::module_& m);

using StoredArray = nb::ndarray<const uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using FloatMatrix = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using FloatVector = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using NumpyMatrix = nb::ndarray<nb::numpy, float, nb::ndim<2>>;

inline void require(bool condition, const char* message) {
    if (!condition) throw nb::value_error(message);
}

// With room for `spare` floats more.
inline NumpyMatrix new_matrix(size_t rows, size_t columns, size_t spare = 0) {
    auto* data = new float[std::max<size_t>(1, checked_multiply(rows, columns) + spare)];
    nb::capsule owner(data, [](void* p) noexcept { delete[] static_cast<float*>(p); });
    return NumpyMatrix(data, {rows, columns}, owner);
}

inline std::vector<float> to_vector(const std::optional<FloatVector>& array) {
    if (!array) return {};
    return {array->data(), array->data() + array->shape(0)};
}

inline Isa isa_named(const std::string& name) {
    for (const Isa isa : available_isas()) {
        if (name == name_of(isa)) return isa;
    }
    throw nb::value_error("this CPU does not have that instruction set");
}

}  // namespace nybble
