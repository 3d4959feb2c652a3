// A compiled graph: a flat list of ops over slots of memory. One call runs one step for a batch of sequences; every
// thread of the pool walks the whole list, claims parts of each op, and goes on when all of its parts are done. Ops
// that would be over before another thread has joined in are run by the thread that ends the op before them.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/memory.hpp"
#include "kernels/registry.hpp"
#include "program/kv_cache.hpp"
#include "threads/shared_work.hpp"
#include "threads/thread_pool.hpp"

namespace nybble {

// A buffer: `width` features from `offset` of each row of a slot.
struct View {
    size_t slot;
    size_t offset;
    size_t width;
};

// Memory that buffers with disjoint lifetimes share. `block` is 0 for fp32, else that of int8 activations; `layout`
// that of the weights these will be multiplied with.
struct Slot {
    size_t width;
    bool per_output;
    size_t block;
    Layout layout = Layout::panel32;
    FloatRows floats{};
    QuantisedRows quantised{};

    size_t rows(size_t tokens, size_t outputs) const { return per_output ? outputs : tokens; }
};

// Bytes a slot takes in a step of that many tokens and outputs.
size_t slot_bytes(const Slot& slot, size_t rows, size_t outputs);

// New tokens of one sequence within a step.
struct Span {
    KVCache* cache;
    size_t first_row;
    size_t rows;
    size_t first_position;
};

// What the ops of one step share.
struct Step {
    const int32_t* tokens;
    size_t rows;
    const int32_t* output_rows;
    size_t outputs;
    std::vector<Span> spans;
    std::vector<size_t> span_of_row;
    std::vector<float> cosines, sines;  // [row][head_dim / 2]
    // Memory through which the threads in an op hand over parts of it, and counters that are 0 before and after an op.
    uint8_t* shared = nullptr;
    std::atomic<uint32_t>* counters = nullptr;

    size_t position_of(size_t row) const {
        const Span& span = spans[span_of_row[row]];
        return span.first_position + row - span.first_row;
    }
};

// What an op needs of the step's shared memory.
struct SharedNeeds {
    size_t counters = 0;
    size_t bytes = 0;
};

// What a thread does between its own tasks of an op and those of the next.
struct Interlude {
    std::function<void()> finish;     // called by whoever ends the last task
    std::function<bool()> meanwhile;  // called again and again while waiting for that, until false
};

// One thread's part in one op.
struct Turn {
    const Step& step;
    const std::vector<Slot>& slots;
    const RowKernels& kernels;
    size_t thread;
    size_t threads;
    uint8_t* scratch;
    Worker* worker;  // null: this thread does all of the op
    const Interlude* interlude = nullptr;
    const Staging* staging = nullptr;  // null: there is none
    CopyFunction copy = nullptr;       // to there

    // Call function(task) once for each of the op's tasks, on whichever thread comes first. An op calls it once.
    template <typename Function>
    void share(size_t tasks, const Function& function) const {
        if (worker != nullptr) {
            worker->share(tasks, function, interlude->finish, interlude->meanwhile);
        } else {
            for (size_t task = 0; task < tasks; ++task) function(task);
        }
    }

    size_t rows_of(const View& view) const { return slots[view.slot].rows(step.rows, step.outputs); }
    FloatRows floats(const View& view) const {
        const FloatRows& rows = slots[view.slot].floats;
        return {rows.data + view.offset, rows.stride};
    }
};

class Op {
  public:
    explicit Op(std::string label) : label_(std::move(label)) {}
    virtual ~Op() = default;
    virtual void run(Turn& turn) const = 0;
    // Whether one thread is done with that many rows before another can have joined in.
    virtual bool is_brief(size_t /*rows*/) const { return false; }
    // The weights that the worker whose turn it is will stream from memory, from where it begins; empty: none.
    virtual std::span<const uint8_t> stream(const Turn&) const { return {}; }
    virtual size_t scratch_bytes() const { return 0; }
    virtual SharedNeeds shared_needs(const Step&) const { return {}; }
    // The buffer this op writes; null when it writes only the KV cache.
    virtual const View* written() const = 0;
    // Whether the keys and values that this op appended are finite.
    virtual bool appended_finite(const Step&) const { return true; }
    const std::string& label() const { return label_; }

  private:
    std::string label_;
};

class Program {
  public:
    // What each thread runs, and one of `inverse_frequencies` for each pair of a head's features.
    Program(std::shared_ptr<ThreadPool> threads, std::vector<Isa> isas, std::vector<double> inverse_frequencies);

    const ThreadPool& threads() const { return *threads_; }
    // Of each thread.
    const std::vector<Isa>& isas() const { return isas_; }

    size_t add_slot(const Slot& slot);
    void add(std::unique_ptr<Op> op) { ops_.push_back(std::move(op)); }
    // `slot` gets the logits, all of it.
    void set_logits(size_t slot) { logits_ = slot; }
    const std::vector<Slot>& slots() const { return slots_; }
    // 0 without logits.
    size_t vocabulary() const { return logits_ ? slots_[*logits_].width : 0; }

    // Bytes of activations for steps of that many tokens and outputs.
    size_t activation_bytes(size_t rows, size_t outputs) const;

    // Run one step; `sequences` are (cache, number of new tokens), tokens in the same order. Writes one row of logits
    // for each of `output_rows` to `logits`, behind which a cache line may be read. Caches grow by their new tokens
    // unless `should_stop` (asked between ops on the calling thread) ended the step: then false.
    bool run(const std::vector<int32_t>& tokens, const std::vector<std::pair<KVCache*, size_t>>& sequences,
             const std::vector<int32_t>& output_rows, float* logits, const std::function<bool()>& should_stop);

    // Like run(), but returns how long each op took, in seconds: from the end of the one before to its own.
    std::vector<std::pair<std::string, double>> time_ops(const std::vector<int32_t>& tokens,
                                                         const std::vector<std::pair<KVCache*, size_t>>& sequences,
                                                         const std::vector<int32_t>& output_rows);

    // Run the step without growing the caches; the label of the first op that wrote a NaN or infinity, or "".
    std::string first_non_finite(const std::vector<int32_t>& tokens,
                                 const std::vector<std::pair<KVCache*, size_t>>& sequences,
                                 const std::vector<int32_t>& output_rows);

  private:
    Step make_step(const std::vector<int32_t>& tokens, const std::vector<std::pair<KVCache*, size_t>>& sequences,
                   const std::vector<int32_t>& output_rows);
    void prepare_shared(Step& step);
    // Give every slot its place for a step of that many rows.
    void prepare_memory(size_t rows, size_t outputs);
    // False when should_stop() ended it. `ended` is called after each op by the thread that did the last of it.
    bool execute(const Step& step, const std::function<bool()>& should_stop, const std::function<void()>& ended);
    // Positions of the ops that all threads take part in; those between are left to the thread that ends the one
    // before.
    std::vector<size_t> shared_ops(const Step& step) const;
    bool is_finite(const View& view, size_t rows) const;

    Turn turn_of(size_t thread, const Step& step) const;

    std::shared_ptr<ThreadPool> threads_;
    std::vector<Isa> isas_;
    std::vector<double> inverse_frequencies_;
    std::vector<Slot> slots_;
    std::vector<std::unique_ptr<Op>> ops_;
    std::optional<size_t> logits_;  // slot
    Memory activations_;
    size_t laid_out_rows_ = 0, laid_out_outputs_ = 0;
    std::vector<Memory> scratch_;
    Memory shared_;
    std::vector<std::atomic<uint32_t>> counters_;
    SharedWork work_;
};

}  // namespace nybble
