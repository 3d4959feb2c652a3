// How the KV cache keeps keys and values.
#pragma once

#include <cstddef>
#include <cstdint>

namespace nybble {

enum class KVType : uint8_t { fp16, bf16 };

inline constexpr size_t kBlockPositions = 64;

// 64 positions of one KV head in one layer: keys as [feature][position], then values as [position][feature]; features
// are padded to a multiple of 16.
struct KVBlock {
    KVType type;
    size_t head_dim;

    size_t padded_head_dim() const { return (head_dim + 15) / 16 * 16; }
    // Bytes from the keys to the values.
    size_t values_offset() const { return kBlockPositions * padded_head_dim() * sizeof(uint16_t); }
    size_t bytes() const { return 2 * values_offset(); }
};

}  // namespace nybble
