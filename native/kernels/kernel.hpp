// What kernels are given and what they do. Kernels allocate nothing and own no threads: the caller passes memory and a
// range of work.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/kv_block.hpp"
#include "packing/packed_matrix.hpp"

namespace nybble {

// Features of a row of activations that share a scale.
inline constexpr size_t kActivationGroup = 128;
inline constexpr float kOutlierRatio = 5.0f;
inline constexpr size_t kGroupOutliers = 4;

// Dot products take weight codes from the top of their byte (a 4-bit code is a multiple of 16), so that for any width
//   weight = step · (code − kZeroPoint)      without offsets,    step = scale · 2^(bits − 8)
//   weight = step · code + offset            with offsets
// and that of a group is exact as fp32.
inline constexpr int32_t kZeroPoint = 128;
static_assert(255 * 127 * kActivationGroup < 1 << 24);

struct Outlier {
    uint32_t block;
    uint32_t place;  // within the block
    float value;
};

// Activations rounded to int8, a scale per row and group of kActivationGroup features: code = round(x · 127/max|x|).
// A value over kOutlierRatio times its group's root mean square would cost its neighbours their precision: up to
// kGroupOutliers such outliers are taken out of their group one by one, largest first, and kept in fp32.
// In SmolLM2-135M that makes the KL divergence from fp32 activations ten times smaller, and a third of what it is with
// a scale for every 32 features and no outliers (benchmarks/activation_rounding.py). Codes lie as
// [group][row][feature], so that a tile reads one stretch of memory, or, for layouts with tiles of several rows, as
// [group][row / rows][feature / depth][row % rows][feature % depth]. They are zero for outliers and from the width to
// the end of the last group, and anything for rows that only fill up a tile. Blocks are those of the weights, or groups
// where those are larger.
struct QuantisedRows {
    int8_t* codes;
    // [group or block][row]: a tile reads the neighbours of one block.
    float* scales;             // of groups
    int32_t* starts;           // of blocks: −kZeroPoint · Σ codes, from where dot products without offsets count
    float* sums;               // of blocks: Σ codes, what an offset multiplies
    Outlier* outliers;         // [row][groups · kGroupOutliers]: those of a row, in order of features
    uint32_t* outlier_counts;  // [row]
    size_t row_count;
    size_t tile_rows;   // of the layout; 1 where there is one row
    size_t tiled_rows;  // row_count filled up to whole tiles
    size_t groups;
    size_t blocks;
    size_t block;
    Layout layout;

    // Where codes lie row by row.
    int8_t* codes_of(size_t group, size_t row) const { return codes + (group * row_count + row) * kActivationGroup; }
    // Where they lie in tiles of several rows: those of the tile that begins with `row`.
    int8_t* tile_of(size_t group, size_t row) const { return codes + (group * tiled_rows + row) * kActivationGroup; }
    Outlier* outliers_of(size_t row) const { return outliers + row * groups * kGroupOutliers; }
};

// Rows of floats, `stride` floats apart.
struct FloatRows {
    float* data;
    size_t stride;
};

// Outliers of one feature in successive rows.
struct OutlierColumn {
    struct Entry {
        uint32_t row;  // counted from the first
        float value;
    };
    uint32_t block;
    uint32_t place;  // within the block
    const Entry* begin;
    const Entry* end;
};

// In order of features, as a row's own outliers are: sums that take them column by column have the same bits.
struct OutlierColumns {
    const OutlierColumn* columns;
    size_t count;
};

// output[m][n] = Σ_k activation[m][k] · weight[n][k] (+ bias[n]) (+ residual[m][n])
struct LinearArguments {
    const PackedMatrix* weights;
    QuantisedRows quantised;  // read by kernels with int8 activations
    FloatRows floats;         // read by kernels with fp32 activations
    FloatRows output;
    const float* bias;                         // null: none
    FloatRows residual;                        // data null: none; may be the output itself
    const OutlierColumns* outliers = nullptr;  // of the rows of a call; null: not sorted
};

// Rows of a call of a kernel, at most: their sums, and their activations in part, stay in near caches.
inline constexpr size_t kMostRows = 96;

// Range of rows × one panel. `scratch` holds LinearKernel::scratch_bytes.
using LinearFunction = void (*)(const LinearArguments&, size_t panel, size_t row_begin, size_t row_end,
                                uint8_t* scratch);

enum class Activations { int8, f32 };

const char* name_of(Activations activations);

struct LinearKernel {
    LinearFunction run;
    size_t (*scratch_bytes)(const PackedMatrix&);
};

struct NormArguments {
    const float* input;
    const float* weight;
    float* output;
    size_t width;  // features
    size_t group;  // features normalised together
    float epsilon;
};

// Half-split RoPE of one head, with the cosine and sine of each of the head_dim/2 angles.
struct RotateArguments {
    const float* input;
    float* output;
    const float* cosines;
    const float* sines;
    size_t head_dim;
};

// One position's key and value of one head, rounded into its place in a KV block.
struct AppendArguments {
    const float* key;
    const float* value;
    uint8_t* to;   // the block
    size_t place;  // of the position within the block
    KVBlock block;
};

// Positions are attended to in chunks of so many, each with a softmax of its own; these are merged in order. Chunks
// begin at multiples of it, so that the result does not depend on who computes what.
inline constexpr size_t kChunkPositions = 4 * kBlockPositions;

inline size_t chunks_of(size_t positions) { return (positions + kChunkPositions - 1) / kChunkPositions; }

// Attention of successive query positions and the query heads of one KV head, against that head's KV cache.
struct AttentionArguments {
    const uint8_t* cache;  // first block of this layer and KV head
    size_t block_stride;   // bytes from one block to the next
    KVBlock block;
    size_t group;           // query heads that share the KV head
    size_t first_position;  // position of the first query row
    size_t query_rows;      // successive positions
    const float* query;     // [position][head in group], see strides
    size_t query_stride;    // floats from one position to the next
    float* output;
    size_t output_stride;
    float scale;

    size_t rows() const { return query_rows * group; }
    size_t chunks() const { return chunks_of(first_position + query_rows); }
};

// The functions that exist once for each instruction set.
struct RowKernels {
    // x[width] to int8: row `row` of `to`.
    void (*quantise)(const float* x, size_t width, const QuantisedRows& to, size_t row);
    void (*rms_norm)(const NormArguments&);
    void (*rotate)(const RotateArguments&);
    void (*append)(const AppendArguments&);
    void (*swiglu)(const float* gate, const float* up, float* output, size_t width);
    // All chunks, one after another, and the output.
    void (*attention)(const AttentionArguments&, uint8_t* scratch);
    // The same in parts, with the same bits: a state for each chunk, then the output from all states in order.
    void (*attend_to_chunk)(const AttentionArguments&, size_t chunk, float* state, uint8_t* scratch);
    void (*merge_chunks)(const AttentionArguments&, float* states);
    size_t (*attention_scratch_bytes)(size_t padded_head_dim, size_t rows);
    size_t (*attention_state_floats)(size_t padded_head_dim, size_t rows);
    // Where the highest of `count` logits (at least one) is, the first of equals; `count` if any is NaN or infinite.
    size_t (*highest_logit)(const float* logits, size_t count);
};

using CopyFunction = void (*)(const uint8_t* from, uint8_t* to, size_t bytes);

}  // namespace nybble
