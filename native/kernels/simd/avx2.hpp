// The vector words of kernels/generic, spelled in AVX2 with FMA and F16C. Each word gives the same bits as in the other
// files: a vector is 16 lanes, here two registers.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace nybble::avx2 {

// Register tiles for 16 registers: 4 rows × 1 vector (two registers) of 16-bit sums leave room for operands. fp32
// linears have two sums for each output, so fewer rows.
inline constexpr int kTileRows = 4;
inline constexpr int kF32TileRows = 3;
inline constexpr int kTileVectors = 1;
// Attention's tiles have up to so many rows, vectors, and sums.
inline constexpr int kAttentionRows = 4;
inline constexpr int kAttentionVectors = 4;
inline constexpr int kAttentionSums = 4;
// And those of an int8 KV cache.
inline constexpr int kWideRows = 2;
inline constexpr int kWideSums = 2;
// So few rows read packed codes as they come.
inline constexpr size_t kFewRows = 8;
// For more, groups of activations whose weights are spread at once: their codes and a tile's activations stay in the L1
// cache.
inline constexpr size_t kSlabGroups = 4;

struct Floats {
    __m256 low, high;
};
struct Integers {
    __m256i low, high;
};

inline Floats broadcast(float value) { return {_mm256_set1_ps(value), _mm256_set1_ps(value)}; }
inline Floats load(const float* from) { return {_mm256_loadu_ps(from), _mm256_loadu_ps(from + 8)}; }
inline Floats load_first(const float* from, size_t count) {
    alignas(32) float lanes[16] = {};
    std::memcpy(lanes, from, count * sizeof(float));
    return load(lanes);
}
inline void store(float* to, Floats a) {
    _mm256_storeu_ps(to, a.low);
    _mm256_storeu_ps(to + 8, a.high);
}
inline void store_first(float* to, Floats a, size_t count) {
    alignas(32) float lanes[16];
    store(lanes, a);
    std::memcpy(to, lanes, count * sizeof(float));
}
inline Floats load_half(const uint16_t* from) {
    return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))),
            _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + 8)))};
}
inline void store_half(uint16_t* to, Floats a) {
    auto* halves = reinterpret_cast<__m128i*>(to);
    _mm_storeu_si128(halves, _mm256_cvtps_ph(a.low, _MM_FROUND_TO_NEAREST_INT));
    _mm_storeu_si128(halves + 1, _mm256_cvtps_ph(a.high, _MM_FROUND_TO_NEAREST_INT));
}
inline __m256 bfloats(const uint16_t* from) {
    const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}
inline Floats load_bfloat(const uint16_t* from) { return {bfloats(from), bfloats(from + 8)}; }

inline Floats add(Floats a, Floats b) { return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)}; }
inline Floats subtract(Floats a, Floats b) { return {_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)}; }
inline Floats multiply(Floats a, Floats b) { return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)}; }
inline Floats divide(Floats a, Floats b) { return {_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)}; }
// a·b + c with one rounding.
inline Floats multiply_add(Floats a, Floats b, Floats c) {
    return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
}
// a where a > b, else b: a NaN in b passes through.
inline Floats larger(Floats a, Floats b) { return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)}; }
inline Floats smaller(Floats a, Floats b) { return {_mm256_min_ps(a.low, b.low), _mm256_min_ps(a.high, b.high)}; }
inline Floats absolute(Floats a) {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    return {_mm256_andnot_ps(sign, a.low), _mm256_andnot_ps(sign, a.high)};
}

// ((lanes 0-7 + lanes 8-15) folded in halves): one fixed order.
inline float sum(Floats a) {
    const __m256 eight = _mm256_add_ps(a.low, a.high);
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}
// Lanes from `count` on become `rest`.
inline Floats first_or(Floats a, size_t count, float rest) {
    const __m256i counts = _mm256_set1_epi32(static_cast<int>(count));
    const __m256i low = _mm256_cmpgt_epi32(counts, _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    const __m256i high = _mm256_cmpgt_epi32(counts, _mm256_setr_epi32(8, 9, 10, 11, 12, 13, 14, 15));
    const __m256 others = _mm256_set1_ps(rest);
    return {_mm256_blendv_ps(others, a.low, _mm256_castsi256_ps(low)),
            _mm256_blendv_ps(others, a.high, _mm256_castsi256_ps(high))};
}
inline float largest(Floats a) {
    const __m256 eight = _mm256_max_ps(a.low, a.high);
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps(two, two, 1)));
}

// The first lane that equals `value`, or 16.
inline size_t lane_of(Floats a, float value) {
    const __m256 wanted = _mm256_set1_ps(value);
    const int low = _mm256_movemask_ps(_mm256_cmp_ps(a.low, wanted, _CMP_EQ_OQ));
    const int high = _mm256_movemask_ps(_mm256_cmp_ps(a.high, wanted, _CMP_EQ_OQ));
    return static_cast<size_t>(__builtin_ctz(static_cast<unsigned>(low | (high << 8)) | 0x10000u));
}
inline Floats without_lane(Floats a, size_t lane) {
    const __m256i first = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7),
                  second = _mm256_setr_epi32(8, 9, 10, 11, 12, 13, 14, 15);
    const __m256i gone = _mm256_set1_epi32(static_cast<int>(lane));
    return {_mm256_andnot_ps(_mm256_castsi256_ps(_mm256_cmpeq_epi32(first, gone)), a.low),
            _mm256_andnot_ps(_mm256_castsi256_ps(_mm256_cmpeq_epi32(second, gone)), a.high)};
}

inline Integers broadcast_integer(int32_t value) { return {_mm256_set1_epi32(value), _mm256_set1_epi32(value)}; }
inline Integers load_integers(const uint8_t* from) {
    return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)),
            _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + 32))};
}
inline Integers exclusive_or(Integers a, Integers b) {
    return {_mm256_xor_si256(a.low, b.low), _mm256_xor_si256(a.high, b.high)};
}
inline Integers add(Integers a, Integers b) {
    return {_mm256_add_epi32(a.low, b.low), _mm256_add_epi32(a.high, b.high)};
}
// Of each lane, the `Bits` bits from bit `first`.
template <int Bits>
inline Integers bits_from(Integers a, int first) {
    const __m256i mask = _mm256_set1_epi32((1 << Bits) - 1), count = _mm256_set1_epi32(first);
    return {_mm256_and_si256(_mm256_srlv_epi32(a.low, count), mask),
            _mm256_and_si256(_mm256_srlv_epi32(a.high, count), mask)};
}
inline Floats to_floats(Integers a) { return {_mm256_cvtepi32_ps(a.low), _mm256_cvtepi32_ps(a.high)}; }
inline Integers to_integers(Floats a) { return {_mm256_cvtps_epi32(a.low), _mm256_cvtps_epi32(a.high)}; }
// 2ⁿ where the low 9 bits of a lane are n + 127, for n in -126..127; infinity for 128.
inline Floats power_of_low_bits(Floats a) {
    return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(a.low), 23)),
            _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(a.high), 23))};
}
inline void store_int8(int8_t* to, Integers a) {
    const __m128i low = _mm_packs_epi32(_mm256_castsi256_si128(a.low), _mm256_extracti128_si256(a.low, 1));
    const __m128i high = _mm_packs_epi32(_mm256_castsi256_si128(a.high), _mm256_extracti128_si256(a.high, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm_packs_epi16(low, high));
}
inline int32_t sum(Integers a) {
    const __m256i eight = _mm256_add_epi32(a.low, a.high);
    __m128i four = _mm_add_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
    four = _mm_add_epi32(four, _mm_unpackhi_epi64(four, four));
    return _mm_cvtsi128_si32(_mm_add_epi32(four, _mm_shuffle_epi32(four, 1)));
}

// 16 channels × 4 k of unsigned weight codes.
struct Codes {
    __m256i low, high;
};
inline Codes load_code_group(const uint8_t* from) {
    return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)),
            _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + 32))};
}
inline void store_code_group(uint8_t* to, Codes a) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), a.low);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + 32), a.high);
}
// The codes of k group `part` of the 8 / Bits that share a line, as BlockDot takes them: 2-bit ones are 0..3, 4-bit
// ones 0..15.
template <int Bits>
inline Codes part_of(Codes line, int part) {
    if constexpr (Bits == 8) return line;
    const __m256i mask = _mm256_set1_epi8((1 << Bits) - 1);
    switch (part * Bits) {
        case 0: return {_mm256_and_si256(line.low, mask), _mm256_and_si256(line.high, mask)};
        case 2:
            return {_mm256_and_si256(_mm256_srli_epi16(line.low, 2), mask),
                    _mm256_and_si256(_mm256_srli_epi16(line.high, 2), mask)};
        case 4:
            return {_mm256_and_si256(_mm256_srli_epi16(line.low, 4), mask),
                    _mm256_and_si256(_mm256_srli_epi16(line.high, 4), mask)};
        default:
            return {_mm256_and_si256(_mm256_srli_epi16(line.low, 6), mask),
                    _mm256_and_si256(_mm256_srli_epi16(line.high, 6), mask)};
    }
}
[[gnu::always_inline]] inline void prefetch(const uint8_t* address) {
    _mm_prefetch(reinterpret_cast<const char*>(address), _MM_HINT_T0);
}

// Sums of neighbours, times a factor.
template <int Factor = 1>
inline __m256i widened(__m256i pairs) {
    return _mm256_madd_epi16(pairs, _mm256_set1_epi16(Factor));
}

// Σ over a block of code · activation for 16 channels (see the AVX512 file).
//
// 2- and 4-bit codes: eight products of at most 15·127·2 fit in the 16-bit lanes, so widen only every 32 k.
template <int Bits, bool Symmetric>
struct BlockDot {
    Integers total;
    __m256i low, high;
    void start(int32_t start) {
        total = broadcast_integer(Symmetric ? start : 0);
        low = high = _mm256_setzero_si256();
    }
    void accumulate(Codes weights, int32_t activations) {
        const __m256i a = _mm256_set1_epi32(activations);
        low = _mm256_add_epi16(low, _mm256_maddubs_epi16(weights.low, a));
        high = _mm256_add_epi16(high, _mm256_maddubs_epi16(weights.high, a));
        // Add now: GCC would else compute all products first and run out of registers.
        asm("" : "+x"(low), "+x"(high));
    }
    void widen() {
        constexpr int kFactor = 1 << (8 - Bits);  // codes count from the top of their byte
        total = add(total, {widened<kFactor>(low), widened<kFactor>(high)});
        low = high = _mm256_setzero_si256();
    }
};

// 8-bit codes would saturate vpmaddubsw (255·127·2). Codes less 128 are signed; |w| ≤ 128 times the activation with w's
// sign keeps each pair within 128·127·2 = 32512. Subtracting 128 is exactly what a symmetric block needs.
template <bool Symmetric>
struct BlockDot<8, Symmetric> {
    Integers total;
    void start(int32_t start) { total = broadcast_integer(Symmetric ? 0 : -start); }
    static __m256i products(__m256i codes, __m256i activations) {
        const __m256i weights = _mm256_xor_si256(codes, _mm256_set1_epi8(-128));
        return widened(_mm256_maddubs_epi16(_mm256_abs_epi8(weights), _mm256_sign_epi8(activations, weights)));
    }
    void accumulate(Codes weights, int32_t activations) {
        const __m256i a = _mm256_set1_epi32(activations);
        total.low = _mm256_add_epi32(total.low, products(weights.low, a));
        total.high = _mm256_add_epi32(total.high, products(weights.high, a));
    }
    void widen() {}
};

// 16-bit activations, 16 in 32 bytes.
inline void store_wide(uint8_t* to, Integers a) {
    const __m256i mixed = _mm256_packs_epi32(a.low, a.high);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm256_permute4x64_epi64(mixed, 0xd8));
}

// Σ code · activation for 16 lanes of codes, modulo 2³². `group` is that of 4 activations among 16.
struct WideDot {
    __m256i pairs[4];  // of 4 lanes each, two sums a lane
    void start(int32_t first) {
        for (__m256i& pair : pairs) pair = _mm256_set1_epi64x(static_cast<uint32_t>(first));
    }
    void accumulate(Codes codes, const uint8_t* activations, size_t group) {
        int64_t four;
        std::memcpy(&four, activations + 8 * group, sizeof four);
        const __m256i a = _mm256_set1_epi64x(four);
        const auto add_products = [&](__m256i& sums, __m128i bytes) {
            sums = _mm256_add_epi32(sums, _mm256_madd_epi16(_mm256_cvtepu8_epi16(bytes), a));
        };
        add_products(pairs[0], _mm256_castsi256_si128(codes.low));
        add_products(pairs[1], _mm256_extracti128_si256(codes.low, 1));
        add_products(pairs[2], _mm256_castsi256_si128(codes.high));
        add_products(pairs[3], _mm256_extracti128_si256(codes.high, 1));
    }
    Integers total() const {
        return {_mm256_permute4x64_epi64(_mm256_hadd_epi32(pairs[0], pairs[1]), 0xd8),
                _mm256_permute4x64_epi64(_mm256_hadd_epi32(pairs[2], pairs[3]), 0xd8)};
    }
};

}  // namespace nybble::avx2
