// A node `MatMulNBits` of domain com.microsoft as a model states it: output = A · Wᵀ (+ bias), with
// W[n][k] = scale · (code − zero point) in blocks along K. The operator is specified in ONNX Runtime's
// docs/ContribOperators.md.
#pragma once

#include <optional>
#include <string>

#include "onnxruntime/runtime.hpp"
#include "packing/storage_type.hpp"

namespace nybble::onnxruntime {

struct MatMulNBits {
    // Places of the inputs; those from zero_points on are optional.
    enum Input : size_t { activations, codes, scales, zero_points, group_index, bias, inputs };

    std::string name;
    int64_t k = 0, n = 0, bits = 4, block = 0, accuracy_level = 0;
    std::optional<Tensor> constants[inputs];
    bool is_given[inputs] = {};

    const Tensor& constant(Input input) const { return *constants[input]; }
    // Activations are rounded to int8 unless the model asks for a float type: accuracy levels 1 to 3.
    bool rounds_activations() const { return accuracy_level == 0 || accuracy_level == 4; }
};

// Why nybble does not compute this node, or nothing.
std::optional<std::string> refusal(const MatMulNBits& node);

// How the weights of a node are stored; only of one that is not refused.
std::string storage_name_of(const MatMulNBits& node);
StorageType storage_of(const MatMulNBits& node);

}  // namespace nybble::onnxruntime
