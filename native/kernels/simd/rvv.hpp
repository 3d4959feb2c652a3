// The vector words of kernels/generic for RISC-V's vectors (RVV 1.0 with Zvfhmin). Each word gives the same bits as in
// the other files.
//
// A vector is 16 lanes at every VLEN (but see FloatPair): GNU vectors of 64 bytes, which the compiler maps to register
// groups and instructions of fixed length. Unlike the intrinsics' types, which have no size, they can be members and
// array elements; unlike types of fixed VLEN, their code runs wherever VLEN is at least what the file is compiled for
// (a target each for 128, 256 and 512: groups of 4, 2 and 1 registers). GCC 14 knows them too, but for some builtins
// and with some faults, which docs/kernels.md lists: no vector is halved or joined with another, nor takes over 8
// registers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
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
inline constexpr int kAttentionRows = NYBBLE_RVV_VLEN >= 512 ? 6 : 4;
inline constexpr int kAttentionVectors = NYBBLE_RVV_VLEN / 128;
inline constexpr int kAttentionSums = kAttentionRows * kAttentionVectors;
// Those of an int8 KV cache: one of its sums takes 1024 bits.
inline constexpr int kWideRows = NYBBLE_RVV_VLEN >= 512 ? 6 : NYBBLE_RVV_VLEN / 64;
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

// Each lane as a number of another type.
template <typename To, typename From>
inline To converted(From from) {
#if defined(__clang__)
    return __builtin_convertvector(from, To);
#else
    return each_lane<To>(
        [&](size_t lane) { return static_cast<std::remove_reference_t<decltype(To{}[0])>>(from[lane]); });
#endif
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
    return {converted<Vector<float, 16>>(load_as<Vector<_Float16, 16>>(from))};
}
inline void store_half(uint16_t* to, Floats a) {
    const auto halves = converted<Vector<_Float16, 16>>(a.v);
    std::memcpy(to, &halves, sizeof halves);
}
inline Floats load_bfloat(const uint16_t* from) {
    const auto wide = converted<Vector<uint32_t, 16>>(load_as<Vector<uint16_t, 16>>(from)) << 16;
    return {load_as<Vector<float, 16>>(&wide)};
}

inline Floats add(Floats a, Floats b) { return {a.v + b.v}; }
inline Floats subtract(Floats a, Floats b) { return {a.v - b.v}; }
// GCC 14 fuses a product with an addition, whatever -ffp-contract says, unless it does not see where it is from.
inline Floats multiply(Floats a, Floats b) {
    Floats product = {a.v * b.v};
#if !defined(__clang__)
    __asm__("" : "+vr"(product.v));
#endif
    return product;
}
inline Floats divide(Floats a, Floats b) { return {a.v / b.v}; }
// a·b + c with one rounding. GCC has it of vectors only where it recognises a loop over their lanes.
template <size_t Count>
inline Vector<float, Count> fused(Vector<float, Count> a, Vector<float, Count> b, Vector<float, Count> c) {
#if defined(__clang__)
    return __builtin_elementwise_fma(a, b, c);
#else
    constexpr size_t lanes_of_register = NYBBLE_RVV_VLEN / 32;
    __asm__("vset%i3vli zero, %3, e32, m%4, ta, ma\n\tvfmacc.vv %0, %1, %2"
            : "+vr"(c)
            : "vr"(a), "vr"(b), "rK"(Count), "i"(Count > lanes_of_register ? Count / lanes_of_register : 1)
            : "vl", "vtype");
    return c;
#endif
}
inline Floats multiply_add(Floats a, Floats b, Floats c) { return {fused<16>(a.v, b.v, c.v)}; }

#if NYBBLE_RVV_VLEN >= 1024
// A register full, of lanes that meet no other.
#define NYBBLE_FLOAT_PAIRS
struct FloatPair {
    Vector<float, 32> v;
};
inline FloatPair broadcast_pair(float value) { return {value - Vector<float, 32>{}}; }
inline FloatPair load_pair(const float* from) { return {load_as<Vector<float, 32>>(from)}; }
inline FloatPair load_half_pair(const uint16_t* from) {
    return {converted<Vector<float, 32>>(load_as<Vector<_Float16, 32>>(from))};
}
inline FloatPair load_bfloat_pair(const uint16_t* from) {
    const auto wide = converted<Vector<uint32_t, 32>>(load_as<Vector<uint16_t, 32>>(from)) << 16;
    return {load_as<Vector<float, 32>>(&wide)};
}
inline void store(float* to, FloatPair a) { std::memcpy(to, &a.v, sizeof a.v); }
inline FloatPair multiply_add(FloatPair a, FloatPair b, FloatPair c) { return {fused<32>(a.v, b.v, c.v)}; }
#endif

// a where a > b, else b: a NaN in b passes through.
inline Floats larger(Floats a, Floats b) { return {a.v > b.v ? a.v : b.v}; }
inline Floats smaller(Floats a, Floats b) { return {a.v < b.v ? a.v : b.v}; }
inline Floats absolute(Floats a) {
    return {reinterpret_cast<Vector<float, 16>>(reinterpret_cast<Vector<int32_t, 16>>(a.v) & 0x7fffffff)};
}

// Lane i + lane i + Distance; where there is none, anything.
template <int Distance, int... I>
inline Floats lanes_added(Floats a, std::integer_sequence<int, I...>) {
    return {a.v + __builtin_shufflevector(a.v, a.v, (I + Distance < 16 ? I + Distance : -1)...)};
}
// ((lanes 0-7 + lanes 8-15) folded in halves): one fixed order.
inline float sum(Floats a) {
    const auto lanes = std::make_integer_sequence<int, 16>();
    const Floats four = lanes_added<4>(lanes_added<8>(a, lanes), lanes);
    const Floats two = lanes_added<2>(four, lanes);
    return two.v[0] + two.v[1];
}
inline float largest(Floats a) {
#if __has_builtin(__builtin_reduce_max)
    return __builtin_reduce_max(a.v);
#else
    float result = a.v[0];
    for (size_t i = 0; i < 16; ++i) result = __builtin_fmaxf(result, a.v[i]);
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
    int32_t lane = 16;
    for (size_t i = 0; i < 16; ++i) lane = lane < lanes[i] ? lane : lanes[i];
    return static_cast<size_t>(lane);
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
inline Floats to_floats(Integers a) { return {converted<Vector<float, 16>>(a.v)}; }
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
    return {inside ? converted<Vector<int32_t, 16>>(safe) : Vector<int32_t, 16>{} + INT32_MIN};
}
// 2ⁿ where the low 9 bits of a lane are n + 127, for n in -126..127; infinity for 128.
inline Floats power_of_low_bits(Floats a) {
    return {reinterpret_cast<Vector<float, 16>>(reinterpret_cast<Vector<uint32_t, 16>>(a.v) << 23)};
}
inline void store_int8(int8_t* to, Integers a) {
    const auto bytes = converted<Vector<int8_t, 16>>(a.v);
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
// Of 16 channels × 8 k, the first and the second 4 k.
struct CodePair {
    Codes first, second;
};
inline CodePair load_code_pair(const uint8_t* from) {
    const auto lanes = load_as<Vector<uint64_t, 16>>(from);
    return {{reinterpret_cast<Vector<uint8_t, 64>>(converted<Vector<uint32_t, 16>>(lanes))},
            {reinterpret_cast<Vector<uint8_t, 64>>(converted<Vector<uint32_t, 16>>(lanes >> 32))}};
}
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
    const auto even = converted<Vector<int16_t, 32>>(pairs);
    const auto odd = converted<Vector<int16_t, 32>>(pairs >> 16);
    return converted<Vector<int32_t, 32>>(even) + converted<Vector<int32_t, 32>>(odd);
}
// Modulo 2³².
template <size_t Count>
inline Vector<uint32_t, Count / 2> pairs_added(Vector<uint32_t, Count> a) {
    const auto pairs = reinterpret_cast<Vector<uint64_t, Count / 2>>(a);
    return converted<Vector<uint32_t, Count / 2>>(pairs) + converted<Vector<uint32_t, Count / 2>>(pairs >> 32);
}
inline Vector<int32_t, 16> pairs_added(Vector<int32_t, 32> a) {
    return reinterpret_cast<Vector<int32_t, 16>>(pairs_added<32>(reinterpret_cast<Vector<uint32_t, 32>>(a)));
}

// Σ over a block of code · activation for 16 channels (see the AVX512 file).
//
// 2- and 4-bit codes: sixteen products of at most 15·127 fit in 16 bits, so neighbours are added only every 64 k.
template <int Bits, bool Symmetric>
struct BlockDot {
    static constexpr int most_groups = 16;
    Integers total;
    Vector<int16_t, 64> products;
    void start(int32_t start) {
        total = broadcast_integer(Symmetric ? start : 0);
        products = Vector<int16_t, 64>{};
    }
    void accumulate(Codes weights, int32_t activations) {
        products += converted<Vector<int16_t, 64>>(weights.v) * converted<Vector<int16_t, 64>>(repeat(activations));
    }
    void widen() {
        total.v += pairs_added(pairs_added(products)) << (8 - Bits);
        products = Vector<int16_t, 64>{};
    }
};

// 8-bit codes less 128 are signed, so that two products, at most 2·128·127, fit in 16 bits: of k 0 and 2, and of 1
// and 3. Subtracting 128 is what a symmetric block needs.
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
        const auto products =
            converted<Vector<int16_t, 64>>(codes) * converted<Vector<int16_t, 64>>(repeat(activations));
        const auto two = reinterpret_cast<Vector<uint32_t, 32>>(products);
        const auto sums = converted<Vector<uint16_t, 32>>(two) + converted<Vector<uint16_t, 32>>(two >> 16);
        pairs += converted<Vector<int32_t, 32>>(reinterpret_cast<Vector<int16_t, 32>>(sums));
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
    return {converted<Vector<int32_t, 16>>(lanes) & ((1 << Bits) - 1)};
}

// 16-bit activations, 16 in 32 bytes: of each four, those of even places first.
inline void store_wide(uint8_t* to, Integers a) {
    const auto values = converted<Vector<int16_t, 16>>(a.v);
    const auto ordered = __builtin_shufflevector(values, values, 0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15);
    std::memcpy(to, &ordered, sizeof ordered);
}

// Σ code · activation for 16 lanes of codes, modulo 2³². `group` is that of 4 activations among 16.
struct WideDot {
    Vector<uint32_t, 32> products;  // two sums a lane
    uint32_t first;
    void start(int32_t value) {
        products = Vector<uint32_t, 32>{};
        first = static_cast<uint32_t>(value);
    }
    void accumulate(Codes codes, const uint8_t* activations, size_t group) {
        const auto pairs = reinterpret_cast<Vector<uint16_t, 32>>(codes.v);
        accumulate_two(pairs & 0xff, activations + 8 * group);
        accumulate_two(pairs >> 8, activations + 8 * group + 4);
    }
    void accumulate_two(Vector<uint16_t, 32> codes, const uint8_t* activations) {
        int32_t two;
        std::memcpy(&two, __builtin_assume_aligned(activations, sizeof two), sizeof two);
        const auto repeated = reinterpret_cast<Vector<int16_t, 32>>(broadcast_integer(two).v);
        products += reinterpret_cast<Vector<uint32_t, 32>>(converted<Vector<int32_t, 32>>(codes) *
                                                           converted<Vector<int32_t, 32>>(repeated));
    }
    Integers total() const { return {reinterpret_cast<Vector<int32_t, 16>>(pairs_added<32>(products) + first)}; }
};

}  // namespace nybble::NYBBLE_RVV
