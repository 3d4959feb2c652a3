// The codes of a panel32 panel as tiles of int8 activations read them: packed, or spread to a byte each.
#pragma once

#include "kernels/generic/activation_rows.hpp"
#include "kernels/generic/panel_blocks.hpp"
#include "kernels/generic/tiles.hpp"

namespace nybble::NYBBLE_ISA {

// Bytes from the line being multiplied to the line being fetched. From nearer than 8 KB a single row takes a tenth
// longer.
inline constexpr size_t kPrefetchDistance = 8192;

// What is asked of memory while a tile reads a panel, ReadBytes at a time. A tile that reads it from memory: what comes
// later in the stream.
template <size_t ReadBytes>
struct StreamFetching {
    [[gnu::always_inline]] void next(const uint8_t* read) const {
#pragma GCC unroll 2
        for (size_t byte = 0; byte < ReadBytes; byte += kCacheLine) prefetch(read + kPrefetchDistance + byte);
    }
};

// Each of several, which read it from a near cache: its share of the next panel.
template <size_t ReadBytes>
class PanelFetching {
  public:
    PanelFetching(const PackedMatrix& weights, size_t panel, size_t tile, size_t tiles)
        : at_(weights.panel(panel + 1) + tile * (weights.panel_bytes() / tiles)) {
        const size_t reads = weights.format().code_bytes() / ReadBytes * weights.blocks() * tiles;
        step_ = (weights.panel_bytes() + reads - 1) / reads;
    }
    [[gnu::always_inline]] void next(const uint8_t*) {
#pragma GCC unroll 2
        for (size_t byte = 0; byte < ReadBytes; byte += kCacheLine) prefetch(at_ + byte);
        at_ += step_;
    }

  private:
    const uint8_t* at_;
    size_t step_;
};

struct NoFetching {
    void next(const uint8_t*) const {}
};

template <int Bits>
inline Floats load_steps(const uint16_t* scales) {
    const Floats scale = load_half(scales);
    return Bits == 8 ? scale : multiply(scale, broadcast(1.0f / (1 << (8 - Bits))));
}

// The weights of 16 channels, each at its own k, from their codes and the scales of the channels' blocks.
template <int Bits, bool Offsets>
inline Floats weights_from(Integers codes, const uint16_t* scales) {
    constexpr int zero_point = Offsets ? 0 : 1 << (Bits - 1);
    const Floats factor = to_floats(add(codes, broadcast_integer(-zero_point)));
    if constexpr (Offsets) return multiply_add(factor, load_half(scales), load_half(scales + kPanelChannels));
    return multiply(factor, load_half(scales));
}

// A panel of packed codes, read as they come: in one stream.
template <int Bits>
class PackedCodes {
  public:
    static constexpr bool takes_one_row = false;  // no more than that
    static constexpr int bits = Bits;
    static constexpr int parts = 8 / Bits;   // k groups that share a line
    static constexpr size_t lane_bytes = 4;  // of a line
    using Line = Codes;
    template <int Rows>
    using Activations = RowsApart<Rows>;

    explicit PackedCodes(const PanelBlocks& panel) : panel_(panel) {}
    const PanelBlocks& panel() const { return panel_; }
    template <bool MayHalve>
    class Cursor : public PanelBlocks::Cursor<MayHalve> {
      public:
        explicit Cursor(const PackedCodes& from) : PanelBlocks::Cursor<MayHalve>(from.panel_) {}
        Floats steps(size_t lane) const { return load_steps<Bits>(this->scales() + lane); }
        Floats offsets(size_t lane) const { return load_half(this->scales() + kPanelChannels + lane); }
    };
    static Codes line(const uint8_t* from) { return load_code_group(from); }
    static Codes part(Codes line, int part) { return part_of<Bits>(line, part); }
    // The weights that meet an outlier: of 16 channels from lane `lane` of the panel.
    template <bool Offsets>
    static Floats weights_of(const PanelBlocks& panel, const Outlier& outlier, size_t lane) {
        const size_t k_group = outlier.place / 4;
        const uint8_t* line = panel.codes(outlier.block) + (k_group / parts * kPanelChannels + lane) * lane_bytes;
        const auto first_bit = static_cast<int>(outlier.place % 4 * 8 + k_group % parts * Bits);
        return weights_from<Bits, Offsets>(bits_from<Bits>(load_integers(line), first_bit),
                                           panel.scales(outlier.block) + lane);
    }

  private:
    const PanelBlocks& panel_;
};

// Groups of a panel whose codes are spread to a byte each, steps and offsets to fp32.
template <typename Packed, bool Offsets>
class SpreadCodes {
  public:
    static constexpr int parts = 1;
    static constexpr size_t lane_bytes = 4;
    using Line = Codes;
    template <int Rows>
    using Activations = typename Packed::template Activations<Rows>;

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
            store(steps_ + block * kPanelChannels + lane, load_steps<Packed::bits>(scales));
            if constexpr (Offsets) store(offsets_ + block * kPanelChannels + lane, load_half(scales + kPanelChannels));
        }
        uint8_t* to = codes_ + block * block_bytes_;
        constexpr size_t line_bytes = kPanelChannels * Packed::lane_bytes;
        for (const uint8_t* end = packed + block_bytes_ * Packed::bits / 8; packed != end; packed += line_bytes) {
            const StreamFetching<line_bytes / 2> fetching;
            fetching.next(packed);
            const auto x = Packed::line(packed);
            fetching.next(packed + line_bytes / 2);
            const auto y = Packed::line(packed + line_bytes / 2);
#pragma GCC unroll 8
            for (int part = 0; part < Packed::parts; ++part, to += kPanelChannels * lane_bytes) {
                store_code_group(to, Packed::part(x, part));
                store_code_group(to + 64, Packed::part(y, part));
            }
        }
    }

    uint8_t* codes_;
    float *steps_, *offsets_;
    size_t block_bytes_;
};

}  // namespace nybble::NYBBLE_ISA
