// Rounding a position's key and value into the KV cache.
#pragma once

#include <cmath>
#include <cstring>
#include <limits>

#include "base/half.hpp"
#include "kernels/generic/rounding.hpp"

namespace nybble::NYBBLE_ISA {

// 16 values as floats of the cache. What overflows becomes NaN: an infinite key may give a score of −infinity, which
// would pass for "not looked at".
template <KVType Type>
inline void round_to_16_bits(Floats values, uint16_t* to) {
    constexpr uint16_t kInfinity = Type == KVType::fp16 ? 0x7c00 : 0x7f80,
                       kNaN = Type == KVType::fp16 ? 0x7e00 : 0x7fc0;
    if constexpr (Type == KVType::fp16) {
        store_half(to, values);
    } else {
        float lanes[16];
        store(lanes, values);
        for (int i = 0; i < 16; ++i) to[i] = float_to_bfloat(lanes[i]);
    }
    for (int i = 0; i < 16; ++i) to[i] = (to[i] & 0x7fffu) == kInfinity ? kNaN : to[i];
}
inline void keep_finite(Floats values, float* to) {
    store(to, values);
    for (int i = 0; i < 16; ++i) to[i] = std::isinf(to[i]) ? std::numeric_limits<float>::quiet_NaN() : to[i];
}

// Round(values, to) makes 16 numbers of 16 values.
template <typename Number, auto Round>
inline void append_floats(const AppendArguments& a) {
    const size_t head_dim = a.block.head_dim;
    auto* keys = reinterpret_cast<Number*>(a.to) + a.place;
    auto* values = reinterpret_cast<Number*>(a.to + a.block.values_offset()) + a.place * a.block.padded_head_dim();
    Number rounded[16];
    for (size_t i = 0; i < head_dim; i += 16) {
        const size_t count = head_dim - i < 16 ? head_dim - i : 16;
        Round(load_first(a.value + i, count), rounded);
        std::memcpy(values + i, rounded, count * sizeof(Number));
        Round(load_first(a.key + i, count), rounded);
        for (size_t j = 0; j < count; ++j) keys[(i + j) * kBlockPositions] = rounded[j];
    }
}

// Codes of one position; code i goes to place_of(i).
template <typename Place>
inline void append_codes(const float* x, size_t count, float* scale, uint8_t* to, const Place& place_of) {
    const Rounding rounding = rounding_of(x, count, 127.0f);
    *scale = rounding.scale;
    for (size_t i = 0; i < count; i += kLaneCount) {
        const size_t some = count - i < kLaneCount ? count - i : kLaneCount;
        int8_t codes[kLaneCount];
        store_int8(codes, to_integers(multiply(load_first(x + i, some), rounding.inverse)));
        for (size_t j = 0; j < some; ++j) to[place_of(i + j)] = static_cast<uint8_t>(codes[j] + 128);
    }
}

inline void append_codes(const AppendArguments& a) {
    const size_t head_dim = a.block.head_dim, width = a.block.padded_head_dim();
    uint8_t* values = a.to + a.block.values_offset();
    auto* key_scales = reinterpret_cast<float*>(a.to + a.block.scales_offset());
    auto* value_scales = reinterpret_cast<float*>(values + a.block.scales_offset());
    append_codes(a.key, head_dim, key_scales + a.place, a.to,
                 [&](size_t i) { return (i / 4 * kBlockPositions + a.place) * 4 + i % 4; });
    append_codes(a.value, head_dim, value_scales + a.place, values,
                 [&](size_t i) { return (a.place / 4 * width + i) * 4 + a.place % 4; });
}

inline void append(const AppendArguments& a) {
    switch (a.block.type) {
        case KVType::fp32: return append_floats<float, keep_finite>(a);
        case KVType::fp16: return append_floats<uint16_t, round_to_16_bits<KVType::fp16>>(a);
        case KVType::bf16: return append_floats<uint16_t, round_to_16_bits<KVType::bf16>>(a);
        case KVType::int8: return append_codes(a);
    }
}

}  // namespace nybble::NYBBLE_ISA
