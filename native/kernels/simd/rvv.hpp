// The vector words of kernels/generic for RISC-V's vectors (RVV 1.0 with Zvfhmin). Each word gives the same bits as in
// the other files.
//
// A vector is 16 lanes at every VLEN: GNU vectors of 64 bytes, which the compiler maps to register groups and
// instructions of fixed length. Unlike the intrinsics' types, which have no size, they can be members and array
// elements; unlike types of fixed VLEN, their code runs wherever VLEN is at least what the file is compiled for (a
// target each for 128, 256 and 512: groups of 4, 2 and 1 registers). GCC 14 knows them too, without their builtins.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

namespace nybble::NYBBLE_RVV {

// Registers at VLEN 256: 16-bit sums of a row take 4 registers, its fp32 sums 2; the codes and activations 2 each.
inline constexpr int kTileRows = NYBBLE_RVV_VLEN == 128 ? 2 : NYBBLE_RVV_VLEN == 256 ? 4 : 6;
inline constexpr int kF32TileRows = kTileRows;
// So few rows read packed codes as they come, for two vectors each.
inline constexpr size_t kFewRows = kTileRows / 2;
// For more, groups of activations whose weights are spread at once: their codes and a tile's activations stay in the L1
// cache.
inline constexpr size_t kSlabGroups = 4;
inline constexpr int kTileVectors = 1;
// Attention's tiles have up to so many rows, vectors, and sums: half of the registers, and operands.
inline constexpr int kAttentionRows = NYBBLE_RVV_VLEN == 512 ? 6 : 4;
inline constexpr int kAttentionVectors = NYBBLE_RVV_VLEN / 128;
inline constexpr int kAttentionSums = kAttentionRows * kAttentionVectors;
// Those of an int8 KV cache: one of its sums takes 2048 bits.
inline constexpr int kWideRows = NYBBLE_RVV_VLEN / 128;
inline constexpr int kWideSums = kWideRows;

template <typename T, size_t Count>
struct VectorOf {
    typedef T type __attribute__((vector_size(Count * sizeof(T))));
};
template <typename T, size_t Count>
using Vector = typename VectorOf<T, Count>::type;

struct Floats {
    Vector<float, 16> v;
};
struct Integers {
    Vector<int32_t, 16> v;
};

template <typename To, typename From>
inline To load_as(const From* from) {
    To value;
    std::memcpy(&value, from, sizeof value);
    return value;
}

// The lanes of a function of a lane, in a loop that compilers turn into one instruction where they have it.
template <typename V, typename Function>
inline V each_lane(Function function) {
    V result;
    for (size_t lane = 0; lane < sizeof(V) / sizeof(result[0]); ++lane) result[lane] = function(lane);
    return result;
}

inline Vector<int32_t, 16> lane_numbers() {
    return Vector<int32_t, 16>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
}

inline Floats broadcast(float value) { return {value - Vector<float, 16>{}}; }
inline Floats load(const float* from) { return {load_as<Vector<float, 16>>(from)}; }
inline Floats load_first(const float* from, size_t count) {
    float lanes[16] = {};
    std::memcpy(lanes, from, count * sizeof(float));
    return load(lanes);
}
inline void store(float* to, Floats a) { std::memcpy(to, &a.v, sizeof a.v); }
inline void store_first(float* to, Floats a, size_t count) { std::memcpy(to, &a.v, count * sizeof(float)); }
inline Floats load_half(const uint16_t* from) {
    return {__builtin_convertvector(load_as<Vector<_Float16, 16>>(from), Vector<float, 16>)};
}
inline void store_half(uint16_t* to, Floats a) {
    const auto halves = __builtin_convertvector(a.v, Vector<_Float16, 16>);
    std::memcpy(to, &halves, sizeof halves);
}
inline Floats load_bfloat(const uint16_t* from) {
    const auto wide = __builtin_convertvector(load_as<Vector<uint16_t, 16>>(from), Vector<uint32_t, 16>) << 16;
    return {load_as<Vector<float, 16>>(&wide)};
}

inline Floats add(Floats a, Floats b) { return {a.v + b.v}; }
inline Floats subtract(Floats a, Floats b) { return {a.v - b.v}; }
inline Floats multiply(Floats a, Floats b) { return {a.v * b.v}; }
inline Floats divide(Floats a, Floats b) { return {a.v / b.v}; }
// a·b + c with one rounding.
inline Floats multiply_add(Floats a, Floats b, Floats c) {
#if __has_builtin(__builtin_elementwise_fma)
    return {__builtin_elementwise_fma(a.v, b.v, c.v)};
#else
    return {each_lane<Vector<float, 16>>([&](size_t i) { return __builtin_fmaf(a.v[i], b.v[i], c.v[i]); })};
#endif
}
// a where a > b, else b: a NaN in b passes through.
inline Floats larger(Floats a, Floats b) { return {a.v > b.v ? a.v : b.v}; }
inline Floats smaller(Floats a, Floats b) { return {a.v < b.v ? a.v : b.v}; }
inline Floats absolute(Floats a) {
    return {reinterpret_cast<Vector<float, 16>>(reinterpret_cast<Vector<int32_t, 16>>(a.v) & 0x7fffffff)};
}

template <size_t Count, size_t... I>
inline auto halves_added(Vector<float, Count> a, std::index_sequence<I...>) {
    return __builtin_shufflevector(a, a, I...) + __builtin_shufflevector(a, a, (I + Count / 2)...);
}
// ((lanes 0-7 + lanes 8-15) folded in halves): one fixed order.
inline float sum(Floats a) {
    const Vector<float, 8> eight = halves_added<16>(a.v, std::make_index_sequence<8>());
    const Vector<float, 4> four = halves_added<8>(eight, std::make_index_sequence<4>());
    const Vector<float, 2> two = halves_added<4>(four, std::make_index_sequence<2>());
    return two[0] + two[1];
}
inline float largest(Floats a) {
#if __has_builtin(__builtin_reduce_max)
    return __builtin_reduce_max(a.v);
#else
    float result = a.v[0];
    for (size_t i = 1; i < 16; ++i) result = result > a.v[i] ? result : a.v[i];
    return result;
#endif
}

// The first lane that equals `value`, or 16.
inline size_t lane_of(Floats a, float value) {
    const Vector<int32_t, 16> none = Vector<int32_t, 16>{} + 16;
    const Vector<int32_t, 16> lanes = a.v == broadcast(value).v ? lane_numbers() : none;
#if __has_builtin(__builtin_reduce_min)
    return static_cast<size_t>(__builtin_reduce_min(lanes));
#else
    size_t lane = 0;
    while (lane < 16 && lanes[lane] == 16) ++lane;
    return lane;
#endif
}
// Lanes from `count` on become `rest`.
inline Floats first_or(Floats a, size_t count, float rest) {
    return {lane_numbers() < static_cast<int32_t>(count) ? a.v : broadcast(rest).v};
}
inline Floats without_lane(Floats a, size_t lane) {
    return {lane_numbers() == static_cast<int32_t>(lane) ? Vector<float, 16>{} : a.v};
}

inline Integers broadcast_integer(int32_t value) { return {Vector<int32_t, 16>{} + value}; }
inline Integers load_integers(const uint8_t* from) { return {load_as<Vector<int32_t, 16>>(from)}; }
inline Integers exclusive_or(Integers a, Integers b) { return {a.v ^ b.v}; }
inline Integers add(Integers a, Integers b) { return {a.v + b.v}; }
// Of each lane, the `Bits` bits from bit `first`.
template <int Bits>
inline Integers bits_from(Integers a, int first) {
    const auto lanes = reinterpret_cast<Vector<uint32_t, 16>>(a.v);
    return {reinterpret_cast<Vector<int32_t, 16>>((lanes >> first) & ((1u << Bits) - 1))};
}
inline Floats to_floats(Integers a) { return {__builtin_convertvector(a.v, Vector<float, 16>)}; }
inline Floats round_to_even(Floats a) {
#if __has_builtin(__builtin_elementwise_roundeven)
    return {__builtin_elementwise_roundeven(a.v)};
#else
    return {each_lane<Vector<float, 16>>([&](size_t i) { return __builtin_roundevenf(a.v[i]); })};
#endif
}
// NaN and values outside int32 become INT32_MIN, as on other machines; RISC-V's own conversion saturates.
inline Integers to_integers(Floats a) {
    const Floats rounded = round_to_even(a);
    const auto inside = (rounded.v >= -0x1p31f) & (rounded.v < 0x1p31f);
    const Vector<float, 16> safe = inside ? rounded.v : Vector<float, 16>{};
    return {inside ? __builtin_convertvector(safe, Vector<int32_t, 16>) : Vector<int32_t, 16>{} + INT32_MIN};
}
// 2ⁿ where the low 9 bits of a lane are n + 127, for n in -126..127; infinity for 128.
inline Floats power_of_low_bits(Floats a) {
    return {reinterpret_cast<Vector<float, 16>>(reinterpret_cast<Vector<uint32_t, 16>>(a.v) << 23)};
}
inline void store_int8(int8_t* to, Integers a) {
    const auto bytes = __builtin_convertvector(a.v, Vector<int8_t, 16>);
    std::memcpy(to, &bytes, sizeof bytes);
}

inline int32_t sum(Integers a) {
#if __has_builtin(__builtin_reduce_add)
    return __builtin_reduce_add(a.v);
#else
    int32_t total = 0;
    for (size_t i = 0; i < 16; ++i) total += a.v[i];
    return total;
#endif
}

// 16 channels × 4 k of unsigned weight codes.
struct Codes {
    Vector<uint8_t, 64> v;
};
inline Codes load_code_group(const uint8_t* from) { return {load_as<Vector<uint8_t, 64>>(from)}; }
inline void store_code_group(uint8_t* to, Codes a) { std::memcpy(to, &a.v, sizeof a.v); }
// The codes of k group `part` of the 8 / Bits that share a line, as BlockDot takes them.
template <int Bits>
inline Codes part_of(Codes line, int part) {
    if constexpr (Bits == 8) return line;
    constexpr uint8_t mask = (1 << Bits) - 1;
    return {(line.v >> static_cast<uint8_t>(part * Bits)) & mask};
}
[[gnu::always_inline]] inline void prefetch(const uint8_t* address) { __builtin_prefetch(address); }

// The activations of 4 k for each of 16 channels.
inline Vector<int8_t, 64> repeat(int32_t activations) {
    return reinterpret_cast<Vector<int8_t, 64>>(broadcast_integer(activations).v);
}
// Neighbours added: narrowing the lanes of twice the width takes the even ones, after a shift the odd ones.
inline Vector<int32_t, 32> pairs_added(Vector<int16_t, 64> a) {
    const auto pairs = reinterpret_cast<Vector<int32_t, 32>>(a);
    const auto even = __builtin_convertvector(pairs, Vector<int16_t, 32>);
    const auto odd = __builtin_convertvector(pairs >> 16, Vector<int16_t, 32>);
    return __builtin_convertvector(even, Vector<int32_t, 32>) + __builtin_convertvector(odd, Vector<int32_t, 32>);
}
// Modulo 2³².
template <size_t Count>
inline Vector<uint32_t, Count / 2> pairs_added(Vector<uint32_t, Count> a) {
    const auto pairs = reinterpret_cast<Vector<uint64_t, Count / 2>>(a);
    return __builtin_convertvector(pairs, Vector<uint32_t, Count / 2>) +
           __builtin_convertvector(pairs >> 32, Vector<uint32_t, Count / 2>);
}
inline Vector<int32_t, 16> pairs_added(Vector<int32_t, 32> a) {
    return reinterpret_cast<Vector<int32_t, 16>>(pairs_added<32>(reinterpret_cast<Vector<uint32_t, 32>>(a)));
}

inline Vector<int32_t, 32> joined(Vector<int32_t, 16> a, Vector<int32_t, 16> b) {
    return __builtin_shufflevector(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21,
                                   22, 23, 24, 25, 26, 27, 28, 29, 30, 31);
}

// Σ over a block of code · activation for 16 channels (see the AVX512 file).
//
// 2- and 4-bit codes: eight products of at most 15·127 fit in 16 bits, so neighbours are added only every 32 k.
template <int Bits, bool Symmetric>
struct BlockDot {
    Integers total;
    Vector<int16_t, 64> products;
    void start(int32_t start) {
        total = broadcast_integer(Symmetric ? start : 0);
        products = Vector<int16_t, 64>{};
    }
    void accumulate(Codes weights, int32_t activations) {
        products += __builtin_convertvector(weights.v, Vector<int16_t, 64>) *
                    __builtin_convertvector(repeat(activations), Vector<int16_t, 64>);
    }
    void widen() {
        total.v += pairs_added(pairs_added(products)) << (8 - Bits);
        products = Vector<int16_t, 64>{};
    }
};

// 8-bit codes less 128 are signed, so that a product fits in 16 bits. Subtracting 128 is what a symmetric block needs.
template <bool Symmetric>
struct BlockDot<8, Symmetric> {
    Integers total;
    Vector<int32_t, 32> pairs;
    void start(int32_t start) {
        total = broadcast_integer(Symmetric ? 0 : -start);
        pairs = Vector<int32_t, 32>{};
    }
    void accumulate(Codes weights, int32_t activations) {
        const auto codes = reinterpret_cast<Vector<int8_t, 64>>(weights.v ^ 128);
        pairs += pairs_added(__builtin_convertvector(codes, Vector<int16_t, 64>) *
                             __builtin_convertvector(repeat(activations), Vector<int16_t, 64>));
    }
    void widen() {
        total.v += pairs_added(pairs);
        pairs = Vector<int32_t, 32>{};
    }
};

// Of each of 16 lanes of 64 bits, the `Bits` bits from bit `first`.
template <int Bits>
inline Integers bits_of_line(const uint8_t* from, int first) {
    const auto lanes = load_as<Vector<uint64_t, 16>>(from) >> static_cast<uint64_t>(first);
    return {__builtin_convertvector(lanes, Vector<int32_t, 16>) & ((1 << Bits) - 1)};
}

// Tiles over lines of 8 k (panel32k8): 16-bit sums of a row and vector take 8 registers at VLEN 256.
inline constexpr int kLineRows = NYBBLE_RVV_VLEN == 512 ? 4 : NYBBLE_RVV_VLEN == 256 ? 2 : 1;
inline constexpr int kLineVectors = NYBBLE_RVV_VLEN == 128 ? 1 : 2;

// Σ over a block of code · activation for 16 channels of a line of 8 k, 8 channels at a time. As BlockDot, but 16-bit
// lanes are those of the 8 k of a channel: eight products of at most 15·127 are reached after 64 k.
template <int Bits, bool Symmetric>
struct LineDot {
    Integers total;
    Vector<int16_t, 64> products[2];
    void start(int32_t start) {
        total = broadcast_integer(Symmetric ? start : 0);
        products[0] = products[1] = Vector<int16_t, 64>{};
    }
    void accumulate(int half, Codes weights, int64_t activations) {
        const auto repeated = reinterpret_cast<Vector<int8_t, 64>>(activations + Vector<int64_t, 8>{});
        products[half] += __builtin_convertvector(weights.v, Vector<int16_t, 64>) *
                          __builtin_convertvector(repeated, Vector<int16_t, 64>);
    }
    void widen() {
        const auto sums = joined(pairs_added(pairs_added(products[0])), pairs_added(pairs_added(products[1])));
        total.v += pairs_added(sums) << (8 - Bits);
        products[0] = products[1] = Vector<int16_t, 64>{};
    }
};

template <bool Symmetric>
struct LineDot<8, Symmetric> {
    Integers total;
    Vector<int32_t, 32> pairs[2];
    void start(int32_t start) {
        total = broadcast_integer(Symmetric ? 0 : -start);
        pairs[0] = pairs[1] = Vector<int32_t, 32>{};
    }
    void accumulate(int half, Codes weights, int64_t activations) {
        const auto codes = reinterpret_cast<Vector<int8_t, 64>>(weights.v ^ 128);
        const auto repeated = reinterpret_cast<Vector<int8_t, 64>>(activations + Vector<int64_t, 8>{});
        pairs[half] += pairs_added(__builtin_convertvector(codes, Vector<int16_t, 64>) *
                                   __builtin_convertvector(repeated, Vector<int16_t, 64>));
    }
    void widen() {
        total.v += pairs_added(joined(pairs_added(pairs[0]), pairs_added(pairs[1])));
        pairs[0] = pairs[1] = Vector<int32_t, 32>{};
    }
};

// 16-bit activations, 16 in 32 bytes.
inline void store_wide(uint8_t* to, Integers a) {
    const auto values = __builtin_convertvector(a.v, Vector<int16_t, 16>);
    std::memcpy(to, &values, sizeof values);
}

// Σ code · activation for 16 lanes of codes, modulo 2³². `group` is that of 4 activations among 16.
struct WideDot {
    Vector<uint32_t, 64> products;  // four sums a lane
    uint32_t first;
    void start(int32_t value) {
        products = Vector<uint32_t, 64>{};
        first = static_cast<uint32_t>(value);
    }
    void accumulate(Codes codes, const uint8_t* activations, size_t group) {
        int64_t four;
        std::memcpy(&four, __builtin_assume_aligned(activations + 8 * group, sizeof(int32_t)), sizeof four);
        const auto repeated = reinterpret_cast<Vector<int16_t, 64>>(four + Vector<int64_t, 16>{});
        products += reinterpret_cast<Vector<uint32_t, 64>>(__builtin_convertvector(codes.v, Vector<int32_t, 64>) *
                                                           __builtin_convertvector(repeated, Vector<int32_t, 64>));
    }
    Integers total() const {
        const Vector<uint32_t, 16> sums = pairs_added<32>(pairs_added<64>(products)) + first;
        return {reinterpret_cast<Vector<int32_t, 16>>(sums)};
    }
};

}  // namespace nybble::NYBBLE_RVV
