// The outliers of successive rows, by feature: a panel's weights that meet many of them are then decoded once.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/kernel.hpp"

namespace nybble {

// Memory for the columns of so many rows.
size_t outlier_columns_bytes(size_t features, size_t rows);

// Those of rows `begin` to `end`; they live in `memory`, outlier_columns_bytes from a multiple of 8 on.
OutlierColumns sort_outliers(const QuantisedRows& rows, size_t begin, size_t end, uint8_t* memory);

}  // namespace nybble
