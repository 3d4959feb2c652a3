// What tiles of several rows read of a panel of panel32k8 on IME1, spread for them.
#pragma once

#include "kernels/generic/linear_int8_k8.hpp"
#include "kernels/spacemit/sums.hpp"

namespace nybble::NYBBLE_ISA {

inline constexpr size_t kMatrixRows = 8;      // of a tile: two operands A
inline constexpr size_t kMatrixChannels = 4;  // of an operand B
inline constexpr size_t kOperandBytes = 32;
inline constexpr size_t kMostBlocks = kActivationGroup / 16;
inline constexpr size_t kReadAhead = 256;  // bytes behind the last ones of a tile

// A group of the panel as tiles read it, from one end to the other: tile by tile and block by block the codes, operand
// after operand of 4 channels × 8 k, a byte each, then steps and perhaps offsets as the sums want them.
template <bool Offsets, size_t TileChannels>
struct Stream {
    static constexpr size_t operands = TileChannels / kMatrixChannels;
    static constexpr size_t factor_bytes = operands * 16 * sizeof(float);  // each operand's 4, 4 times

    size_t block, blocks;

    size_t block_bytes() const { return block * TileChannels + (Offsets ? 2 : 1) * factor_bytes; }
    size_t tile_bytes() const { return blocks * block_bytes(); }
    // Of operands from `operand` of the panel on, in block `b`: the codes, behind which lie the factors.
    uint8_t* codes(uint8_t* memory, size_t operand, size_t b) const {
        return memory + operand / operands * tile_bytes() + b * block_bytes() + operand % operands * kOperandBytes;
    }
};

// 32 halves as floats, each operand's 4 in 4 lanes and repeated 4 times: of operands 2i and 2i + 1 behind `to`[i].
inline void spread_factors(const uint16_t* halves, uint8_t* const (&to)[kPanelChannels / 8]) {
    __asm__ volatile(
        "vsetvli t0, zero, e16, m2, ta, ma\n\t"
        "vle16.v v2, (%[halves])\n\t"
        "vfwcvt.f.f.v v8, v2\n\t"
        "vsetvli t0, zero, e32, m1, ta, ma\n\t"
        "vid.v v0\n\t"
        "vand.vi v0, v0, 3\n\t"
        "vadd.vi v1, v0, 4\n\t"
        "vrgather.vv v12, v8, v0\n\t"
        "vrgather.vv v14, v8, v1\n\t"
        "vmv1r.v v13, v12\n\t"
        "vmv1r.v v15, v14\n\t"
        "vrgather.vv v16, v9, v0\n\t"
        "vrgather.vv v18, v9, v1\n\t"
        "vs4r.v v12, (%[to0])\n\t"
        "vmv1r.v v17, v16\n\t"
        "vmv1r.v v19, v18\n\t"
        "vrgather.vv v20, v10, v0\n\t"
        "vrgather.vv v22, v10, v1\n\t"
        "vs4r.v v16, (%[to1])\n\t"
        "vmv1r.v v21, v20\n\t"
        "vmv1r.v v23, v22\n\t"
        "vrgather.vv v24, v11, v0\n\t"
        "vrgather.vv v26, v11, v1\n\t"
        "vs4r.v v20, (%[to2])\n\t"
        "vmv1r.v v25, v24\n\t"
        "vmv1r.v v27, v26\n\t"
        "vs4r.v v24, (%[to3])"
        :
        : [halves] "r"(halves), [to0] "r"(to[0]), [to1] "r"(to[1]), [to2] "r"(to[2]), [to3] "r"(to[3])
        : "t0", "memory", NYBBLE_VECTOR_CLOBBERS);
}

// Codes lose their zero point where there are no offsets.
template <int Bits, bool Offsets, size_t TileChannels>
inline void spread_group(const PanelBlocks& panel, const Stream<Offsets, TileChannels>& stream, size_t first,
                         uint8_t* memory) {
    constexpr size_t parts = 8 / Bits, line_bytes = TileChannels * kLineDepth;
    const size_t lines = stream.block / kLineDepth;
    for (size_t b = 0; b < stream.blocks; ++b) {
        uint8_t* behind[kPanelChannels / 8];
        for (size_t pair = 0; pair < kPanelChannels / 8; ++pair) {
            uint8_t* to = stream.codes(memory, 2 * pair, b);
            const uint8_t* line = panel.codes(first + b) + 2 * pair * kOperandBytes;
            for (const uint8_t* end = line + lines / parts * kLineBytes; line != end; line += kLineBytes) {
                const Codes codes = load_code_group(line);
#pragma GCC unroll 2
                for (size_t part = 0; part < parts; ++part, to += line_bytes) {
                    Codes spread = part_of<Bits>(codes, static_cast<int>(part));
                    if constexpr (!Offsets) spread.v = spread.v - static_cast<uint8_t>(1 << (Bits - 1));
                    store_code_group(to, spread);
                }
            }
            // As far from the tile's first operand as floats take.
            behind[pair] = to + 2 * pair % stream.operands * (16 * sizeof(float) - kOperandBytes);
        }
        spread_factors(panel.scales(first + b), behind);
        if constexpr (Offsets) {
            for (uint8_t*& place : behind) place += stream.factor_bytes;
            spread_factors(panel.scales(first + b) + kPanelChannels, behind);
        }
    }
}

}  // namespace nybble::NYBBLE_ISA
