#include "program/kv_cache.hpp"

namespace nybble {
namespace {

size_t blocks_for(size_t capacity) { return capacity / kBlockPositions + (capacity % kBlockPositions != 0 ? 1 : 0); }

}  // namespace

size_t KVCache::bytes_for(size_t layers, size_t kv_heads, size_t head_dim, size_t capacity) {
    const size_t head = checked_multiply(round_up(head_dim, 16), 2 * kBlockPositions * sizeof(uint16_t));
    return checked_multiply(checked_multiply(layers, blocks_for(capacity)), checked_multiply(kv_heads, head));
}

KVCache::KVCache(size_t layers, size_t kv_heads, size_t head_dim, size_t capacity)
    : layers_(layers),
      kv_heads_(kv_heads),
      head_dim_(head_dim),
      padded_head_dim_(round_up(head_dim, 16)),
      capacity_(capacity),
      blocks_(blocks_for(capacity)),
      memory_(bytes_for(layers, kv_heads, head_dim, capacity), Pages::small) {}

uint16_t* KVCache::head(size_t layer, size_t kv_head) const {
    return memory_.as<uint16_t>() + layer * blocks_ * block_stride() + kv_head * head_block();
}

uint16_t* KVCache::key(size_t layer, size_t kv_head, size_t position) const {
    return head(layer, kv_head) + position / kBlockPositions * block_stride() + position % kBlockPositions;
}

uint16_t* KVCache::value(size_t layer, size_t kv_head, size_t position) const {
    uint16_t* block = head(layer, kv_head) + position / kBlockPositions * block_stride();
    return block + values_offset() + position % kBlockPositions * padded_head_dim_;
}

}  // namespace nybble
