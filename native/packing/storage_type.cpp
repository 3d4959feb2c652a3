#include "packing/storage_type.hpp"

#include "packing/separate_storage.hpp"
#include "packing/storage_blocks.hpp"

namespace nybble {

RowBytes StorageType::row_bytes(size_t k) const {
    const size_t blocks = (k + elements - 1) / elements;
    if (!is_separate()) return {blocks * bytes, 0, 0};
    const size_t bits = bits_of(packed.type), scale_bytes = blocks * bits_of(scales) / 8;
    const size_t zero_point_bytes = zero_points == ZeroPoints::absent   ? 0
                                    : zero_points == ZeroPoints::packed ? (blocks * bits + 7) / 8
                                                                        : scale_bytes;
    return {(blocks * elements * bits + 7) / 8, scale_bytes, zero_point_bytes};
}

std::optional<StorageType> find_storage_type(std::string_view name) {
    const std::optional<StorageType> in_blocks = find_block_storage(name);
    return in_blocks ? in_blocks : find_separate_storage(name);
}

}  // namespace nybble
