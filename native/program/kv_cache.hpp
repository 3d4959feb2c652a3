// The keys and values of one sequence, fp16, in blocks of 32 positions (see kernels/kernel.hpp).
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/memory.hpp"
#include "kernels/kernel.hpp"

namespace nybble {

class KVCache {
  public:
    // Reserves room for `capacity` positions; memory is used as positions are written. Throws std::bad_alloc.
    KVCache(size_t layers, size_t kv_heads, size_t head_dim, size_t capacity);

    // Bytes a cache of this shape takes when full.
    static size_t bytes_for(size_t layers, size_t kv_heads, size_t head_dim, size_t capacity);

    size_t layers() const { return layers_; }
    size_t kv_heads() const { return kv_heads_; }
    size_t head_dim() const { return head_dim_; }
    size_t padded_head_dim() const { return padded_head_dim_; }
    size_t capacity() const { return capacity_; }
    size_t length() const { return length_; }
    void set_length(size_t length) { length_ = length; }

    // First block of a layer and KV head; block_stride() uint16s on is the next block of the same.
    uint16_t* head(size_t layer, size_t kv_head) const;
    size_t block_stride() const { return kv_heads_ * head_block(); }
    size_t values_offset() const { return padded_head_dim_ * kBlockPositions; }

    // Where the first feature of a position's key and value of one head goes.
    uint16_t* key(size_t layer, size_t kv_head, size_t position) const;
    uint16_t* value(size_t layer, size_t kv_head, size_t position) const;

  private:
    size_t head_block() const { return 2 * values_offset(); }

    size_t layers_, kv_heads_, head_dim_, padded_head_dim_, capacity_;
    size_t blocks_;
    size_t length_ = 0;
    Memory memory_;
};

}  // namespace nybble
