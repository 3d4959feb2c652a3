// Memory for activations rounded to int8.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/kernel.hpp"

namespace nybble {

// Bytes for `rows` rows of `width` features for weights in blocks of `weight_block` that lie as `layout`, what kernels
// may read past the end included.
size_t quantised_rows_bytes(size_t width, size_t weight_block, Layout layout, size_t rows);

// Places for all of it in `memory`, which must be aligned to a cache line.
QuantisedRows lay_out_quantised_rows(size_t width, size_t weight_block, Layout layout, size_t rows, uint8_t* memory);

}  // namespace nybble
