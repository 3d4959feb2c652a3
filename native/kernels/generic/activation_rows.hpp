// The int8 activations that a register tile of Rows rows multiplies: 4 k of a row at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/kernel.hpp"

namespace nybble::NYBBLE_ISA {

inline int32_t four_activations(const int8_t* codes) {
    int32_t value;
    std::memcpy(&value, __builtin_assume_aligned(codes, sizeof value), sizeof value);
    return value;
}

// Where the features of a row are neighbours.
template <int Rows>
class RowsApart {
  public:
    RowsApart(const QuantisedRows& a, size_t group, size_t row)
        : at_(a.codes_of(group, row)), to_next_group_((a.row_count - 1) * kActivationGroup) {}
    // Those of row r of the tile, k features on from here.
    int32_t four(int r, int k) const { return four_activations(at_ + r * kActivationGroup + k); }
    void advance(int k) { at_ += k; }
    // After all features of a group.
    void next_group() { at_ += to_next_group_; }

  private:
    const int8_t* at_;
    size_t to_next_group_;
};

// Where rows alternate, as they do for panel32k8: not every tile lies within one of the layout's.
template <int Rows>
class RowsInTiles {
  public:
    RowsInTiles(const QuantisedRows& a, size_t group, size_t row)
        : to_next_group_((a.tiled_rows - kTraits.rows) * kActivationGroup) {
        for (int r = 0; r < Rows; ++r) {
            const size_t in_tile = (row + r) % kTraits.rows;
            at_[r] = a.tile_of(group, row + r - in_tile) + in_tile * kTraits.depth;
        }
    }
    int32_t four(int r, int k) const {
        constexpr int depth = kTraits.depth, rows = kTraits.rows;
        return four_activations(at_[r] + k / depth * depth * rows + k % depth);
    }
    void advance(int k) {
#pragma GCC unroll 8
        for (int r = 0; r < Rows; ++r) at_[r] += static_cast<size_t>(k) * kTraits.rows;
    }
    void next_group() {
#pragma GCC unroll 8
        for (int r = 0; r < Rows; ++r) at_[r] += to_next_group_;
    }

  private:
    static constexpr const LayoutTraits& kTraits = traits_of(Layout::panel32k8);
    const int8_t* at_[Rows];
    size_t to_next_group_;
};

}  // namespace nybble::NYBBLE_ISA
