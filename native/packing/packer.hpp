// Packs stored rows into panels.
#pragma once

#include <cstddef>
#include <cstdint>

#include "packing/packed_matrix.hpp"
#include "packing/storage_type.hpp"
#include "threads/thread_pool.hpp"

namespace nybble {

// Rows of a stored tensor, back to back: StorageType::row_bytes each. Scales and zero points: null unless they lie
// apart.
struct StoredRows {
    const StorageType* type;
    StoredRow first;
    size_t rows;
};

inline constexpr size_t kAllFinite = SIZE_MAX;

// Write `stored` into output channels first_channel.. of `matrix`, whose memory must be zero, sharing work by panels.
// Returns kAllFinite, or the lowest row with a scale that is not finite in fp16.
size_t pack_rows(PackedMatrix& matrix, size_t first_channel, const StoredRows& stored, ThreadPool& threads);

}  // namespace nybble
