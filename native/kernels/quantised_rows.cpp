#include "kernels/quantised_rows.hpp"

#include <algorithm>
#include <type_traits>

#include "base/memory.hpp"

namespace nybble {
namespace {

constexpr size_t kReadPastEnd = 4 * kCacheLine;  // tiles read the operands behind the last ones

size_t count_of(size_t width, size_t size) { return (width + size - 1) / size; }

size_t tile_rows(size_t rows, Layout layout) { return rows == 1 ? 1 : traits_of(layout).rows; }

size_t tiled(size_t rows, Layout layout) { return round_up(rows, tile_rows(rows, layout)); }

size_t block_of(size_t weight_block) { return std::min(weight_block, kActivationGroup); }

}  // namespace

size_t quantised_rows_bytes(size_t width, size_t weight_block, Layout layout, size_t rows) {
    const size_t block = block_of(weight_block);
    const size_t groups = count_of(width, kActivationGroup);
    const size_t of_codes = tiled(rows, layout) * groups * kActivationGroup;
    const size_t of_group = sizeof(float) + kGroupOutliers * sizeof(Outlier);
    const size_t of_blocks = count_of(width, block) * (sizeof(int32_t) + sizeof(float));
    const size_t row_bytes = groups * of_group + of_blocks + sizeof(uint32_t);
    return round_up(of_codes + rows * row_bytes, kCacheLine) + kReadPastEnd;
}

QuantisedRows lay_out_quantised_rows(size_t width, size_t weight_block, Layout layout, size_t rows, uint8_t* memory) {
    QuantisedRows to{};
    to.block = block_of(weight_block);
    to.layout = layout;
    to.row_count = rows;
    to.tile_rows = tile_rows(rows, layout);
    to.tiled_rows = tiled(rows, layout);
    to.groups = count_of(width, kActivationGroup);
    to.blocks = count_of(width, to.block);
    const auto take = [&memory](auto*& pointer, size_t count) {
        pointer = reinterpret_cast<std::remove_reference_t<decltype(pointer)>>(memory);
        memory += count * sizeof(*pointer);
    };
    take(to.codes, to.tiled_rows * to.groups * kActivationGroup);
    take(to.scales, rows * to.groups);
    take(to.starts, rows * to.blocks);
    take(to.sums, rows * to.blocks);
    take(to.outliers, rows * to.groups * kGroupOutliers);
    take(to.outlier_counts, rows);
    return to;
}

}  // namespace nybble
