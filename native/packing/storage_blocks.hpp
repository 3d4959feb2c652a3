// How weights are stored in files, decoded block by block to what the packed form holds. Layouts of GGUF's types as in
// ggml; those of BlockStorage as in src/nybble/quant/storage.py.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "packing/packed_matrix.hpp"

namespace nybble {

inline constexpr size_t kLargestBlock = 256;

// One packed block along K: codes with a scale and (if the format has them) an offset, both fp16.
struct DecodedBlock {
    uint8_t codes[kLargestBlock];
    uint16_t scale;
    uint16_t offset;
};

struct StorageType {
    std::string_view name;
    size_t elements;      // per stored block
    size_t bytes;         // per stored block
    PackedFormat packed;  // what it becomes
    // Decode packed block `index` of the stored block; null for floats. False: a scale is not finite in fp16.
    bool (*decode)(const uint8_t* stored, size_t index, size_t block, DecodedBlock& out);

    size_t row_bytes(size_t k) const { return (k + elements - 1) / elements * bytes; }
};

// By name: a GGUF type (Q4_1), or W<bits>B<block> for plain blocks, with A behind it when they have offsets (W4B128A).
std::optional<StorageType> find_storage_type(std::string_view name);

}  // namespace nybble
