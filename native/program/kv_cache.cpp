#include "program/kv_cache.hpp"

#include <cmath>

namespace nybble {
namespace {

// Whether no number of the position has all bits of its exponent set.
template <typename Bits>
bool are_finite(const uint8_t* block, const KVBlock& layout, size_t place, Bits exponent) {
    const Bits* keys = reinterpret_cast<const Bits*>(block) + place;
    const Bits* values = reinterpret_cast<const Bits*>(block + layout.values_offset());
    values += place * layout.padded_head_dim();
    for (size_t i = 0; i < layout.head_dim; ++i) {
        if ((keys[i * kBlockPositions] & exponent) == exponent || (values[i] & exponent) == exponent) return false;
    }
    return true;
}

}  // namespace

size_t KVCache::bytes_for(size_t layers, size_t kv_heads, KVBlock block, size_t capacity) {
    const size_t blocks = capacity / kBlockPositions + (capacity % kBlockPositions != 0 ? 1 : 0);
    // So that block.bytes() does not overflow.
    checked_multiply(block.padded_head_dim() + 1, 8 * kBlockPositions);
    return checked_multiply(checked_multiply(layers, blocks), checked_multiply(kv_heads, block.bytes()));
}

KVCache::KVCache(size_t layers, size_t kv_heads, KVBlock block, size_t capacity)
    : layers_(layers),
      kv_heads_(kv_heads),
      block_(block),
      capacity_(capacity),
      memory_(bytes_for(layers, kv_heads, block, capacity), Pages::huge) {}

uint8_t* KVCache::block_of(size_t layer, size_t kv_head, size_t position) const {
    return memory_.data() + position / kBlockPositions * block_stride() +
           (layer * kv_heads_ + kv_head) * block_.bytes();
}

bool KVCache::is_finite(size_t layer, size_t kv_head, size_t position) const {
    const uint8_t* block = block_of(layer, kv_head, position);
    const size_t place = position % kBlockPositions;
    if (block_.has_codes()) {
        const auto* scales = reinterpret_cast<const float*>(block + block_.scales_offset());
        return std::isfinite(scales[place]) && std::isfinite(scales[place + block_.values_offset() / sizeof(float)]);
    }
    switch (block_.type) {
        case KVType::fp32: return are_finite<uint32_t>(block, block_, place, 0x7f800000);
        case KVType::fp16: return are_finite<uint16_t>(block, block_, place, 0x7c00);
        default: return are_finite<uint16_t>(block, block_, place, 0x7f80);
    }
}

}  // namespace nybble
