// Linears on int8 activations, of weights in panel32k8: those of linear_int8.hpp, which take the 8 k of a channel that
// lie together in two. Made for machines with matrix instructions, where cores without them share the weights.
#pragma once

#include <type_traits>

#include "kernels/generic/linear_int8.hpp"

namespace nybble::NYBBLE_ISA {

inline constexpr size_t kLineDepth = 8;
inline constexpr size_t kLineBytes = kPanelChannels * kLineDepth;

// A panel of packed codes whose lines are 32 channels × 8 bytes.
template <int Bits, template <int> typename RowsOf>
class PackedLines : public PackedCodes<Bits> {
  public:
    using PackedCodes<Bits>::PackedCodes;
    static constexpr bool takes_one_row = std::is_same_v<RowsOf<1>, RowsApart<1>>;
    static constexpr int parts = 2 * PackedCodes<Bits>::parts;
    static constexpr size_t lane_bytes = kLineDepth;
    using Line = CodePair;
    template <int Rows>
    using Activations = RowsOf<Rows>;

    static CodePair line(const uint8_t* from) { return load_code_pair(from); }
    static Codes part(CodePair line, int part) {
        return part_of<Bits>(part % 2 == 0 ? line.first : line.second, part / 2);
    }
    // The weights that meet an outlier: of 16 channels from lane `lane` of the panel.
    template <bool Offsets>
    static Floats weights_of(const PanelBlocks& panel, const Outlier& outlier, size_t lane) {
        const size_t run = outlier.place / lane_bytes;
        const uint8_t* line = panel.codes(outlier.block) + (run * Bits / 8 * kPanelChannels + lane) * lane_bytes;
        const auto first_bit = static_cast<int>(outlier.place % lane_bytes * 8 + run * Bits % 8);
        return weights_from<Bits, Offsets>(bits_of_line<Bits>(line, first_bit), panel.scales(outlier.block) + lane);
    }
};

// The outliers of a row times their weights, for 16 channels from lane `lane` of the panel; added to `total`.
template <int Bits, bool Offsets>
inline Floats add_line_outliers(const QuantisedRows& a, const PanelBlocks& panel, size_t lane, size_t row,
                                Floats total) {
    using Packed = PackedLines<Bits, RowsInTiles>;
    const Outlier* outlier = a.outliers_of(row);
    for (const Outlier* end = outlier + a.outlier_counts[row]; outlier != end; ++outlier) {
        const Floats weights = Packed::template weights_of<Offsets>(panel, *outlier, lane);
        total = multiply_add(weights, broadcast(outlier->value), total);
    }
    return total;
}

// A single row lies as it comes.
template <int Bits>
inline void linear_int8_k8(const LinearArguments& arguments, size_t panel, size_t row_begin, size_t row_end,
                           uint8_t* scratch) {
    if (arguments.quantised.tile_rows == 1) {
        linear_int8<PackedLines<Bits, RowsApart>>(arguments, panel, row_begin, row_end, scratch);
    } else {
        linear_int8<PackedLines<Bits, RowsInTiles>>(arguments, panel, row_begin, row_end, scratch);
    }
}

}  // namespace nybble::NYBBLE_ISA
