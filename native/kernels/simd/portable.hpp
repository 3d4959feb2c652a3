// The vector words of kernels/generic, spelled in plain C++: the last resort everywhere, and the reading copy.
// A vector is 16 lanes; every word gives the same bits as in the files for real vector units.
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/half.hpp"

namespace nybble::portable {

inline constexpr int kTileRows = 1;
inline constexpr int kF32TileRows = 1;
inline constexpr int kTileVectors = 1;
// Attention's tiles have up to so many rows, vectors, and sums.
inline constexpr int kAttentionRows = 1;
inline constexpr int kAttentionVectors = 1;
inline constexpr int kAttentionSums = 1;
inline constexpr int kWideRows = 1;
inline constexpr int kWideSums = 1;
// So few rows read packed codes as they come.
inline constexpr size_t kFewRows = 1;
// For more, groups of activations whose weights are spread at once: their codes and a tile's activations stay in the L1
// cache.
inline constexpr size_t kSlabGroups = 4;
inline constexpr int kLanes = 16;

struct Floats {
    float v[kLanes];
};
struct Integers {
    int32_t v[kLanes];
};

template <typename Result, typename Function>
inline Result each_lane(Function function) {
    Result result;
    for (int lane = 0; lane < kLanes; ++lane) result.v[lane] = function(lane);
    return result;
}

inline Floats broadcast(float value) {
    return each_lane<Floats>([&](int) { return value; });
}
inline Floats load(const float* from) {
    return each_lane<Floats>([&](int i) { return from[i]; });
}
inline Floats load_first(const float* from, size_t count) {
    return each_lane<Floats>([&](int i) { return static_cast<size_t>(i) < count ? from[i] : 0.0f; });
}
inline void store(float* to, Floats a) { std::memcpy(to, a.v, sizeof a.v); }
inline void store_first(float* to, Floats a, size_t count) { std::memcpy(to, a.v, count * sizeof(float)); }
inline Floats load_half(const uint16_t* from) {
    return each_lane<Floats>([&](int i) { return half_to_float(from[i]); });
}
inline void store_half(uint16_t* to, Floats a) {
    for (int i = 0; i < kLanes; ++i) to[i] = float_to_half(a.v[i]);
}
inline Floats load_bfloat(const uint16_t* from) {
    return each_lane<Floats>([&](int i) { return bfloat_to_float(from[i]); });
}

inline Floats add(Floats a, Floats b) {
    return each_lane<Floats>([&](int i) { return a.v[i] + b.v[i]; });
}
inline Floats subtract(Floats a, Floats b) {
    return each_lane<Floats>([&](int i) { return a.v[i] - b.v[i]; });
}
inline Floats multiply(Floats a, Floats b) {
    return each_lane<Floats>([&](int i) { return a.v[i] * b.v[i]; });
}
inline Floats divide(Floats a, Floats b) {
    return each_lane<Floats>([&](int i) { return a.v[i] / b.v[i]; });
}
// a·b + c with one rounding.
inline Floats multiply_add(Floats a, Floats b, Floats c) {
    return each_lane<Floats>([&](int i) { return std::fmaf(a.v[i], b.v[i], c.v[i]); });
}
// a where a > b, else b: a NaN in b passes through.
inline Floats larger(Floats a, Floats b) {
    return each_lane<Floats>([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
}
inline Floats smaller(Floats a, Floats b) {
    return each_lane<Floats>([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; });
}
inline Floats absolute(Floats a) {
    return each_lane<Floats>([&](int i) { return std::fabs(a.v[i]); });
}

// ((lanes 0-7 + lanes 8-15) folded in halves): one fixed order.
inline float sum(Floats a) {
    for (int width = kLanes / 2; width > 0; width /= 2) {
        for (int i = 0; i < width; ++i) a.v[i] += a.v[i + width];
    }
    return a.v[0];
}
// Lanes from `count` on become `rest`.
inline Floats first_or(Floats a, size_t count, float rest) {
    return each_lane<Floats>([&](int i) { return static_cast<size_t>(i) < count ? a.v[i] : rest; });
}
inline float largest(Floats a) {
    float result = a.v[0];
    for (const float value : a.v) result = result > value ? result : value;
    return result;
}

// The first lane that equals `value`, or 16.
inline size_t lane_of(Floats a, float value) {
    size_t lane = 0;
    while (lane < kLanes && a.v[lane] != value) ++lane;
    return lane;
}
inline Floats without_lane(Floats a, size_t lane) {
    a.v[lane] = 0.0f;
    return a;
}

inline Integers broadcast_integer(int32_t value) {
    return each_lane<Integers>([&](int) { return value; });
}
inline Integers load_integers(const uint8_t* from) {
    Integers result;
    std::memcpy(result.v, from, sizeof result.v);
    return result;
}
inline Integers exclusive_or(Integers a, Integers b) {
    return each_lane<Integers>([&](int i) { return a.v[i] ^ b.v[i]; });
}
inline Integers add(Integers a, Integers b) {
    return each_lane<Integers>([&](int i) { return a.v[i] + b.v[i]; });
}
// Of each lane, the `Bits` bits from bit `first`.
template <int Bits>
inline Integers bits_from(Integers a, int first) {
    return each_lane<Integers>(
        [&](int i) { return static_cast<int32_t>((static_cast<uint32_t>(a.v[i]) >> first) & ((1u << Bits) - 1)); });
}
inline Floats to_floats(Integers a) {
    return each_lane<Floats>([&](int i) { return static_cast<float>(a.v[i]); });
}
// NaN and values outside int32 become INT32_MIN, as the vector units do.
inline Integers to_integers(Floats a) {
    return each_lane<Integers>([&](int i) {
        const float rounded = std::nearbyintf(a.v[i]);
        return rounded >= -0x1p31f && rounded < 0x1p31f ? static_cast<int32_t>(rounded) : INT32_MIN;
    });
}
// 2ⁿ where the low 9 bits of a lane are n + 127, for n in -126..127; infinity for 128.
inline Floats power_of_low_bits(Floats a) {
    return each_lane<Floats>([&](int i) { return std::bit_cast<float>(std::bit_cast<uint32_t>(a.v[i]) << 23); });
}
inline void store_int8(int8_t* to, Integers a) {
    for (int i = 0; i < kLanes; ++i) to[i] = static_cast<int8_t>(a.v[i]);
}
inline int32_t sum(Integers a) {
    int32_t total = 0;
    for (const int32_t value : a.v) total += value;
    return total;
}

// 16 channels × 4 k of unsigned weight codes.
struct Codes {
    uint8_t v[4 * kLanes];
};
inline Codes load_code_group(const uint8_t* from) {
    Codes codes;
    std::memcpy(codes.v, from, sizeof codes.v);
    return codes;
}
inline void store_code_group(uint8_t* to, const Codes& a) { std::memcpy(to, a.v, sizeof a.v); }
// Of 16 channels × 8 k, the first and the second 4 k.
struct CodePair {
    Codes first, second;
};
inline CodePair load_code_pair(const uint8_t* from) {
    CodePair pair;
    for (size_t lane = 0; lane < kLanes; ++lane) {
        std::memcpy(pair.first.v + 4 * lane, from + 8 * lane, 4);
        std::memcpy(pair.second.v + 4 * lane, from + 8 * lane + 4, 4);
    }
    return pair;
}
// The codes of k group `part` of the 8 / Bits that share a line, as BlockDot takes them.
template <int Bits>
inline Codes part_of(Codes line, int part) {
    if constexpr (Bits == 8) return line;
    for (uint8_t& code : line.v) code = static_cast<uint8_t>(code >> (part * Bits) << (8 - Bits));
    return line;
}
[[gnu::always_inline]] inline void prefetch(const uint8_t* address) { __builtin_prefetch(address); }

// Σ over a block of code · activation for 16 channels (see the AVX512 file).
template <int Bits, bool Symmetric>
struct BlockDot {
    Integers total;
    void start(int32_t start) { total = broadcast_integer(Symmetric ? start : 0); }
    void accumulate(const Codes& weights, int32_t activations) {
        int8_t a[4];
        std::memcpy(a, &activations, sizeof a);
        for (int lane = 0; lane < kLanes; ++lane) {
            const uint8_t* w = weights.v + 4 * lane;
            total.v[lane] += w[0] * a[0] + w[1] * a[1] + w[2] * a[2] + w[3] * a[3];
        }
    }
    void widen() {}
};

// Of each of 16 lanes of 64 bits, the `Bits` bits from bit `first`.
template <int Bits>
inline Integers bits_of_line(const uint8_t* from, int first) {
    return each_lane<Integers>([&](int i) {
        uint64_t lane;
        std::memcpy(&lane, from + 8 * i, sizeof lane);
        return static_cast<int32_t>((lane >> first) & ((1u << Bits) - 1));
    });
}

// 16-bit activations, 16 in 32 bytes.
inline void store_wide(uint8_t* to, Integers a) {
    for (size_t i = 0; i < kLanes; ++i) {
        const auto value = static_cast<int16_t>(a.v[i]);
        std::memcpy(to + i * sizeof value, &value, sizeof value);
    }
}

// Σ code · activation for 16 lanes of codes, modulo 2³². `group` is that of 4 activations among 16.
struct WideDot {
    uint32_t sums[kLanes];
    void start(int32_t first) {
        for (uint32_t& value : sums) value = static_cast<uint32_t>(first);
    }
    void accumulate(const Codes& codes, const uint8_t* activations, size_t group) {
        int16_t a[4];
        std::memcpy(a, activations + 8 * group, sizeof a);
        for (int lane = 0; lane < kLanes; ++lane) {
            for (int i = 0; i < 4; ++i) sums[lane] += static_cast<uint32_t>(codes.v[4 * lane + i] * a[i]);
        }
    }
    Integers total() const {
        return each_lane<Integers>([&](int i) { return static_cast<int32_t>(sums[i]); });
    }
};

}  // namespace nybble::portable
