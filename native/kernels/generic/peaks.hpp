// Loops that do one thing as fast as an instruction set can: the ceilings kernels are judged against.
#pragma once

#include <cstddef>
#include <cstdint>

#include "measure/peak_kernels.hpp"

namespace nybble::NYBBLE_ISA {

// The same address, though the compiler can't know: what is read there is read again.
template <typename T>
inline const T* opaque(const T* address) {
    asm volatile("" : "+r"(address));
    return address;
}

// Reads a multiple of kReadBytes with the widest loads; returns something that depends on all of them.
inline int32_t read_bytes(const uint8_t* from, size_t bytes) {
    Integers a = broadcast_integer(0), b = a, c = a, d = a;
    for (const uint8_t* end = from + bytes; from != end; from += kReadBytes) {
        a = exclusive_or(a, load_integers(from));
        b = exclusive_or(b, load_integers(from + 64));
        c = exclusive_or(c, load_integers(from + 128));
        d = exclusive_or(d, load_integers(from + 192));
    }
    int8_t lanes[kLaneCount];
    store_int8(lanes, exclusive_or(exclusive_or(a, b), exclusive_or(c, d)));
    int32_t result = 0;
    for (const int8_t lane : lanes) result += lane;
    return result;
}

// The register tile of the linears on int8 activations, fed from the L1 cache and without their epilogue.
inline int32_t multiply_integers(size_t rounds, const PeakOperands& operands) {
    static_assert(kTileRows <= kPeakRows && kTileVectors <= kPeakVectors);
    BlockDot<4, false> dots[kTileRows][kTileVectors];
#pragma GCC unroll 8
    for (auto& row : dots) {
#pragma GCC unroll 2
        for (auto& dot : row) dot.start(0);
    }
    for (size_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 8
        for (int g = 0; g < kPeakGroups; ++g) {
            const PeakOperands* from = opaque(&operands);
#pragma GCC unroll 8
            for (int r = 0; r < kTileRows; ++r) {
#pragma GCC unroll 2
                for (int v = 0; v < kTileVectors; ++v) {
                    dots[r][v].accumulate(load_code_group(from->codes[v]), from->activations[g][r]);
                }
            }
        }
#pragma GCC unroll 8
        for (auto& row : dots) {
#pragma GCC unroll 2
            for (auto& dot : row) dot.widen();
        }
    }
    int32_t result = 0;
#pragma GCC unroll 8
    for (auto& row : dots) {
#pragma GCC unroll 2
        for (auto& dot : row) result += sum(dot.total);
    }
    return result;
}

// Six rows at least: a fused multiply-add takes four cycles, and two can start in each.
inline constexpr int kFloatRows = kTileRows < 6 ? 6 : kTileRows;

inline float multiply_floats(size_t rounds, const PeakOperands& operands) {
    static_assert(kFloatRows <= kPeakRows);
    Floats sums[kFloatRows][kTileVectors];
#pragma GCC unroll 8
    for (auto& row : sums) {
#pragma GCC unroll 2
        for (Floats& value : row) value = broadcast(0.0f);
    }
    for (size_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 8
        for (int g = 0; g < kPeakGroups; ++g) {
            const PeakOperands* from = opaque(&operands);
#pragma GCC unroll 8
            for (int r = 0; r < kFloatRows; ++r) {
#pragma GCC unroll 2
                for (int v = 0; v < kTileVectors; ++v) {
                    sums[r][v] = multiply_add(load(from->weights[v]), broadcast(from->factors[g][r]), sums[r][v]);
                }
            }
        }
    }
    float result = 0.0f;
#pragma GCC unroll 8
    for (const auto& row : sums) {
#pragma GCC unroll 2
        for (const Floats& value : row) result += sum(value);
    }
    return result;
}

}  // namespace nybble::NYBBLE_ISA
