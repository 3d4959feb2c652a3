// The vector words of kernels/generic, spelled in AVX512 with VNNI. Each word gives the same bits as in the other
// files.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace nybble::avx512_vnni {

// Rows of a register tile: 6 rows × 2 vectors are 12 chains of dot products, enough for two of five cycles' latency to
// start in each cycle, and leave registers for what they are added to.
inline constexpr int kTileRows = 6;
inline constexpr int kF32TileRows = 6;
inline constexpr int kTileVectors = 2;
// Attention's tiles have up to so many rows, vectors, and sums.
inline constexpr int kAttentionRows = 6;
inline constexpr int kAttentionVectors = 4;
inline constexpr int kAttentionSums = 24;
// And those of an int8 KV cache.
inline constexpr int kWideRows = 6;
inline constexpr int kWideSums = 12;
// Any number of rows reads packed codes as they come: taking them apart for each tile costs less than the traffic of
// spread ones, which leave the L1 cache.
inline constexpr size_t kFewRows = SIZE_MAX;
inline constexpr size_t kSlabGroups = 0;

struct Floats {
    __m512 v;
};
struct Integers {
    __m512i v;
};

inline __mmask16 first_lanes(size_t count) { return static_cast<__mmask16>((1u << count) - 1u); }

inline Floats broadcast(float value) { return {_mm512_set1_ps(value)}; }
inline Floats load(const float* from) { return {_mm512_loadu_ps(from)}; }
inline Floats load_first(const float* from, size_t count) { return {_mm512_maskz_loadu_ps(first_lanes(count), from)}; }
inline void store(float* to, Floats a) { _mm512_storeu_ps(to, a.v); }
inline void store_first(float* to, Floats a, size_t count) { _mm512_mask_storeu_ps(to, first_lanes(count), a.v); }
inline Floats load_half(const uint16_t* from) {
    return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)))};
}
inline void store_half(uint16_t* to, Floats a) {
    const __m256i halves = _mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), halves);
}
inline Floats load_bfloat(const uint16_t* from) {
    const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(wide, 16))};
}

inline Floats add(Floats a, Floats b) { return {_mm512_add_ps(a.v, b.v)}; }
inline Floats subtract(Floats a, Floats b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline Floats multiply(Floats a, Floats b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline Floats divide(Floats a, Floats b) { return {_mm512_div_ps(a.v, b.v)}; }
// a·b + c with one rounding.
inline Floats multiply_add(Floats a, Floats b, Floats c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
// a where a > b, else b: a NaN in b passes through.
inline Floats larger(Floats a, Floats b) { return {_mm512_max_ps(a.v, b.v)}; }
inline Floats smaller(Floats a, Floats b) { return {_mm512_min_ps(a.v, b.v)}; }
inline Floats absolute(Floats a) { return {_mm512_abs_ps(a.v)}; }

// ((lanes 0-7 + lanes 8-15) folded in halves): one fixed order.
inline float sum(Floats a) {
    const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}
// Lanes from `count` on become `rest`.
inline Floats first_or(Floats a, size_t count, float rest) {
    return {_mm512_mask_mov_ps(_mm512_set1_ps(rest), first_lanes(count), a.v)};
}
inline float largest(Floats a) { return _mm512_reduce_max_ps(a.v); }

// The first lane that equals `value`, or 16.
inline size_t lane_of(Floats a, float value) {
    const unsigned equal = _mm512_cmp_ps_mask(a.v, _mm512_set1_ps(value), _CMP_EQ_OQ);
    return static_cast<size_t>(__builtin_ctz(equal | 0x10000u));
}
inline Floats without_lane(Floats a, size_t lane) {
    return {_mm512_maskz_mov_ps(static_cast<__mmask16>(~(1u << lane)), a.v)};
}

inline Integers broadcast_integer(int32_t value) { return {_mm512_set1_epi32(value)}; }
inline Integers load_integers(const uint8_t* from) { return {_mm512_loadu_si512(from)}; }
inline Integers exclusive_or(Integers a, Integers b) { return {_mm512_xor_si512(a.v, b.v)}; }
inline Integers add(Integers a, Integers b) { return {_mm512_add_epi32(a.v, b.v)}; }
// Of each lane, the `Bits` bits from bit `first`.
template <int Bits>
inline Integers bits_from(Integers a, int first) {
    using Lanes [[gnu::vector_size(64)]] = uint32_t;  // whose shifts by 0 GCC drops
    return {reinterpret_cast<__m512i>((reinterpret_cast<Lanes>(a.v) >> first) & ((1u << Bits) - 1))};
}
inline Floats to_floats(Integers a) { return {_mm512_cvtepi32_ps(a.v)}; }
inline Integers to_integers(Floats a) { return {_mm512_cvtps_epi32(a.v)}; }
// 2ⁿ where the low 9 bits of a lane are n + 127, for n in -126..127; infinity for 128.
inline Floats power_of_low_bits(Floats a) {
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(a.v), 23))};
}
inline void store_int8(int8_t* to, Integers a) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtepi32_epi8(a.v));
}
inline int32_t sum(Integers a) { return _mm512_reduce_add_epi32(a.v); }

// 16 channels × 4 k of unsigned weight codes.
struct Codes {
    __m512i v;
};
inline Codes load_code_group(const uint8_t* from) { return {_mm512_loadu_si512(from)}; }
inline void store_code_group(uint8_t* to, Codes a) { _mm512_storeu_si512(to, a.v); }
// The codes of k group `part` of the 8 / Bits that share a line, as BlockDot takes them.
template <int Bits>
inline Codes part_of(Codes line, int part) {
    if constexpr (Bits == 8) return line;
    if constexpr (Bits == 4) {
        return {_mm512_and_si512(part == 0 ? _mm512_slli_epi16(line.v, 4) : line.v, _mm512_set1_epi8(-16))};
    }
    const __m512i shifted = part == 0   ? _mm512_slli_epi16(line.v, 6)
                            : part == 1 ? _mm512_slli_epi16(line.v, 4)
                            : part == 2 ? _mm512_slli_epi16(line.v, 2)
                                        : line.v;
    return {_mm512_and_si512(shifted, _mm512_set1_epi8(-64))};
}
[[gnu::always_inline]] inline void prefetch(const uint8_t* address) {
    _mm_prefetch(reinterpret_cast<const char*>(address), _MM_HINT_T0);
}

// Σ over a block of code · activation for 16 channels; less the zero point's part, which is `start`, if `Symmetric`.
template <int Bits, bool Symmetric>
struct BlockDot {
    Integers total;
    void start(int32_t start) { total = broadcast_integer(Symmetric ? start : 0); }
    void accumulate(Codes weights, int32_t activations) {
        total.v = _mm512_dpbusd_epi32(total.v, weights.v, _mm512_set1_epi32(activations));
    }
    // Called after every 32 k at most. GCC would else copy sums to other registers on their way round a loop.
    void widen() { asm("" : "+v"(total.v)); }
};

// 16-bit activations, 16 in 32 bytes: here the high bytes, rounded so that the low bytes, which follow, are signed too.
inline void store_wide(uint8_t* to, Integers a) {
    const __m512i high = _mm512_srai_epi32(_mm512_add_epi32(a.v, _mm512_set1_epi32(128)), 8);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtepi32_epi8(high));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + 16), _mm512_cvtepi32_epi8(a.v));
}

// Σ code · activation for 16 lanes of codes, modulo 2³². `group` is that of 4 activations among 16.
struct WideDot {
    __m512i high, low;
    void start(int32_t first) {
        high = _mm512_setzero_si512();
        low = _mm512_set1_epi32(first);
    }
    void accumulate(Codes codes, const uint8_t* activations, size_t group) {
        int32_t bytes;
        std::memcpy(&bytes, activations + 4 * group, sizeof bytes);
        high = _mm512_dpbusd_epi32(high, codes.v, _mm512_set1_epi32(bytes));
        std::memcpy(&bytes, activations + 16 + 4 * group, sizeof bytes);
        low = _mm512_dpbusd_epi32(low, codes.v, _mm512_set1_epi32(bytes));
    }
    Integers total() const { return {_mm512_add_epi32(_mm512_slli_epi32(high, 8), low)}; }
};

}  // namespace nybble::avx512_vnni
