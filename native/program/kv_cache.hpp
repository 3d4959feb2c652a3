// The keys and values of one sequence.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/memory.hpp"
#include "kernels/kv_block.hpp"

namespace nybble {

// Blocks of 64 positions (see kernels/kv_block.hpp) lie as [position / 64][layer][KV head]: what is used of the memory
// is its beginning, whole huge pages of it.
class KVCache {
  public:
    // Reserves room for `capacity` positions; memory is used as positions are written. Throws std::bad_alloc.
    KVCache(size_t layers, size_t kv_heads, KVBlock block, size_t capacity);

    // Bytes a cache of this shape takes when full.
    static size_t bytes_for(size_t layers, size_t kv_heads, KVBlock block, size_t capacity);

    size_t layers() const { return layers_; }
    size_t kv_heads() const { return kv_heads_; }
    const KVBlock& block() const { return block_; }
    size_t capacity() const { return capacity_; }
    size_t length() const { return length_; }
    void set_length(size_t length) { length_ = length; }

    // The block of a layer and KV head that holds the position; block_stride() bytes on is that of the next positions.
    uint8_t* block_of(size_t layer, size_t kv_head, size_t position) const;
    size_t block_stride() const { return layers_ * kv_heads_ * block_.bytes(); }

    // Whether a position's key and value of one head are finite.
    bool is_finite(size_t layer, size_t kv_head, size_t position) const;

  private:
    size_t layers_, kv_heads_;
    KVBlock block_;
    size_t capacity_;
    size_t length_ = 0;
    Memory memory_;
};

}  // namespace nybble
