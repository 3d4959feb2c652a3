#include "program/ops.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/linear_tasks.hpp"
#include "program/staged_linear.hpp"
#include "program/writing_op.hpp"

namespace nybble {
namespace {

// Give `output` a row computed as fp32: in place, or by way of scratch when the buffer is quantised.
template <typename Function>
void write_row(Turn& turn, const View& output, size_t row, const Function& compute) {
    const Slot& slot = turn.slots[output.slot];
    if (slot.block == 0) {
        const FloatRows to = turn.floats(output);
        compute(to.data + row * to.stride);
        return;
    }
    auto* values = reinterpret_cast<float*>(turn.scratch);
    compute(values);
    turn.kernels.quantise(values, output.width, slot.quantised, row);
}

class Embed final : public WritingOp {
  public:
    Embed(std::string label, std::shared_ptr<const PackedMatrix> table, View output)
        : WritingOp(std::move(label), output), table_(std::move(table)) {}
    void run(Turn& turn) const override {
        const FloatRows to = turn.floats(output_);
        turn.share(turn.step.rows, [&](size_t row) {
            table_->decode_row(static_cast<size_t>(turn.step.tokens[row]), to.data + row * to.stride);
        });
    }

  private:
    std::shared_ptr<const PackedMatrix> table_;
};

class RMSNorm final : public WritingOp {
  public:
    RMSNorm(std::string label, View input, std::vector<float> weight, View output, float epsilon)
        : WritingOp(std::move(label), output), input_(input), weight_(std::move(weight)), epsilon_(epsilon) {}
    size_t scratch_bytes() const override { return (output_.width + 16) * sizeof(float); }
    bool is_brief(size_t rows) const override { return are_brief(rows, output_.width); }
    void run(Turn& turn) const override {
        const FloatRows from = turn.floats(input_);
        const size_t rows = turn.rows_of(output_);
        turn.share(rows, [&](size_t row) {
            write_row(turn, output_, row, [&](float* to) {
                turn.kernels.rms_norm(
                    {from.data + row * from.stride, weight_.data(), to, input_.width, weight_.size(), epsilon_});
            });
        });
    }

  private:
    View input_;
    std::vector<float> weight_;
    float epsilon_;
};

class Quantise final : public WritingOp {
  public:
    Quantise(std::string label, View input, View output) : WritingOp(std::move(label), output), input_(input) {}
    bool is_brief(size_t rows) const override { return are_brief(rows, output_.width); }
    void run(Turn& turn) const override {
        const FloatRows from = turn.floats(input_);
        const size_t rows = turn.rows_of(output_);
        turn.share(rows, [&](size_t row) {
            turn.kernels.quantise(from.data + row * from.stride, input_.width, turn.slots[output_.slot].quantised, row);
        });
    }

  private:
    View input_;
};

class Linear final : public WritingOp {
  public:
    Linear(std::string label, View input, std::shared_ptr<const PackedMatrix> weights,
           std::vector<const LinearKernel*> kernels, View output, std::vector<float> bias, std::optional<View> residual)
        : WritingOp(std::move(label), output),
          input_(input),
          weights_(std::move(weights)),
          kernels_(std::move(kernels)),
          bias_(std::move(bias)),
          residual_(residual) {}
    size_t scratch_bytes() const override {
        size_t most = 0;
        for (const LinearKernel* kernel : kernels_) {
            most = std::max(most, LinearTasks::scratch_bytes(*weights_, *kernel));
        }
        return most;
    }
    void run(Turn& turn) const override {
        const Slot& input = turn.slots[input_.slot];
        LinearArguments arguments{
            weights_.get(), input.quantised, {}, turn.floats(output_), bias_.empty() ? nullptr : bias_.data(), {}};
        if (input.block == 0) arguments.floats = turn.floats(input_);
        if (residual_) arguments.residual = turn.floats(*residual_);
        const size_t rows = turn.rows_of(output_);
        const LinearKernel& kernel = *kernels_[turn.thread];
        if (turn.staging != nullptr && rows == 1 && input.block != 0 && StagedSizes(*weights_).fit(*turn.staging)) {
            const StagedLinear staged(*turn.staging, turn.thread, arguments, kernel, turn.copy);
            turn.share(weights_->panels(), [&](size_t panel) { staged.run(panel, turn.scratch); });
            return;
        }
        const LinearTasks tasks(*weights_, rows, turn.threads);
        LinearTasks::Kept kept{turn.scratch};
        turn.share(tasks.count(), [&](size_t task) { tasks.run(task, kernel, arguments, kept); });
    }
    std::span<const uint8_t> stream(const Turn& turn) const override {
        if (turn.rows_of(output_) != 1) return {};
        const size_t first = turn.worker->first_task(weights_->panels());
        return {weights_->panel(first), weights_->bytes() - first * weights_->panel_bytes()};
    }

  private:
    View input_;
    std::shared_ptr<const PackedMatrix> weights_;
    std::vector<const LinearKernel*> kernels_;
    std::vector<float> bias_;
    std::optional<View> residual_;
};

class SwiGLU final : public WritingOp {
  public:
    SwiGLU(std::string label, View gate, View up, View output)
        : WritingOp(std::move(label), output), gate_(gate), up_(up) {}
    size_t scratch_bytes() const override { return (output_.width + 16) * sizeof(float); }
    bool is_brief(size_t rows) const override { return are_brief(rows, output_.width); }
    void run(Turn& turn) const override {
        const FloatRows gate = turn.floats(gate_), up = turn.floats(up_);
        const size_t rows = turn.rows_of(output_);
        turn.share(rows, [&](size_t row) {
            write_row(turn, output_, row, [&](float* to) {
                turn.kernels.swiglu(gate.data + row * gate.stride, up.data + row * up.stride, to, output_.width);
            });
        });
    }

  private:
    View gate_, up_;
};

class Add final : public WritingOp {
  public:
    Add(std::string label, View left, View right, View output)
        : WritingOp(std::move(label), output), left_(left), right_(right) {}
    bool is_brief(size_t rows) const override { return are_brief(rows, output_.width); }
    void run(Turn& turn) const override {
        const FloatRows left = turn.floats(left_), right = turn.floats(right_), to = turn.floats(output_);
        const size_t rows = turn.rows_of(output_);
        turn.share(rows, [&](size_t row) {
            for (size_t i = 0; i < output_.width; ++i) {
                to.data[row * to.stride + i] = left.data[row * left.stride + i] + right.data[row * right.stride + i];
            }
        });
    }

  private:
    View left_, right_;
};

class SelectOutputs final : public WritingOp {
  public:
    SelectOutputs(std::string label, View input, View output) : WritingOp(std::move(label), output), input_(input) {}
    bool is_brief(size_t rows) const override { return are_brief(rows, output_.width); }
    void run(Turn& turn) const override {
        const FloatRows from = turn.floats(input_), to = turn.floats(output_);
        turn.share(turn.step.outputs, [&](size_t output) {
            const auto row = static_cast<size_t>(turn.step.output_rows[output]);
            std::memcpy(to.data + output * to.stride, from.data + row * from.stride, input_.width * sizeof(float));
        });
    }

  private:
    View input_;
};

}  // namespace

std::unique_ptr<Op> make_embed(std::string label, std::shared_ptr<const PackedMatrix> table, View output) {
    return std::make_unique<Embed>(std::move(label), std::move(table), output);
}
std::unique_ptr<Op> make_rms_norm(std::string label, View input, std::vector<float> weight, View output,
                                  float epsilon) {
    return std::make_unique<RMSNorm>(std::move(label), input, std::move(weight), output, epsilon);
}
std::unique_ptr<Op> make_linear(std::string label, View input, std::shared_ptr<const PackedMatrix> weights,
                                std::vector<const LinearKernel*> kernels, View output, std::vector<float> bias,
                                std::optional<View> residual) {
    return std::make_unique<Linear>(std::move(label), input, std::move(weights), std::move(kernels), output,
                                    std::move(bias), residual);
}
std::unique_ptr<Op> make_swiglu(std::string label, View gate, View up, View output) {
    return std::make_unique<SwiGLU>(std::move(label), gate, up, output);
}
std::unique_ptr<Op> make_add(std::string label, View left, View right, View output) {
    return std::make_unique<Add>(std::move(label), left, right, output);
}
std::unique_ptr<Op> make_select_outputs(std::string label, View input, View output) {
    return std::make_unique<SelectOutputs>(std::move(label), input, output);
}
std::unique_ptr<Op> make_quantise(std::string label, View input, View output) {
    return std::make_unique<Quantise>(std::move(label), input, output);
}

}  // namespace nybble
