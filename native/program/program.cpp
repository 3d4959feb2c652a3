#include "program/program.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>

#include "kernels/quantised_rows.hpp"

namespace nybble {
namespace {

// Rows start on cache lines, so that threads which write neighbouring rows do not share one.
size_t float_stride(const Slot& slot) { return round_up(slot.width, kCacheLine / sizeof(float)); }

// Fetches the weights that a thread will stream next into its cache while it waits for others.
class WeightsAhead {
  public:
    // At the first of the ops from `begin` on that streams any, unless it did so before.
    void aim(const std::vector<std::unique_ptr<Op>>& ops, size_t begin, const Turn& turn) {
        if (begin <= op_) return;
        left_ = {};
        for (op_ = begin; op_ < ops.size(); ++op_) {
            left_ = ops[op_]->stream(turn);
            if (!left_.empty()) break;
        }
        left_ = left_.first(std::min(left_.size(), kMostBytes));
    }

    // A few lines more; false when there are none.
    bool fetch() {
        constexpr size_t kBytes = 4 * kCacheLine;
        if (left_.size() < kBytes) return false;
        for (size_t at = 0; at < kBytes; at += kCacheLine) __builtin_prefetch(left_.data() + at, 0, 2);
        left_ = left_.subspan(kBytes);
        return true;
    }

  private:
    static constexpr size_t kMostBytes = size_t{64} << 10;

    size_t op_ = 0;
    std::span<const uint8_t> left_;
};

}  // namespace

size_t slot_bytes(const Slot& slot, size_t rows, size_t outputs) {
    const size_t slot_rows = slot.rows(rows, outputs);
    if (slot.block != 0) return quantised_rows_bytes(slot.width, slot.block, slot.layout, slot_rows);
    // Kernels read whole vectors past the last row's end: one spare line.
    return float_stride(slot) * slot_rows * sizeof(float) + kCacheLine;
}

Program::Program(std::shared_ptr<ThreadPool> threads, std::vector<Isa> isas, std::vector<double> inverse_frequencies)
    : threads_(std::move(threads)),
      isas_(std::move(isas)),
      inverse_frequencies_(std::move(inverse_frequencies)),
      work_(threads_->size()) {}

size_t Program::add_slot(const Slot& slot) {
    slots_.push_back(slot);
    return slots_.size() - 1;
}

size_t Program::activation_bytes(size_t rows, size_t outputs) const {
    size_t total = 0;
    for (const Slot& slot : slots_) total += slot_bytes(slot, rows, outputs);
    return total;
}

void Program::prepare_memory(size_t rows, size_t outputs) {
    if (scratch_.empty()) {
        size_t needed = 0;
        for (const auto& op : ops_) needed = std::max(needed, op->scratch_bytes());
        while (scratch_.size() < threads_->size()) scratch_.emplace_back(needed + kCacheLine, Pages::huge);
    }
    if (rows == laid_out_rows_ && outputs == laid_out_outputs_) return;
    const size_t needed = activation_bytes(rows, outputs);
    if (needed > activations_.bytes()) {
        // The old memory goes first, so that both are never held. When there is no new, nothing is laid out.
        laid_out_rows_ = laid_out_outputs_ = 0;
        activations_ = Memory();
        activations_ = Memory(needed, Pages::huge);
    }
    laid_out_rows_ = rows;
    laid_out_outputs_ = outputs;
    size_t at = 0;
    for (Slot& slot : slots_) {
        const size_t slot_rows = slot.rows(rows, outputs);
        if (slot.block == 0) {
            slot.floats = {activations_.as<float>(at), float_stride(slot)};
        } else {
            uint8_t* memory = activations_.data() + at;
            slot.quantised = lay_out_quantised_rows(slot.width, slot.block, slot.layout, slot_rows, memory);
        }
        at += slot_bytes(slot, rows, outputs);
    }
}

Step Program::make_step(const std::vector<int32_t>& tokens, const std::vector<std::pair<KVCache*, size_t>>& sequences,
                        const std::vector<int32_t>& output_rows) {
    Step step{tokens.data(), tokens.size(), output_rows.data(), output_rows.size(), {}, {}, {}, {}};
    for (const auto& [cache, rows] : sequences) {
        const size_t first_row = step.span_of_row.size();
        step.span_of_row.insert(step.span_of_row.end(), rows, step.spans.size());
        step.spans.push_back({cache, first_row, rows, cache->length()});
    }
    const size_t half = inverse_frequencies_.size();
    step.cosines.resize(step.rows * half);
    step.sines.resize(step.rows * half);
    for (size_t row = 0; row < step.rows; ++row) {
        const auto position = static_cast<double>(step.position_of(row));
        for (size_t i = 0; i < half; ++i) {
            const double angle = position * inverse_frequencies_[i];
            step.cosines[row * half + i] = static_cast<float>(std::cos(angle));
            step.sines[row * half + i] = static_cast<float>(std::sin(angle));
        }
    }
    prepare_memory(step.rows, std::max<size_t>(step.outputs, 1));
    prepare_shared(step);
    return step;
}

void Program::prepare_shared(Step& step) {
    SharedNeeds needs;
    for (const auto& op : ops_) {
        const SharedNeeds needed = op->shared_needs(step);
        needs = {std::max(needs.counters, needed.counters), std::max(needs.bytes, needed.bytes)};
    }
    if (needs.counters > counters_.size()) counters_ = std::vector<std::atomic<uint32_t>>(needs.counters);
    if (needs.bytes > shared_.bytes()) {
        shared_ = Memory();
        shared_ = Memory(needs.bytes, Pages::small);
    }
    step.shared = shared_.data();
    step.counters = counters_.data();
}

std::vector<size_t> Program::shared_ops(const Step& step) const {
    std::vector<size_t> positions;
    for (size_t index = 0; index < ops_.size(); ++index) {
        const View* written = ops_[index]->written();
        const size_t rows = written == nullptr ? step.rows : slots_[written->slot].rows(step.rows, step.outputs);
        if (index == 0 || threads_->size() == 1 || !ops_[index]->is_brief(rows)) positions.push_back(index);
    }
    return positions;
}

// As if there were no other threads.
Turn Program::turn_of(size_t thread, const Step& step) const {
    return {step, slots_, row_kernels(isas_[thread]), thread, 1, scratch_[thread].data(), nullptr};
}

bool Program::execute(const Step& step, const std::function<bool()>& should_stop, const std::function<void()>& ended) {
    const std::vector<size_t> shared = shared_ops(step);
    const size_t threads = threads_->size();
    work_.reset();
    std::atomic<bool> stopped{false};
    const auto ask_whether_to_stop = [&] {
        if (!stopped.load(std::memory_order_relaxed) && should_stop()) stopped.store(true, std::memory_order_relaxed);
    };
    const auto walk = [&](size_t thread) {
        Worker worker(work_, thread);
        WeightsAhead ahead;
        for (size_t at = 0; at < shared.size(); ++at) {
            // A thread leaves between ops only; those still in one do what it has not claimed.
            if (stopped.load(std::memory_order_relaxed)) return;
            const size_t first = shared[at], end = at + 1 < shared.size() ? shared[at + 1] : ops_.size();
            Turn turn = turn_of(thread, step);
            turn.threads = threads;
            turn.worker = threads == 1 ? nullptr : &worker;
            turn.staging = threads_->staging();
            turn.copy = copy_function(isas_[thread]);
            const auto finish = [&] {
                if (ended) ended();
                Turn alone = turn_of(thread, step);
                for (size_t index = first + 1; index < end; ++index) {
                    ops_[index]->run(alone);
                    if (ended) ended();
                }
            };
            const Interlude interlude{finish, [&] { return ahead.fetch(); }};
            turn.interlude = &interlude;
            if (turn.worker != nullptr) ahead.aim(ops_, end, turn);
            ops_[first]->run(turn);
            if (turn.worker == nullptr) finish();
            if (thread == 0 && !threads_->is_placed() && end < ops_.size()) ask_whether_to_stop();
        }
    };
    threads_->run(walk, ask_whether_to_stop);
    return !stopped.load();
}

bool Program::run(const std::vector<int32_t>& tokens, const std::vector<std::pair<KVCache*, size_t>>& sequences,
                  const std::vector<int32_t>& output_rows, float* logits, const std::function<bool()>& should_stop) {
    const Step step = make_step(tokens, sequences, output_rows);
    // The ops write the logits where they are wanted; what else passes through their slot has rows of the same width.
    FloatRows& rows = slots_[*logits_].floats;
    const FloatRows own = rows;
    if (step.outputs != 0) rows = {logits, vocabulary()};
    const bool finished = execute(step, should_stop, {});
    rows = own;
    if (!finished) return false;
    for (const Span& span : step.spans) span.cache->set_length(span.first_position + span.rows);
    return true;
}

std::vector<std::pair<std::string, double>> Program::time_ops(const std::vector<int32_t>& tokens,
                                                              const std::vector<std::pair<KVCache*, size_t>>& sequences,
                                                              const std::vector<int32_t>& output_rows) {
    using Clock = std::chrono::steady_clock;
    const Step step = make_step(tokens, sequences, output_rows);
    std::vector<Clock::time_point> ends;
    ends.reserve(ops_.size());
    const Clock::time_point start = Clock::now();
    execute(step, [] { return false; }, [&] { ends.push_back(Clock::now()); });
    for (const Span& span : step.spans) span.cache->set_length(span.first_position + span.rows);
    std::vector<std::pair<std::string, double>> times;
    for (size_t i = 0; i < ops_.size(); ++i) {
        const Clock::time_point begin = i == 0 ? start : ends[i - 1];
        times.emplace_back(ops_[i]->label(), std::chrono::duration<double>(ends[i] - begin).count());
    }
    return times;
}

bool Program::is_finite(const View& view, size_t rows) const {
    const Slot& slot = slots_[view.slot];
    if (slot.block != 0) {
        const float* scales = slot.quantised.scales;
        return std::all_of(scales, scales + slot.quantised.groups * rows,
                           [](float scale) { return std::isfinite(scale); });
    }
    for (size_t row = 0; row < rows; ++row) {
        const float* values = slot.floats.data + row * slot.floats.stride + view.offset;
        if (!std::all_of(values, values + view.width, [](float value) { return std::isfinite(value); })) return false;
    }
    return true;
}

std::string Program::first_non_finite(const std::vector<int32_t>& tokens,
                                      const std::vector<std::pair<KVCache*, size_t>>& sequences,
                                      const std::vector<int32_t>& output_rows) {
    const Step step = make_step(tokens, sequences, output_rows);
    std::string found;
    // On one thread alone: a buffer must be looked at before the next op may reuse its slot.
    threads_->run([&](size_t thread) {
        for (size_t index = 0; thread == 0 && index < ops_.size() && found.empty(); ++index) {
            Turn turn = turn_of(thread, step);
            ops_[index]->run(turn);
            const View* written = ops_[index]->written();
            const bool finite = written == nullptr || is_finite(*written, turn.rows_of(*written));
            if (!finite || !ops_[index]->appended_finite(step)) found = ops_[index]->label();
        }
    });
    return found;
}

}  // namespace nybble
