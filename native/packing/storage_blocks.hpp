// The block types of GGUF files, decoded to what the packed form holds. Layouts as in ggml's quantised types.
#pragma once

#include <cstddef>
#include <cstdint>

#include "packing/packed_matrix.hpp"

namespace nybble {

// One packed block along K: up to 32 codes with a scale and (if the format has them) an offset, both fp16.
struct DecodedBlock {
    uint8_t codes[32];
    uint16_t scale;
    uint16_t offset;
};

struct StorageType {
    int ggml_id;
    size_t elements;      // per stored block
    size_t bytes;         // per stored block
    PackedFormat packed;  // what it becomes
    // Decode packed block `index` of the stored block; null for floats. False: a scale is not finite in fp16.
    bool (*decode)(const uint8_t* stored, size_t index, DecodedBlock& out);
};

// Null when the id is unknown.
const StorageType* storage_type(int ggml_id);

}  // namespace nybble
