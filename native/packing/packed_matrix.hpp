// The packed form of a linear's weights: what every kernel reads.
//
// A panel holds 32 output channels and the whole of K; a thread streams panels one after another. Within a panel, per
// block of K: the codes, then 32 fp16 scales, then (with offsets) 32 fp16 offsets, so that there is one stream to read.
// Scales and offsets may be fp32 instead ("wide"), for linears on fp32 activations.
//   weight = scale · (code − 2^(bits−1))        without offsets
//   weight = scale · code + offset              with offsets
// Codes lie in lines as the layout says. Float weights (fp32, fp16, bf16) have no blocks: per k, 32 channels. K is
// padded to whole blocks and N to whole panels with zeros.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/memory.hpp"
#include "packing/layout.hpp"

namespace nybble {

enum class WeightType { w2, w4, w8, f16, bf16, f32 };

const char* name_of(WeightType type);

// Bits of a code, or of a float.
size_t bits_of(WeightType type);

inline bool is_quantised(WeightType type) { return bits_of(type) <= 8; }

struct PackedFormat {
    WeightType type;
    size_t block;  // elements along K that share a scale; 1 for floats
    bool has_offsets;
    bool wide_scales = false;
    Layout layout = Layout::panel32;

    // Whether the layout knows such weights: blocks are whole lines.
    bool is_possible() const;
    // What a stored code differs from the code in.
    int flipped_bits() const;
    // Bytes of a scale or an offset.
    size_t scale_bytes() const { return wide_scales ? sizeof(float) : sizeof(uint16_t); }
    // Bytes of one block of a panel (one k for floats).
    size_t block_bytes() const;
    size_t code_bytes() const;
    size_t panel_bytes(size_t k) const;
    // Bytes of a whole (n, k) matrix; throws std::bad_alloc when they overflow.
    size_t matrix_bytes(size_t n, size_t k) const;
    friend bool operator==(const PackedFormat&, const PackedFormat&) = default;
};

class PackedMatrix {
  public:
    // `storage` keeps alive the memory that `data` points into.
    PackedMatrix(PackedFormat format, size_t n, size_t k, uint8_t* data, std::shared_ptr<const Memory> storage);

    const PackedFormat& format() const { return format_; }
    size_t n() const { return n_; }
    size_t k() const { return k_; }
    size_t panels() const { return (n_ + kPanelChannels - 1) / kPanelChannels; }
    size_t blocks() const { return (k_ + format_.block - 1) / format_.block; }
    size_t block_bytes() const { return block_bytes_; }
    size_t panel_bytes() const { return panel_bytes_; }
    size_t bytes() const { return panels() * panel_bytes_; }
    const uint8_t* panel(size_t index) const { return data_ + index * panel_bytes_; }
    uint8_t* panel(size_t index) { return data_ + index * panel_bytes_; }

    // Decode output channel `channel` to k() floats: an embedding row.
    void decode_row(size_t channel, float* out) const;

  private:
    PackedFormat format_;
    size_t n_, k_;
    size_t block_bytes_, panel_bytes_;
    uint8_t* data_;
    std::shared_ptr<const Memory> storage_;
};

// Where the code of (channel within the panel, k within the block) lies: byte within the block, and how far up its
// bits.
struct CodePlace {
    size_t byte;
    int shift;
};
CodePlace place_of_code(const PackedFormat& format, size_t channel, size_t k_in_block);

}  // namespace nybble
