// Storage in blocks that hold codes with their scales. Layouts of GGUF's types as in ggml; those of plain blocks as in
// src/nybble/quant/storage.py (BlockStorage).
#pragma once

#include "packing/storage_type.hpp"

namespace nybble {

// A GGUF type (Q4_1), or W<bits>B<block> for plain blocks, with A behind it when they have offsets (W4B128A).
std::optional<StorageType> find_block_storage(std::string_view name);

}  // namespace nybble
