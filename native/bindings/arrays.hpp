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
#include "packing/layout.hpp"

namespace nybble {

namespace nb = nanobind;

void bind_kernels(nb::module_& m);
void bind_weights(nb::module_& m);
void bind_weight_files(nb::module_& m);
void bind_programs(nb::module_& m);
void bind_measure(nb::module_& m);
void bind_text(nb::module_& m);

using StoredArray = nb::ndarray<const uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using FloatMatrix = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using FloatVector = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using NumpyMatrix = nb::ndarray<nb::numpy, float, nb::ndim<2>>;
using PlainBuffer = nb::ndarray<nb::memview, float, nb::ndim<1>>;  // a memoryview, which needs no library

inline void require(bool condition, const char* message) {
    if (!condition) throw nb::value_error(message);
}

// With room for `spare` floats more than the shape has.
template <typename Array>
Array new_array(std::initializer_list<size_t> shape, size_t count, size_t spare) {
    auto* data = new float[std::max<size_t>(1, count + spare)];
    nb::capsule owner(data, [](void* p) noexcept { delete[] static_cast<float*>(p); });
    return Array(data, shape, owner);
}
inline NumpyMatrix new_matrix(size_t rows, size_t columns, size_t spare = 0) {
    return new_array<NumpyMatrix>({rows, columns}, checked_multiply(rows, columns), spare);
}
inline PlainBuffer new_buffer(size_t count, size_t spare) { return new_array<PlainBuffer>({count}, count, spare); }

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

inline Layout layout_named(const std::string& name) {
    const std::optional<Layout> layout = find_layout(name);
    require(layout.has_value(), "unknown layout");
    return *layout;
}

}  // namespace nybble
