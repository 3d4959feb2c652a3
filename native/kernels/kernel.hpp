// What kernels are given and what they do. Kernels allocate nothing and own no threads: the caller passes memory and a
// range of work.
#pragma once

#include <cstddef>
#include <cstdint>

#include "packing/packed_matrix.hpp"

namespace nybble {

struct Outlier {
    uint32_t block;
    uint32_t place;  // within the block
    float value;
};

// Activations rounded to int8, a scale per row and block: code = round(x · 127/max|x|).
// A value over kOutlierRatio times its block's root mean square would cost its neighbours their precision: up to
// kBlockOutliers such outliers are taken out of their block one by one, largest first, and kept in fp32.
// In SmolLM2-135M that makes the KL divergence from fp32 activations four times smaller
// (benchmarks/activation_rounding.py).
// Codes are rows of `code_stride` bytes, zero for outliers and from the width to the next multiple of the block.
struct QuantisedRows {
    int8_t* codes;
    // [block][row]: a tile reads the neighbours of one block.
    float* scales;
    float* scaled_sums;        // scale · Σ codes + Σ outliers, what an offset multiplies
    int32_t* negative_sums;    // −Σ codes, what a symmetric zero point multiplies
    Outlier* outliers;         // [row][blocks · kBlockOutliers]: those of a row, in order
    uint32_t* outlier_counts;  // [row]
    size_t code_stride;
    size_t row_count;
    size_t blocks;
    size_t block;
};

inline constexpr float kOutlierRatio = 4.0f;
inline constexpr size_t kBlockOutliers = 2;

// Rows of floats, `stride` floats apart.
struct FloatRows {
    float* data;
    size_t stride;
};

// output[m][n] = Σ_k activation[m][k] · weight[n][k] (+ bias[n]) (+ residual[m][n])
struct LinearArguments {
    const PackedMatrix* weights;
    QuantisedRows quantised;  // read by kernels with int8 activations
    FloatRows floats;         // read by kernels with fp32 activations
    FloatRows output;
    const float* bias;   // null: none
    FloatRows residual;  // data null: none; may be the output itself
};

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

// KV blocks hold 32 positions of one KV head: keys as [feature][position], values as [position][feature], both fp16,
// features padded to a multiple of 16.
inline constexpr size_t kBlockPositions = 32;

// One position's key and value of one head, rounded to fp16 into its place in a KV block.
struct AppendArguments {
    const float* key;
    const float* value;
    uint16_t* keys;    // [feature], kBlockPositions apart
    uint16_t* values;  // [feature]
    size_t head_dim;
};

struct AttentionArguments {
    const uint16_t* cache;  // first block of this layer and KV head
    size_t block_stride;    // uint16s from one block of 32 positions to the next
    size_t values_offset;   // uint16s from a block's keys to its values
    size_t head_dim;
    size_t padded_head_dim;
    size_t group;           // query heads that share the KV head
    size_t first_position;  // position of the first query row
    size_t query_rows;      // successive positions
    const float* query;     // [position][head in group], see strides
    size_t query_stride;    // floats from one position to the next
    float* output;
    size_t output_stride;
    float scale;
};

// The functions that exist once for each instruction set.
struct RowKernels {
    // x[width] to int8: row `row` of `to`.
    void (*quantise)(const float* x, size_t width, const QuantisedRows& to, size_t row);
    void (*rms_norm)(const NormArguments&);
    void (*rotate)(const RotateArguments&);
    void (*append)(const AppendArguments&);
    void (*swiglu)(const float* gate, const float* up, float* output, size_t width);
    void (*attention)(const AttentionArguments&, uint8_t* scratch);
    size_t (*attention_scratch_bytes)(size_t padded_head_dim, size_t rows);
    // Where the highest of `count` logits (at least one) is, the first of equals; `count` if any is NaN or infinite.
    size_t (*highest_logit)(const float* logits, size_t count);
};

}  // namespace nybble
