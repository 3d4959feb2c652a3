// The ops of nybble.graph.ops that survive lowering, over the slots of a program.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "program/program.hpp"

namespace nybble {

std::unique_ptr<Op> make_embed(std::string label, std::shared_ptr<const PackedMatrix> table, View output);
std::unique_ptr<Op> make_rms_norm(std::string label, View input, std::vector<float> weight, View output, float epsilon);
// `kernels` of each thread: all read these weights and give the same bits.
std::unique_ptr<Op> make_linear(std::string label, View input, std::shared_ptr<const PackedMatrix> weights,
                                std::vector<const LinearKernel*> kernels, View output, std::vector<float> bias,
                                std::optional<View> residual);
struct HeadNorms {
    std::vector<float> query, key;  // empty: none
    float epsilon;
};
std::unique_ptr<Op> make_rotate_append(std::string label, size_t layer, View query, View key, View value, View output,
                                       size_t head_dim, HeadNorms norms);
std::unique_ptr<Op> make_attention(std::string label, size_t layer, View query, View output, size_t heads,
                                   size_t kv_heads, size_t head_dim, float scale);
std::unique_ptr<Op> make_swiglu(std::string label, View gate, View up, View output);
std::unique_ptr<Op> make_add(std::string label, View left, View right, View output);
std::unique_ptr<Op> make_select_outputs(std::string label, View input, View output);
std::unique_ptr<Op> make_quantise(std::string label, View input, View output);

}  // namespace nybble
