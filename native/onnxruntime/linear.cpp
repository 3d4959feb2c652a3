#include "onnxruntime/linear.hpp"

#include <stdexcept>

#include "base/half.hpp"
#include "base/memory.hpp"
#include "kernels/linear_tasks.hpp"
#include "kernels/quantised_rows.hpp"
#include "kernels/registry.hpp"
#include "onnxruntime/weight_store.hpp"

namespace nybble::onnxruntime {
namespace {

const MatMulNBits& accepted(const MatMulNBits& node) {
    if (const auto reason = refusal(node)) {
        throw std::runtime_error("MatMulNBits node '" + node.name + "': " + *reason +
                                 "; nybble's kernels do not take it: leave this node to ONNX Runtime");
    }
    return node;
}

// Memory that a thread keeps for its next call. It only grows.
class Workspace {
  public:
    uint8_t* reserve(size_t bytes) {
        if (bytes > memory_.bytes()) memory_ = Memory(bytes, Pages::huge);
        return memory_.data();
    }

  private:
    Memory memory_;
};

thread_local Workspace kernel_scratch, quantised_rows, wide_input, wide_output;

void widen(const uint16_t* halves, float* floats, size_t count) {
    for (size_t i = 0; i < count; ++i) floats[i] = half_to_float(halves[i]);
}

void narrow(const float* floats, uint16_t* halves, size_t count) {
    for (size_t i = 0; i < count; ++i) halves[i] = float_to_half(floats[i]);
}

}  // namespace

const LinearKernel* Linear::find_kernel(const MatMulNBits& node) {
    const PackedFormat format = storage_of(node).packed;
    const Activations activations = node.rounds_activations() ? Activations::int8 : Activations::f32;
    for (const Isa isa : available_isas()) {
        if (const LinearEntry* entry = find_linear_kernel(format, activations, isa)) return entry->kernel;
    }
    return nullptr;
}

Linear::Linear(const MatMulNBits& node)
    : name_(node.name),
      weights_(packed_weights(accepted(node))),
      kernel_(*find_kernel(node)),
      rounds_activations_(node.rounds_activations()),
      type_(node.constant(MatMulNBits::scales).type) {
    if (!node.is_given[MatMulNBits::bias]) return;
    const Tensor& bias = node.constant(MatMulNBits::bias);
    bias_.resize(weights_->n());
    if (type_ == ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT) {
        std::copy_n(bias.as<float>(), bias_.size(), bias_.data());
    } else {
        widen(bias.as<uint16_t>(), bias_.data(), bias_.size());
    }
}

void Linear::run(const Runtime& runtime, OrtKernelContext* context) const {
    const OrtValue* value = nullptr;
    runtime.check(runtime.KernelContext_GetInput(context, 0, &value));
    const Tensor input = tensor_of(runtime, value);
    if (input.type != type_) {
        throw std::runtime_error("MatMulNBits node '" + name_ + "': A is not of the type of its scales");
    }
    if (input.shape.empty() || input.shape.back() != static_cast<int64_t>(weights_->k())) {
        throw std::runtime_error("MatMulNBits node '" + name_ +
                                 "': the last dimension of A must be K = " + std::to_string(weights_->k()));
    }
    std::vector<int64_t> shape = input.shape;
    shape.back() = static_cast<int64_t>(weights_->n());
    OrtValue* output = nullptr;
    runtime.check(runtime.KernelContext_GetOutput(context, 0, shape.data(), shape.size(), &output));
    void* data = nullptr;
    runtime.check(runtime.GetTensorMutableData(output, &data));
    const size_t rows = input.elements() / weights_->k();
    if (rows != 0) multiply(SessionThreads(runtime, context), input, data, rows);
}

void Linear::multiply(const SessionThreads& threads, const Tensor& input, void* output, size_t rows) const {
    const size_t k = weights_->k(), n = weights_->n(), block = weights_->format().block;
    const Layout layout = weights_->format().layout;
    const bool halves = type_ == ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16;
    // Kernels with float activations only read them.
    FloatRows from{const_cast<float*>(input.as<float>()), k}, to{static_cast<float*>(output), n};
    if (halves) {
        from.data = reinterpret_cast<float*>(wide_input.reserve(rows * k * sizeof(float)));
        to.data = reinterpret_cast<float*>(wide_output.reserve(rows * n * sizeof(float)));
    }
    LinearArguments arguments{weights_.get(), {}, from, to, bias_.empty() ? nullptr : bias_.data(), {}};
    if (rounds_activations_) {
        uint8_t* memory = quantised_rows.reserve(quantised_rows_bytes(k, block, layout, rows));
        arguments.quantised = lay_out_quantised_rows(k, block, layout, rows, memory);
    }
    static const RowKernels& row_functions = row_kernels(available_isas().front());
    const auto prepare = [&](size_t row) {
        if (halves) widen(input.as<uint16_t>() + row * k, from.data + row * k, k);
        if (rounds_activations_) row_functions.quantise(from.data + row * k, k, arguments.quantised, row);
    };
    if (rows == 1) {
        prepare(0);
    } else if (halves || rounds_activations_) {
        threads.share(rows, prepare);
    }
    const LinearTasks tasks(*weights_, rows, SessionThreads::most());
    const size_t scratch_bytes = LinearTasks::scratch_bytes(*weights_, kernel_);
    threads.share(
        tasks.count(), [&] { return LinearTasks::Kept{kernel_scratch.reserve(scratch_bytes)}; },
        [&](size_t task, LinearTasks::Kept& kept) { tasks.run(task, kernel_, arguments, kept); });
    if (!halves) return;
    threads.share(rows, [&](size_t row) { narrow(to.data + row * n, static_cast<uint16_t*>(output) + row * n, n); });
}

}  // namespace nybble::onnxruntime
