// The codes of a panel32 panel as tiles of int8 activations read them: packed, or spread to a byte each.
#pragma once

#include "kernels/generic/panel_blocks.hpp"
#include "kernels/generic/tiles.hpp"

namespace nybble::NYBBLE_ISA {

inline constexpr size_t kGroupBytes = 2 * 64;  // 4 k of a panel, a byte a code

// Bytes from the line being multiplied to the line being fetched. From nearer than 8 KB a single row takes a tenth
// longer.
inline constexpr size_t kPrefetchDistance = 8192;

template <int Bits>
inline Floats load_steps(const uint16_t* scales) {
    const Floats scale = load_half(scales);
    return Bits == 8 ? scale : multiply(scale, broadcast(1.0f / (1 << (8 - Bits))));
}

// A panel of packed codes, read as they come: in one stream.
template <int Bits>
class PackedCodes {
  public:
    static constexpr int parts = 8 / Bits;  // k groups that share a line

    explicit PackedCodes(const PanelBlocks& panel) : panel_(panel) {}
    const PanelBlocks& panel() const { return panel_; }
    template <bool MayHalve>
    class Cursor : public PanelBlocks::Cursor<MayHalve> {
      public:
        explicit Cursor(const PackedCodes& from) : PanelBlocks::Cursor<MayHalve>(from.panel_) {}
        Floats steps(size_t lane) const { return load_steps<Bits>(this->scales() + lane); }
        Floats offsets(size_t lane) const { return load_half(this->scales() + kPanelChannels + lane); }
    };
    static Codes line(const uint8_t* from) {
        prefetch(from + kPrefetchDistance);
        return load_code_group(from);
    }
    static Codes part(Codes line, int part) { return part_of<Bits>(line, part); }

  private:
    const PanelBlocks& panel_;
};

// Groups of a panel whose codes are spread to a byte each, steps and offsets to fp32.
template <int Bits, bool Offsets>
class SpreadCodes {
  public:
    static constexpr int parts = 1;

    // Places for `blocks` blocks.
    SpreadCodes(uint8_t* memory, size_t blocks, size_t block)
        : codes_(memory),
          steps_(reinterpret_cast<float*>(codes_ + blocks * block * kPanelChannels)),
          offsets_(steps_ + blocks * kPanelChannels),
          block_bytes_(block * kPanelChannels) {}
    static constexpr size_t kMostBytes =
        kSlabGroups * kActivationGroup * kPanelChannels + 2 * kSlabGroups * kActivationGroup / 16 * kPanelChannels * 4;

    // The blocks from `first` on.
    void spread(const PanelBlocks& panel, size_t first, size_t blocks) {
        for (size_t b = 0; b < blocks; ++b) spread(panel.codes(first + b), panel.scales(first + b), b);
    }
    template <bool>
    class Cursor {
      public:
        explicit Cursor(const SpreadCodes& from)
            : codes_(from.codes_), steps_(from.steps_), offsets_(from.offsets_), block_bytes_(from.block_bytes_) {}
        const uint8_t* codes() const { return codes_; }
        Floats steps(size_t lane) const { return load(steps_ + lane); }
        Floats offsets(size_t lane) const { return load(offsets_ + lane); }
        void next() {
            codes_ += block_bytes_;
            steps_ += kPanelChannels;
            offsets_ += kPanelChannels;
        }

      private:
        const uint8_t* codes_;
        const float *steps_, *offsets_;
        size_t block_bytes_;
    };
    static Codes line(const uint8_t* from) { return load_code_group(from); }
    static Codes part(Codes line, int) { return line; }

  private:
    void spread(const uint8_t* packed, const uint16_t* scales, size_t block) {
        for (size_t lane = 0; lane < kPanelChannels; lane += kLaneCount, scales += kLaneCount) {
            store(steps_ + block * kPanelChannels + lane, load_steps<Bits>(scales));
            if constexpr (Offsets) store(offsets_ + block * kPanelChannels + lane, load_half(scales + kPanelChannels));
        }
        uint8_t* to = codes_ + block * block_bytes_;
        for (const uint8_t* end = packed + block_bytes_ * Bits / 8; packed != end; packed += kGroupBytes) {
            const Codes x = PackedCodes<Bits>::line(packed), y = PackedCodes<Bits>::line(packed + 64);
#pragma GCC unroll 8
            for (int part = 0; part < 8 / Bits; ++part, to += kGroupBytes) {
                store_code_group(to, part_of<Bits>(x, part));
                store_code_group(to + 64, part_of<Bits>(y, part));
            }
        }
    }

    uint8_t* codes_;
    float *steps_, *offsets_;
    size_t block_bytes_;
};

}  // namespace nybble::NYBBLE_ISA
