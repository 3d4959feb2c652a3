// Rounding a position's key and value into the KV cache.
#pragma once

#include <cstring>

#include "base/half.hpp"
#include "kernels/kernel.hpp"

namespace nybble::NYBBLE_ISA {

// 16 values as 16-bit floats. What overflows becomes NaN: an infinite key may give a score of −infinity, which would
// pass for "not looked at".
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

template <KVType Type>
inline void append_floats(const AppendArguments& a) {
    const size_t head_dim = a.block.head_dim;
    auto* keys = reinterpret_cast<uint16_t*>(a.to) + a.place;
    auto* values = reinterpret_cast<uint16_t*>(a.to + a.block.values_offset()) + a.place * a.block.padded_head_dim();
    uint16_t rounded[16];
    for (size_t i = 0; i < head_dim; i += 16) {
        const size_t count = head_dim - i < 16 ? head_dim - i : 16;
        round_to_16_bits<Type>(load_first(a.value + i, count), rounded);
        std::memcpy(values + i, rounded, count * sizeof(uint16_t));
        round_to_16_bits<Type>(load_first(a.key + i, count), rounded);
        for (size_t j = 0; j < count; ++j) keys[(i + j) * kBlockPositions] = rounded[j];
    }
}

inline void append(const AppendArguments& a) {
    switch (a.block.type) {
        case KVType::fp16: return append_floats<KVType::fp16>(a);
        case KVType::bf16: return append_floats<KVType::bf16>(a);
    }
}

}  // namespace nybble::NYBBLE_ISA
