#include "onnxruntime/matmul_nbits.hpp"

#include <algorithm>
#include <cmath>

#include "base/half.hpp"
#include "base/memory.hpp"
#include "onnxruntime/linear.hpp"

namespace nybble::onnxruntime {
namespace {

using std::to_string;

constexpr float kSmallestNormalHalf = 0x1p-14f;
constexpr float kLargestHalf = 65504.0f;

std::string counts(const char* what, size_t expected, size_t found) {
    return std::string(what) + ": expected " + to_string(expected) + " elements, found " + to_string(found);
}

bool is_float(ONNXTensorElementDataType type) {
    return type == ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT || type == ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16;
}

float read_float(const Tensor& tensor, size_t index) {
    return tensor.type == ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT ? tensor.as<float>()[index]
                                                              : half_to_float(tensor.as<uint16_t>()[index]);
}

bool has_float_zero_points(const MatMulNBits& node) {
    return node.is_given[MatMulNBits::zero_points] && is_float(node.constant(MatMulNBits::zero_points).type);
}

std::optional<std::string> wrong_attributes(const MatMulNBits& node) {
    if (node.bits != 2 && node.bits != 4 && node.bits != 8) return std::string("bits is ") + to_string(node.bits);
    const bool power_of_two = node.block > 0 && (node.block & (node.block - 1)) == 0;
    if (!power_of_two || node.block < 16 || node.block > 256)
        return std::string("block_size is ") + to_string(node.block);
    constexpr int64_t most = int64_t{1} << 31;
    if (node.k < 1 || node.k > most || node.n < 1 || node.n > most) {
        return std::string("K is ") + to_string(node.k) + " and N is " + to_string(node.n);
    }
    if (node.accuracy_level < 0 || node.accuracy_level > 4) {
        return std::string("accuracy_level is ") + to_string(node.accuracy_level);
    }
    return std::nullopt;
}

std::optional<std::string> wrong_inputs(const MatMulNBits& node) {
    constexpr const char* names[] = {"A", "B", "scales", "zero_points", "g_idx", "bias"};
    for (const auto input : {MatMulNBits::codes, MatMulNBits::scales}) {
        if (!node.is_given[input]) return std::string(names[input]) + " is missing";
    }
    if (node.is_given[MatMulNBits::group_index]) return "g_idx is given";
    for (size_t input = MatMulNBits::codes; input < MatMulNBits::inputs; ++input) {
        if (node.is_given[input] && !node.constants[input]) return std::string(names[input]) + " is not constant";
    }
    return std::nullopt;
}

std::optional<std::string> wrong_tensors(const MatMulNBits& node) {
    const auto n = static_cast<size_t>(node.n), bits = static_cast<size_t>(node.bits);
    const auto block = static_cast<size_t>(node.block);
    const size_t blocks = (static_cast<size_t>(node.k) + block - 1) / block;
    const Tensor& codes = node.constant(MatMulNBits::codes);
    const Tensor& scales = node.constant(MatMulNBits::scales);
    if (codes.type != ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8) return std::string("B is of type ") + to_string(codes.type);
    if (!is_float(scales.type)) return std::string("scales are of type ") + to_string(scales.type);
    const size_t code_bytes = checked_multiply(n, blocks * block * bits / 8);
    if (codes.elements() != code_bytes) return counts("B", code_bytes, codes.elements());
    if (scales.elements() != n * blocks) return counts("scales", n * blocks, scales.elements());
    if (node.is_given[MatMulNBits::zero_points]) {
        const Tensor& zero_points = node.constant(MatMulNBits::zero_points);
        const bool packed = zero_points.type == ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8;
        if (!packed && zero_points.type != scales.type) {
            return std::string("zero_points are of type ") + to_string(zero_points.type);
        }
        const size_t expected = n * (packed ? (blocks * bits + 7) / 8 : blocks);
        if (zero_points.elements() != expected) return counts("zero_points", expected, zero_points.elements());
    }
    if (node.is_given[MatMulNBits::bias]) {
        const Tensor& bias = node.constant(MatMulNBits::bias);
        if (bias.type != scales.type) return std::string("bias is of type ") + to_string(bias.type);
        if (bias.elements() != n) return counts("bias", n, bias.elements());
    }
    return std::nullopt;
}

// Scales and offsets are kept in fp16. Below its normal numbers it is coarser, which matters unless a row has larger
// scales beside.
std::optional<std::string> unfit_scales(const MatMulNBits& node) {
    const Tensor& scales = node.constant(MatMulNBits::scales);
    const auto rows = static_cast<size_t>(node.n);
    const size_t blocks = scales.elements() / rows;
    const float largest_code = static_cast<float>(1 << node.bits);
    for (size_t row = 0; row < rows; ++row) {
        float largest = 0;
        for (size_t i = row * blocks; i < (row + 1) * blocks; ++i) {
            const float scale = std::fabs(read_float(scales, i));
            const float zero_point = has_float_zero_points(node)
                                         ? std::fabs(read_float(node.constant(MatMulNBits::zero_points), i))
                                     : node.is_given[MatMulNBits::zero_points] ? largest_code
                                                                               : 1.0f;
            if (!(scale <= kLargestHalf) || !(scale * zero_point <= kLargestHalf)) {
                return std::string("a scale of row ") + to_string(row) + " is not finite in fp16";
            }
            largest = std::max(largest, scale);
        }
        if (largest != 0 && largest < kSmallestNormalHalf) {
            return std::string("the scales of row ") + to_string(row) + " are too small for fp16";
        }
    }
    return std::nullopt;
}

}  // namespace

std::string storage_name_of(const MatMulNBits& node) {
    const bool halves = node.constant(MatMulNBits::scales).type == ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16;
    const char* zero_points = has_float_zero_points(node) ? "-ZF" : node.is_given[MatMulNBits::zero_points] ? "-Z" : "";
    return std::string("W") + to_string(node.bits) + "B" + to_string(node.block) + (halves ? "-F16" : "-F32") +
           zero_points;
}

StorageType storage_of(const MatMulNBits& node) { return find_storage_type(storage_name_of(node)).value(); }

std::optional<std::string> refusal(const MatMulNBits& node) {
    for (const auto reason : {wrong_attributes, wrong_inputs, wrong_tensors, unfit_scales}) {
        if (auto found = reason(node)) return found;
    }
    if (Linear::find_kernel(node) == nullptr) return std::string("there is no kernel for bits ") + to_string(node.bits);
    return std::nullopt;
}

}  // namespace nybble::onnxruntime
