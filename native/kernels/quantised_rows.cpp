#include "kernels/quantised_rows.hpp"

#include <type_traits>

#include "base/memory.hpp"

namespace nybble {
namespace {

constexpr size_t kReadPastEnd = kCacheLine;

size_t block_count(size_t width, size_t block) { return (width + block - 1) / block; }

// An odd number of lines: the rows of a register tile must not all fall into the same set of the L1 cache.
size_t code_stride(size_t width, size_t block) {
    return round_up(block_count(width, block) * block, kCacheLine) | kCacheLine;
}

}  // namespace

size_t quantised_rows_bytes(size_t width, size_t block, size_t rows) {
    const size_t per_block = 2 * sizeof(float) + sizeof(int32_t) + kBlockOutliers * sizeof(Outlier);
    const size_t row_bytes = code_stride(width, block) + block_count(width, block) * per_block + sizeof(uint32_t);
    return round_up(rows * row_bytes, kCacheLine) + kReadPastEnd;
}

QuantisedRows lay_out_quantised_rows(size_t width, size_t block, size_t rows, uint8_t* memory) {
    QuantisedRows to{};
    to.code_stride = code_stride(width, block);
    to.row_count = rows;
    to.blocks = block_count(width, block);
    to.block = block;
    const auto take = [&memory](auto*& pointer, size_t count) {
        pointer = reinterpret_cast<std::remove_reference_t<decltype(pointer)>>(memory);
        memory += count * sizeof(*pointer);
    };
    take(to.codes, rows * to.code_stride);
    take(to.scales, rows * to.blocks);
    take(to.scaled_sums, rows * to.blocks);
    take(to.negative_sums, rows * to.blocks);
    take(to.outliers, rows * to.blocks * kBlockOutliers);
    take(to.outlier_counts, rows);
    return to;
}

}  // namespace nybble
