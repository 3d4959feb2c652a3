// A node MatMulNBits made ready to run: packed weights, and the kernel for them on this CPU.
#pragma once

#include <memory>
#include <vector>

#include "kernels/kernel.hpp"
#include "onnxruntime/matmul_nbits.hpp"
#include "onnxruntime/session_threads.hpp"

namespace nybble::onnxruntime {

class Linear {
  public:
    // Throws std::runtime_error naming the node and the reason when it is one that nybble refuses.
    explicit Linear(const MatMulNBits& node);

    // Input 0 of `context` (..., K) times the weights is output 0 (..., N), both of the type of the scales.
    void run(const Runtime& runtime, OrtKernelContext* context) const;

    // Null when this build has none for that many bits.
    static const LinearKernel* find_kernel(const MatMulNBits& node);

  private:
    void multiply(const SessionThreads& threads, const Tensor& input, void* output, size_t rows) const;

    std::string name_;
    std::shared_ptr<const PackedMatrix> weights_;
    const LinearKernel& kernel_;
    bool rounds_activations_;
    ONNXTensorElementDataType type_;
    std::vector<float> bias_;
};

}  // namespace nybble::onnxruntime
