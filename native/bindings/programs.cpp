#include <chrono>
#include <cstring>

#include "bindings/threads.hpp"
#include "kernels/registry.hpp"
#include "program/ops.hpp"

using namespace nanobind::literals;

namespace nybble {
namespace {

const LinearEntry& kernel_named(const std::string& name) {
    const LinearEntry* entry = find_linear_kernel(name);
    require(entry != nullptr, "no kernel of that name");
    return *entry;
}

// What each thread takes instead of `entry`: the kernel of its own instruction set for the same weights, or else that.
std::vector<const LinearKernel*> kernels_of(const Program& program, const LinearEntry& entry,
                                            const PackedFormat& format) {
    std::vector<const LinearKernel*> kernels;
    for (const Isa isa : program.isas()) {
        const LinearEntry* own = isa == entry.isa ? &entry : find_linear_kernel(format, entry.activations, isa);
        const LinearEntry& used = own == nullptr ? entry : *own;
        require(runs(program.threads().arrivals()[kernels.size()], used.isa),
                "a thread's CPU does not run this kernel");
        kernels.push_back(used.kernel);
    }
    return kernels;
}

// True when a signal's Python handler raised (Ctrl-C); asked at most every 20 ms.
class InterruptCheck {
  public:
    bool operator()() {
        const auto now = std::chrono::steady_clock::now();
        if (now - last_ < std::chrono::milliseconds(20)) return false;
        last_ = now;
        nb::gil_scoped_acquire locked;
        return PyErr_CheckSignals() != 0;
    }

  private:
    std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

constexpr size_t kSpareLogits = kCacheLine / sizeof(float);  // as Program::run wants

using Sequences = std::vector<std::pair<KVCache*, size_t>>;

std::vector<double> checked(std::vector<double> inverse_frequencies, size_t head_dim) {
    require(inverse_frequencies.size() == head_dim / 2, "expected one frequency for each pair of features");
    return inverse_frequencies;
}

KVBlock kv_block(const std::string& type, size_t head_dim) {
    if (type == "fp32") return {KVType::fp32, head_dim};
    if (type == "fp16") return {KVType::fp16, head_dim};
    if (type == "bf16") return {KVType::bf16, head_dim};
    require(type == "int8", "a KV cache is fp32, fp16, bf16 or int8");
    require(head_dim <= kLargestHeadOfCodes, "an int8 KV cache has heads of at most 512 features");
    return {KVType::int8, head_dim};
}

// Builds and runs a Program; buffers are View indices.
class PyProgram {
  public:
    PyProgram(std::shared_ptr<ThreadPool> threads, const std::vector<std::string>& isas, size_t vocabulary,
              size_t layers, size_t kv_heads, size_t head_dim, std::vector<double> inverse_frequencies)
        : program_(threads, isas_of(*threads, isas), checked(std::move(inverse_frequencies), head_dim)),
          vocabulary_(vocabulary),
          layers_(layers),
          kv_heads_(kv_heads),
          head_dim_(head_dim) {
        require(vocabulary > 0 && kv_heads > 0 && head_dim > 0, "bad program");
    }

    size_t slot(size_t width, bool per_output, size_t block, const std::string& layout) {
        require(width > 0 && (block == 0 || block % 16 == 0), "bad slot");
        return program_.add_slot({width, per_output, block, layout_named(layout)});
    }
    size_t view(size_t slot, size_t offset, size_t width) {
        require(slot < program_.slots().size(), "no such slot");
        const Slot& whole = program_.slots()[slot];
        require(offset <= whole.width && width <= whole.width - offset, "view outside its slot");
        require(whole.block == 0 || (offset == 0 && width == whole.width), "quantised slots have no partial views");
        views_.push_back({slot, offset, width});
        return views_.size() - 1;
    }

    void embed(std::string label, std::shared_ptr<PackedMatrix> table, size_t output) {
        require(table->n() >= vocabulary_ && table->k() == at(output).width && is_f32(output) && !is_per_output(output),
                "bad embed");
        program_.add(make_embed(std::move(label), std::move(table), at(output)));
    }
    void rms_norm(std::string label, size_t input, FloatVector weight, size_t output, float epsilon) {
        const size_t group = weight.shape(0);
        require(group > 0 && at(input).width % group == 0 && is_f32(input) && same_shape(input, output),
                "bad rms_norm");
        program_.add(make_rms_norm(std::move(label), at(input), to_vector(weight), at(output), epsilon));
    }
    void quantise(std::string label, size_t input, size_t output) {
        require(is_f32(input) && !is_f32(output) && same_shape(input, output), "bad quantise");
        program_.add(make_quantise(std::move(label), at(input), at(output)));
    }
    void linear(std::string label, size_t input, std::shared_ptr<PackedMatrix> weights, const std::string& kernel,
                size_t output, std::optional<FloatVector> bias, std::optional<size_t> residual) {
        const LinearEntry& entry = kernel_named(kernel);
        const PackedFormat& format = weights->format();
        require(entry.weights == format.type && entry.layout == format.layout, "kernel does not read these weights");
        require(entry.activations == Activations::f32 || !format.wide_scales,
                "kernels with int8 activations read fp16 scales");
        const Slot& slot = program_.slots()[at(input).slot];
        const bool is_rounded = slot.block == format.block && slot.layout == format.layout;
        require(entry.activations == Activations::int8 ? is_rounded : slot.block == 0,
                "kernel does not read these activations");
        require(at(input).width == weights->k() && at(output).width == weights->n() && is_f32(output) &&
                    is_per_output(input) == is_per_output(output),
                "bad linear");
        require(!bias || bias->shape(0) == weights->n(), "bad bias");
        require(!residual || (is_f32(*residual) && same_shape(*residual, output)), "bad residual");
        std::optional<View> residual_view;
        if (residual) residual_view = at(*residual);
        program_.add(make_linear(std::move(label), at(input), std::move(weights), kernels_of(program_, entry, format),
                                 at(output), to_vector(bias), residual_view));
    }
    void rotate_append(std::string label, size_t layer, size_t query, size_t key, size_t value, size_t output,
                       std::optional<FloatVector> query_norm, std::optional<FloatVector> key_norm, float epsilon) {
        require(layer < layers_ && head_dim_ % 2 == 0 && at(key).width == kv_heads_ * head_dim_ &&
                    at(query).width % head_dim_ == 0 && same_shape(key, value) && same_shape(query, output),
                "bad rotate_append");
        require(is_f32(query) && is_f32(key) && is_f32(value) && is_f32(output) && !is_per_output(query) &&
                    !is_per_output(key),
                "bad rotate_append");
        require(!query_norm || query_norm->shape(0) == head_dim_, "bad query norm");
        require(!key_norm || key_norm->shape(0) == head_dim_, "bad key norm");
        program_.add(make_rotate_append(std::move(label), layer, at(query), at(key), at(value), at(output), head_dim_,
                                        {to_vector(query_norm), to_vector(key_norm), epsilon}));
    }
    void attention(std::string label, size_t layer, size_t query, size_t output, size_t heads, float scale) {
        require(layer < layers_ && heads > 0 && heads % kv_heads_ == 0 && at(query).width == heads * head_dim_ &&
                    same_shape(query, output) && is_f32(query) && is_f32(output) && !is_per_output(query),
                "bad attention");
        program_.add(
            make_attention(std::move(label), layer, at(query), at(output), heads, kv_heads_, head_dim_, scale));
    }
    void swiglu(std::string label, size_t gate, size_t up, size_t output) {
        require(is_f32(gate) && is_f32(up) && same_shape(gate, up) && same_shape(up, output), "bad swiglu");
        program_.add(make_swiglu(std::move(label), at(gate), at(up), at(output)));
    }
    void add(std::string label, size_t left, size_t right, size_t output) {
        require(is_f32(left) && is_f32(right) && is_f32(output) && same_shape(left, right) && same_shape(right, output),
                "bad add");
        program_.add(make_add(std::move(label), at(left), at(right), at(output)));
    }
    void select_outputs(std::string label, size_t input, size_t output) {
        require(is_f32(input) && is_f32(output) && at(input).width == at(output).width && !is_per_output(input) &&
                    is_per_output(output),
                "bad select_outputs");
        program_.add(make_select_outputs(std::move(label), at(input), at(output)));
    }
    void set_logits(size_t view) {
        require(is_f32(view) && is_per_output(view), "bad logits");
        require(at(view).width == program_.slots()[at(view).slot].width, "logits are no part of a buffer");
        program_.set_logits(at(view).slot);
    }

    NumpyMatrix run(const std::vector<int32_t>& tokens, const Sequences& sequences,
                    const std::vector<int32_t>& output_rows) {
        check(tokens, sequences, output_rows);
        NumpyMatrix logits = new_matrix(output_rows.size(), program_.vocabulary(), kSpareLogits);
        run_into(logits.data(), tokens, sequences, output_rows);
        return logits;
    }
    PlainBuffer run_plain(const std::vector<int32_t>& tokens, const Sequences& sequences,
                          const std::vector<int32_t>& output_rows) {
        check(tokens, sequences, output_rows);
        PlainBuffer logits = new_buffer(checked_multiply(output_rows.size(), program_.vocabulary()), kSpareLogits);
        run_into(logits.data(), tokens, sequences, output_rows);
        return logits;
    }
    std::vector<std::pair<std::string, double>> time_ops(const std::vector<int32_t>& tokens, const Sequences& sequences,
                                                         const std::vector<int32_t>& output_rows) {
        check(tokens, sequences, output_rows);
        nb::gil_scoped_release unlocked;
        return program_.time_ops(tokens, sequences, output_rows);
    }
    std::string first_non_finite(const std::vector<int32_t>& tokens, const Sequences& sequences,
                                 const std::vector<int32_t>& output_rows) {
        check(tokens, sequences, output_rows);
        return program_.first_non_finite(tokens, sequences, output_rows);
    }

  private:
    void run_into(float* logits, const std::vector<int32_t>& tokens, const Sequences& sequences,
                  const std::vector<int32_t>& output_rows) {
        InterruptCheck interrupted;
        bool finished = false;
        {
            nb::gil_scoped_release unlocked;
            finished = program_.run(tokens, sequences, output_rows, logits, [&] { return interrupted(); });
        }
        if (!finished) throw nb::python_error();
    }
    const View& at(size_t view) const {
        require(view < views_.size(), "no such view");
        return views_[view];
    }
    bool is_f32(size_t view) const { return program_.slots()[at(view).slot].block == 0; }
    bool is_per_output(size_t view) const { return program_.slots()[at(view).slot].per_output; }
    // As many features, and a row for each token or for each output alike.
    bool same_shape(size_t left, size_t right) const {
        return at(left).width == at(right).width && is_per_output(left) == is_per_output(right);
    }

    void check(const std::vector<int32_t>& tokens, const Sequences& sequences,
               const std::vector<int32_t>& output_rows) const {
        require(program_.vocabulary() > 0, "the program has no logits");
        require(!tokens.empty(), "a step needs tokens");
        size_t rows = 0;
        for (size_t i = 0; i < sequences.size(); ++i) {
            const KVCache& cache = *sequences[i].first;
            require(cache.layers() == layers_ && cache.kv_heads() == kv_heads_ && cache.block().head_dim == head_dim_,
                    "cache of another model");
            require(sequences[i].second > 0 && sequences[i].second <= cache.capacity() - cache.length(),
                    "KV cache is full");
            for (size_t j = 0; j < i; ++j) require(sequences[j].first != &cache, "a cache given twice");
            rows += sequences[i].second;
        }
        require(rows == tokens.size(), "sequence lengths do not add up to the tokens");
        for (const int32_t token : tokens) {
            require(token >= 0 && static_cast<size_t>(token) < vocabulary_, "token outside the vocabulary");
        }
        for (const int32_t row : output_rows) {
            require(row >= 0 && static_cast<size_t>(row) < rows, "output row out of range");
        }
    }

    Program program_;
    std::vector<View> views_;
    size_t vocabulary_, layers_, kv_heads_, head_dim_;
};

}  // namespace

void bind_programs(nb::module_& m) {
    nb::class_<KVCache>(m, "KVCache")
        .def(
            "__init__",
            [](KVCache* cache, size_t layers, size_t kv_heads, size_t head_dim, size_t capacity, const char* type) {
                new (cache) KVCache(layers, kv_heads, kv_block(type, head_dim), capacity);
            },
            "layers"_a, "kv_heads"_a, "head_dim"_a, "capacity"_a, "type"_a = "fp16")
        .def_static(
            "bytes_for",
            [](size_t layers, size_t kv_heads, size_t head_dim, size_t capacity, const char* type) {
                return KVCache::bytes_for(layers, kv_heads, kv_block(type, head_dim), capacity);
            },
            "layers"_a, "kv_heads"_a, "head_dim"_a, "capacity"_a, "type"_a = "fp16")
        .def_prop_ro("capacity", &KVCache::capacity)
        .def_prop_ro("length", &KVCache::length)
        .def(
            "truncate",
            [](KVCache& cache, size_t length) {
                require(length <= cache.length(), "a cache can't be truncated to more than it holds");
                cache.set_length(length);
            },
            "length"_a);
    m.def(
        "slot_bytes",
        [](size_t width, bool per_output, size_t block, const std::string& layout, size_t rows, size_t outputs) {
            return slot_bytes(Slot{width, per_output, block, layout_named(layout)}, rows, outputs);
        },
        "width"_a, "per_output"_a, "block"_a, "layout"_a, "rows"_a, "outputs"_a,
        "Bytes a slot of a program takes in a step of that many tokens and outputs.");
    nb::class_<PyProgram>(m, "Program")
        .def(nb::init<std::shared_ptr<ThreadPool>, const std::vector<std::string>&, size_t, size_t, size_t, size_t,
                      std::vector<double>>(),
             "threads"_a, "isas"_a, "vocabulary"_a, "layers"_a, "kv_heads"_a, "head_dim"_a, "inverse_frequencies"_a)
        .def("slot", &PyProgram::slot, "width"_a, "per_output"_a, "block"_a, "layout"_a = "panel32")
        .def("view", &PyProgram::view, "slot"_a, "offset"_a, "width"_a)
        .def("embed", &PyProgram::embed, "label"_a, "table"_a, "output"_a)
        .def("rms_norm", &PyProgram::rms_norm, "label"_a, "input"_a, "weight"_a, "output"_a, "epsilon"_a)
        .def("quantise", &PyProgram::quantise, "label"_a, "input"_a, "output"_a)
        .def("linear", &PyProgram::linear, "label"_a, "input"_a, "weights"_a, "kernel"_a, "output"_a, "bias"_a.none(),
             "residual"_a.none())
        .def("rotate_append", &PyProgram::rotate_append, "label"_a, "layer"_a, "query"_a, "key"_a, "value"_a,
             "output"_a, "query_norm"_a.none(), "key_norm"_a.none(), "epsilon"_a)
        .def("attention", &PyProgram::attention, "label"_a, "layer"_a, "query"_a, "output"_a, "heads"_a, "scale"_a)
        .def("swiglu", &PyProgram::swiglu, "label"_a, "gate"_a, "up"_a, "output"_a)
        .def("add", &PyProgram::add, "label"_a, "left"_a, "right"_a, "output"_a)
        .def("select_outputs", &PyProgram::select_outputs, "label"_a, "input"_a, "output"_a)
        .def("set_logits", &PyProgram::set_logits, "view"_a)
        .def("run", &PyProgram::run, "tokens"_a, "sequences"_a, "output_rows"_a)
        .def("run_plain", &PyProgram::run_plain, "tokens"_a, "sequences"_a, "output_rows"_a,
             "As run(), the logits back to back in a plain buffer: for those who do not need numpy.")
        .def("time_ops", &PyProgram::time_ops, "tokens"_a, "sequences"_a, "output_rows"_a,
             "Run a step and return (label, seconds) of each op.")
        .def("first_non_finite", &PyProgram::first_non_finite, "tokens"_a, "sequences"_a, "output_rows"_a);
}

}  // namespace nybble
