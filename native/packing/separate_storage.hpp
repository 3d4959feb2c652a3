// Codes, scales and zero points in arrays of their own, as in src/nybble/quant/storage.py (SeparateStorage).
#pragma once

#include "packing/storage_type.hpp"

namespace nybble {

// W<bits>B<block>-<type of scales>, with -Z behind it for packed zero points, -ZF for floats (W4B128-F32-Z).
std::optional<StorageType> find_separate_storage(std::string_view name);

}  // namespace nybble
