// Linears on int8 activations, of weights in panel32. A panel is multiplied group by group of activations: within a
// group each block gives an exact integer dot product, and the fp32 sums have one fixed order,
//   for each block: t = fma(float(dot), step, t); t = fma(offset, Σ codes, t)
//   f = fma(t, activation scale, f)
// over groups in order and then outliers, so a row gives the same bits alone, in a tile, and on any instruction set.
// A few rows read the packed codes as they come; for more, a panel's codes are first spread to a byte each, and reused.
#pragma once

#include <algorithm>
#include <cstring>

#include "kernels/generic/panel_blocks.hpp"
#include "kernels/generic/tiles.hpp"

namespace nybble::NYBBLE_ISA {

inline constexpr size_t kGroupBytes = 2 * 64;  // 4 k of a panel, a byte a code

// Bytes from the line being multiplied to the line being fetched.
inline constexpr size_t kPrefetchDistance = 1536;

// Block is 16 or 32, or kBlocksOf32 for 64 and 128: what is known when compiled saves moves between registers.
inline constexpr size_t kBlocksOf32 = 0;

// k groups between two widenings of a block's dot product: at most 8.
template <size_t Block>
inline constexpr int kGroups = Block == 16 ? 4 : 8;

template <int Bits>
inline Floats load_steps(const uint16_t* scales) {
    const Floats scale = load_half(scales);
    return Bits == 8 ? scale : multiply(scale, broadcast(1.0f / (1 << (8 - Bits))));
}

// The weights that meet an outlier: of 16 channels from lane `lane` of the panel.
template <int Bits, bool Offsets>
inline Floats weights_of(const PanelBlocks& panel, const Outlier& outlier, size_t lane) {
    constexpr size_t parts = 8 / Bits;
    constexpr int zero_point = Offsets ? 0 : 1 << (Bits - 1);
    const size_t k_group = outlier.place / 4;
    const uint8_t* line = panel.codes(outlier.block) + k_group / parts * kGroupBytes + lane * 4;
    const uint16_t* scales = panel.scales(outlier.block) + lane;
    const auto first_bit = static_cast<int>(outlier.place % 4 * 8 + k_group % parts * Bits);
    const Integers codes = bits_from<Bits>(load_integers(line), first_bit);
    const Floats factor = to_floats(add(codes, broadcast_integer(-zero_point)));
    if constexpr (Offsets) return multiply_add(factor, load_half(scales), load_half(scales + kPanelChannels));
    return multiply(factor, load_half(scales));
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

// A panel whose codes are spread to a byte each, steps and offsets to fp32.
template <int Bits, bool Offsets>
class SpreadCodes {
  public:
    static constexpr int parts = 1;

    static size_t bytes(const PackedMatrix& weights) {
        const size_t blocks = round_up(weights.blocks() * weights.format().block, kActivationGroup) / 16;
        return blocks * kPanelChannels * (16 + 2 * sizeof(float));
    }
    SpreadCodes(uint8_t* memory, const PanelBlocks& panel, size_t blocks, size_t block)
        : panel_(panel),
          codes_(memory),
          steps_(reinterpret_cast<float*>(codes_ + blocks * block * kPanelChannels)),
          offsets_(steps_ + blocks * kPanelChannels),
          block_bytes_(block * kPanelChannels) {
        for (size_t b = 0; b < blocks; ++b) spread(b);
    }
    const PanelBlocks& panel() const { return panel_; }
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
    void spread(size_t block) {
        const uint16_t* scales = panel_.scales(block);
        for (size_t lane = 0; lane < kPanelChannels; lane += kLaneCount, scales += kLaneCount) {
            store(steps_ + block * kPanelChannels + lane, load_steps<Bits>(scales));
            if constexpr (Offsets) store(offsets_ + block * kPanelChannels + lane, load_half(scales + kPanelChannels));
        }
        const uint8_t* packed = panel_.codes(block);
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

    const PanelBlocks& panel_;
    uint8_t* codes_;
    float *steps_, *offsets_;
    size_t block_bytes_;
};

template <int Bits>
inline size_t linear_int8_scratch_bytes(const PackedMatrix& weights) {
    return SpreadCodes<Bits, true>::bytes(weights);
}

inline int32_t four_activations(const int8_t* codes) {
    int32_t value;
    std::memcpy(&value, __builtin_assume_aligned(codes, sizeof value), sizeof value);
    return value;
}

// The outliers of a row times their weights, added to `total`, then what all linears end with.
template <int Bits, bool Offsets, int Vectors>
[[gnu::always_inline]] inline void finish_row(const LinearArguments& arguments, const PanelBlocks& panel,
                                              size_t channel, size_t lane, size_t row, Floats (&total)[Vectors]) {
    const QuantisedRows& a = arguments.quantised;
    const Outlier* outlier = a.outliers_of(row);
    for (const Outlier* end = outlier + a.outlier_counts[row]; outlier != end; ++outlier) {
        const Floats value = broadcast(outlier->value);
#pragma GCC unroll 2
        for (int v = 0; v < Vectors; ++v) {
            total[v] = multiply_add(weights_of<Bits, Offsets>(panel, *outlier, lane + v * kLaneCount), value, total[v]);
        }
    }
#pragma GCC unroll 2
    for (int v = 0; v < Vectors; ++v) store_outputs(arguments, row, channel + lane + v * kLaneCount, total[v]);
}

// Not inlined: it needs the registers that multiply_tile takes for itself.
template <int Bits, bool Offsets, int Vectors>
[[gnu::noinline]] void finish_rows(const LinearArguments& arguments, const PanelBlocks& panel, size_t channel,
                                   size_t lane, size_t row, size_t rows, const float (*sums)[Vectors * kLaneCount]) {
    for (const size_t end = row + rows; row < end; ++row, ++sums) {
        Floats total[Vectors];
#pragma GCC unroll 2
        for (int v = 0; v < Vectors; ++v) total[v] = load(*sums + v * kLaneCount);
        finish_row<Bits, Offsets>(arguments, panel, channel, lane, row, total);
    }
}

// A register tile of all groups: Rows rows of activations × Vectors × 16 channels, from lane `lane` of the panel.
// All loops over rows, vectors and k groups are unrolled: the accumulators stay in registers.
template <int Bits, bool Offsets, size_t Block, int Rows, int Vectors, typename PanelCodes>
inline void multiply_tile(const LinearArguments& arguments, const PanelCodes& from, size_t channel, size_t lane,
                          size_t row) {
    const QuantisedRows& a = arguments.quantised;
    const size_t runs = Block == kBlocksOf32 ? a.block / 32 : 1;
    const size_t blocks_of_group = kActivationGroup / a.block;
    const int32_t* starts = a.starts + row;
    const float* code_sums = a.sums + row;
    if constexpr (Rows > 1) fetch_outputs(arguments, channel + lane, Vectors, row, row + Rows);
    Floats sums[Rows][Vectors];
    clear(sums);
    typename PanelCodes::template Cursor<Block == kBlocksOf32> cursor(from);
    size_t block = 0;
    for (size_t g = 0; g < a.groups; ++g) {
        const int8_t* activations = a.codes_of(g, row);
        Floats total[Rows][Vectors];
        clear(total);
        for (const size_t end = std::min(block + blocks_of_group, a.blocks); block < end; ++block) {
            BlockDot<Bits, !Offsets> dots[Rows][Vectors];
#pragma GCC unroll 8
            for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 2
                for (int v = 0; v < Vectors; ++v) dots[r][v].start(starts[r]);
            }
            const uint8_t* line = cursor.codes() + lane * 4;
            for (size_t run = 0; run < runs; ++run) {
#pragma GCC unroll 8
                for (int k = 0; k < kGroups<Block>; k += PanelCodes::parts, line += kGroupBytes) {
                    Codes lines[Vectors];
#pragma GCC unroll 2
                    for (int v = 0; v < Vectors; ++v) lines[v] = PanelCodes::line(line + v * 64);
#pragma GCC unroll 8
                    for (int part = 0; part < PanelCodes::parts; ++part) {
                        Codes codes[Vectors];
#pragma GCC unroll 2
                        for (int v = 0; v < Vectors; ++v) codes[v] = PanelCodes::part(lines[v], part);
#pragma GCC unroll 8
                        for (int r = 0; r < Rows; ++r) {
                            const int32_t four = four_activations(activations + r * kActivationGroup + 4 * part);
#pragma GCC unroll 2
                            for (int v = 0; v < Vectors; ++v) dots[r][v].accumulate(codes[v], four);
                        }
                    }
                    activations += 4 * PanelCodes::parts;
                }
#pragma GCC unroll 8
                for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 2
                    for (int v = 0; v < Vectors; ++v) dots[r][v].widen();
                }
            }
#pragma GCC unroll 2
            for (int v = 0; v < Vectors; ++v) {
                const Floats steps = cursor.steps(lane + v * kLaneCount);
#pragma GCC unroll 8
                for (int r = 0; r < Rows; ++r) {
                    total[r][v] = multiply_add(to_floats(dots[r][v].total), steps, total[r][v]);
                }
                if constexpr (Offsets) {
                    const Floats offsets = cursor.offsets(lane + v * kLaneCount);
#pragma GCC unroll 8
                    for (int r = 0; r < Rows; ++r) {
                        total[r][v] = multiply_add(offsets, broadcast(code_sums[r]), total[r][v]);
                    }
                }
            }
            cursor.next();
            starts += a.row_count;
            code_sums += a.row_count;
        }
        add_scaled(sums, total, a.scales + g * a.row_count + row);
    }
    if constexpr (Rows == 1) {
        finish_row<Bits, Offsets>(arguments, from.panel(), channel, lane, row, sums[0]);
        return;
    }
    alignas(64) float finished[Rows][Vectors * kLaneCount];
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 2
        for (int v = 0; v < Vectors; ++v) store(finished[r] + v * kLaneCount, sums[r][v]);
    }
    finish_rows<Bits, Offsets, Vectors>(arguments, from.panel(), channel, lane, row, Rows, finished);
}

template <int Bits, bool Offsets, size_t Block>
inline void multiply_panel(const LinearArguments& arguments, size_t panel_index, size_t begin, size_t end,
                           uint8_t* scratch) {
    const QuantisedRows& a = arguments.quantised;
    const PanelBlocks panel(*arguments.weights, panel_index, a.block);
    const size_t channel = panel_index * kPanelChannels;
    if (end - begin <= kFewRows) {
        const PackedCodes<Bits> codes(panel);
        for_each_row_tile<std::min(kTileRows, kFewRows)>(begin, end, [&]<int Rows>(size_t row) {
            multiply_tile<Bits, Offsets, Block, Rows, 2>(arguments, codes, channel, 0, row);
        });
        return;
    }
    const SpreadCodes<Bits, Offsets> codes(scratch, panel, a.blocks, a.block);
    for (size_t lane = 0; lane < kPanelChannels; lane += kTileVectors * kLaneCount) {
        for_each_row_tile(begin, end, [&]<int Rows>(size_t row) {
            multiply_tile<Bits, Offsets, Block, Rows, kTileVectors>(arguments, codes, channel, lane, row);
        });
    }
}

template <int Bits, bool Offsets>
inline void linear_int8_rows(const LinearArguments& arguments, size_t panel, size_t begin, size_t end,
                             uint8_t* scratch) {
    switch (arguments.quantised.block) {
        case 16: multiply_panel<Bits, Offsets, 16>(arguments, panel, begin, end, scratch); break;
        case 32: multiply_panel<Bits, Offsets, 32>(arguments, panel, begin, end, scratch); break;
        default: multiply_panel<Bits, Offsets, kBlocksOf32>(arguments, panel, begin, end, scratch);
    }
}

template <int Bits>
inline void linear_int8(const LinearArguments& arguments, size_t panel, size_t row_begin, size_t row_end,
                        uint8_t* scratch) {
    if (arguments.weights->format().has_offsets) {
        linear_int8_rows<Bits, true>(arguments, panel, row_begin, row_end, scratch);
    } else {
        linear_int8_rows<Bits, false>(arguments, panel, row_begin, row_end, scratch);
    }
}

}  // namespace nybble::NYBBLE_ISA
