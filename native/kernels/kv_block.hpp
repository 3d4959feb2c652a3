// How the KV cache keeps keys and values.
#pragma once

#include <cstddef>
#include <cstdint>

namespace nybble {

enum class KVType : uint8_t { fp32, fp16, bf16, int8 };

inline constexpr size_t kBlockPositions = 64;

// 64 positions of one KV head in one layer; features are padded to a multiple of 16.
// fp32, fp16, bf16: keys as [feature][position], then values as [position][feature].
// int8: round(x · 127/max|x|) + 128, and a scale max|x|/127 for each position: keys as
// [feature / 4][position][feature % 4], their scales in fp32, values as [position / 4][feature][position % 4], theirs.
struct KVBlock {
    KVType type;
    size_t head_dim;

    size_t padded_head_dim() const { return (head_dim + 15) / 16 * 16; }
    bool has_codes() const { return type == KVType::int8; }
    // Bytes from the keys to their scales, and from the values to theirs.
    size_t scales_offset() const { return kBlockPositions * padded_head_dim() * number_bytes(); }
    size_t number_bytes() const { return type == KVType::fp32 ? 4 : has_codes() ? 1 : 2; }
    // Bytes from the keys to the values.
    size_t values_offset() const { return scales_offset() + (has_codes() ? kBlockPositions * sizeof(float) : 0); }
    size_t bytes() const { return 2 * values_offset(); }
};

// With larger heads, sums of products of codes could leave int32.
inline constexpr size_t kLargestHeadOfCodes = 512;

}  // namespace nybble
