// Where the blocks of a panel lie.
#pragma once

#include <cstddef>
#include <cstdint>

#include "packing/packed_matrix.hpp"

namespace nybble::NYBBLE_ISA {

// As activations divide them: a block of weights may be two of theirs.
class PanelBlocks {
  public:
    PanelBlocks(const PackedMatrix& weights, size_t panel, size_t block)
        : panel_(weights.panel(panel)),
          block_bytes_(weights.block_bytes()),
          code_bytes_(weights.format().code_bytes()),
          halved_(weights.format().block > block) {}
    const uint8_t* codes(size_t block) const {
        return panel_ + (block >> halved_) * block_bytes_ + (block & halved_) * (code_bytes_ / 2);
    }
    const uint16_t* scales(size_t block) const {
        return reinterpret_cast<const uint16_t*>(panel_ + (block >> halved_) * block_bytes_ + code_bytes_);
    }
    size_t stride() const { return block_bytes_; }

    // Goes through the blocks in order, and multiplies nothing on the way to an address: those of blocks to come are
    // known early. Blocks of weights are those of activations unless `MayHalve`.
    template <bool MayHalve>
    class Cursor {
      public:
        explicit Cursor(const PanelBlocks& panel)
            : codes_(panel.codes(0)),
              scales_(reinterpret_cast<const uint8_t*>(panel.scales(0))),
              block_bytes_(panel.block_bytes_),
              half_(panel.halved_ ? panel.code_bytes_ / 2 : 0) {}
        const uint8_t* codes() const { return codes_; }
        const uint16_t* scales() const { return reinterpret_cast<const uint16_t*>(scales_); }
        void next() {
            if (MayHalve && half_ != 0) {
                is_second_ = !is_second_;
                codes_ += is_second_ ? half_ : block_bytes_ - half_;
                scales_ += is_second_ ? 0 : block_bytes_;
            } else {
                codes_ += block_bytes_;
                scales_ += block_bytes_;
            }
        }

      private:
        const uint8_t *codes_, *scales_;
        size_t block_bytes_, half_;
        bool is_second_ = false;
    };

  private:
    const uint8_t* panel_;
    size_t block_bytes_, code_bytes_;
    size_t halved_;  // 1 or 0
};

}  // namespace nybble::NYBBLE_ISA
