// How weights are stored in files, decoded block by block to what the packed form holds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "packing/packed_matrix.hpp"

namespace nybble {

inline constexpr size_t kLargestBlock = 256;

// One packed block along K: codes with a scale and (if the format has them) an offset, before they are rounded.
struct DecodedBlock {
    uint8_t codes[kLargestBlock];
    float scale;
    float offset;
};

// A row of a stored tensor: blocks that hold everything, or codes, with scales and perhaps zero points apart.
struct StoredRow {
    const uint8_t* data;
    const uint8_t* scales;
    const uint8_t* zero_points;
};

struct RowBytes {
    size_t data, scales, zero_points;
};

enum class ZeroPoints { absent, packed, floats };

struct StorageType {
    std::string_view name;
    size_t elements;      // per stored block
    size_t bytes;         // per stored block; 0 where scales lie apart
    PackedFormat packed;  // what it becomes
    // Decode packed block `index` of a row, which has `left` elements from there on; null for floats.
    void (*decode)(const StorageType&, const StoredRow&, size_t index, size_t left, DecodedBlock& out);
    // Where scales lie apart:
    WeightType scales = WeightType::f16;
    ZeroPoints zero_points = ZeroPoints::absent;

    bool is_separate() const { return bytes == 0; }
    RowBytes row_bytes(size_t k) const;
};

// By name: a GGUF type (Q4_1); W<bits>B<block> for plain blocks, with A behind it when they have offsets (W4B128A); or
// the name of scales apart as in src/nybble/quant/storage.py (W4B128-F32-Z).
std::optional<StorageType> find_storage_type(std::string_view name);

}  // namespace nybble
