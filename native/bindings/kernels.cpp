#include <set>
#include <stdexcept>
#include <tuple>

#include "bindings/arrays.hpp"
#include "kernels/quantised_rows.hpp"
#include "kernels/registry.hpp"
#include "program/staged_linear.hpp"
#include "threads/thread_pool.hpp"

using namespace nanobind::literals;

namespace nybble {
namespace {

// Element (row, i) of a new (rows, columns) matrix is value(row, i).
template <typename Function>
NumpyMatrix tabulate(size_t rows, size_t columns, const Function& value) {
    NumpyMatrix matrix = new_matrix(rows, columns);
    for (size_t row = 0; row < rows; ++row) {
        for (size_t i = 0; i < columns; ++i) matrix.data()[row * columns + i] = value(row, i);
    }
    return matrix;
}

// Activations as `isa` rounds them: codes (rows, width), scales (rows, groups), sums of codes (rows, blocks), and the
// outliers: a matrix (rows, width) that is zero elsewhere.
std::tuple<NumpyMatrix, NumpyMatrix, NumpyMatrix, NumpyMatrix> quantise_rows(const std::string& isa,
                                                                             const FloatMatrix& x, size_t block) {
    require(block > 0 && kActivationGroup % block == 0 && block % 16 == 0, "bad block");
    const size_t rows = x.shape(0), width = x.shape(1);
    const Memory memory(quantised_rows_bytes(width, block, Layout::panel32, rows), Pages::small);
    const QuantisedRows to = lay_out_quantised_rows(width, block, Layout::panel32, rows, memory.data());
    for (size_t row = 0; row < rows; ++row) {
        row_kernels(isa_named(isa)).quantise(x.data() + row * width, width, to, row);
    }
    const auto of_each = [&](size_t count, const float* values) {
        return tabulate(rows, count, [&](size_t row, size_t i) { return values[i * to.row_count + row]; });
    };
    NumpyMatrix outliers = tabulate(rows, width, [](size_t, size_t) { return 0.0f; });
    for (size_t row = 0; row < rows; ++row) {
        const Outlier* first = to.outliers_of(row);
        for (const Outlier* outlier = first; outlier < first + to.outlier_counts[row]; ++outlier) {
            outliers.data()[row * width + outlier->block * block + outlier->place] = outlier->value;
        }
    }
    const auto code = [&](size_t row, size_t i) {
        return to.codes_of(i / kActivationGroup, row)[i % kActivationGroup];
    };
    return {tabulate(rows, width, code), of_each(to.groups, to.scales), of_each(to.blocks, to.sums), outliers};
}

std::vector<std::string> names_of(const std::vector<Isa>& isas) {
    std::vector<std::string> names;
    for (const Isa isa : isas) names.emplace_back(name_of(isa));
    return names;
}

}  // namespace

void bind_kernels(nb::module_& m) {
    m.def(
        "available_isas", [] { return names_of(available_isas()); },
        "Instruction sets with kernels that this CPU has, best first.");
    m.def(
        "base_isa",
        [](const std::string& name) {
            for (const LinearEntry& entry : linear_kernels()) {
                if (name == name_of(entry.isa)) return std::string(name_of(base_of(entry.isa)));
            }
            return name;
        },
        "isa"_a, "The instruction set whose kernels serve where `isa` has none; others than extensions: itself.");
    m.def(
        "linear_kernels",
        [] {
            std::vector<std::tuple<std::string, std::string, std::string, std::string, std::string>> rows;
            for (const LinearEntry& entry : linear_kernels()) {
                rows.emplace_back(entry.name, std::string(name_of(entry.isa)), name_of(entry.weights),
                                  name_of(entry.activations), std::string(name_of(entry.layout)));
            }
            return rows;
        },
        "Every registered linear kernel: (name, instruction set, weights, activations, layout).");
    m.def("quantise_rows", &quantise_rows, "isa"_a, "x"_a, "block"_a,
          "Activations as kernels of `isa` see them: codes (rows, width), scales (rows, groups), sums of codes (rows, "
          "blocks), and outliers (rows, width), zero elsewhere.");
    m.def(
        "highest_logit",
        [](const std::string& isa, FloatVector logits) {
            const size_t count = logits.shape(0);
            require(count > 0, "no logits");
            const size_t index = row_kernels(isa_named(isa)).highest_logit(logits.data(), count);
            return index < count ? std::optional(index) : std::nullopt;
        },
        "isa"_a, "logits"_a, "Index of the highest logit, the first of equals; None if any is NaN or infinite.");
    nb::class_<ThreadPool>(m, "ThreadPool")
        .def(
            "__init__",
            [](ThreadPool* self, size_t threads) {
                require(threads > 0, "a pool needs at least one thread");
                new (self) ThreadPool(threads);
            },
            "threads"_a)
        .def(
            "__init__",
            [](ThreadPool* self, const std::vector<std::tuple<int, bool, bool>>& places, const std::string& gate) {
                require(!places.empty(), "a pool needs at least one thread");
                std::vector<Place> all;
                for (const auto& [cpu, gated, matrix] : places) all.push_back({cpu, gated, matrix, gate});
                new (self) ThreadPool(all);
            },
            "places"_a, "gate"_a = "/proc/set_ai_thread")
        .def(
            "stage",
            [](ThreadPool& pool, const std::string& library, const std::vector<size_t>& blocks) -> std::string {
                require(blocks.size() == pool.size(), "expected a block for each thread");
                require(std::set(blocks.begin(), blocks.end()).size() == blocks.size(), "a block given twice");
                try {
                    pool.stage(library, blocks);
                    return "";
                } catch (const std::runtime_error& problem) {
                    return problem.what();
                }
            },
            "library"_a, "blocks"_a,
            "Let single rows take their weights through these blocks of tightly coupled memory, one of each thread; "
            "returns why not, or nothing.")
        .def_prop_ro(
            "staging_bytes", [](const ThreadPool& pool) { return pool.staging() ? pool.staging()->block_bytes() : 0; },
            "Bytes of a block of tightly coupled memory that each thread has, 0 without.")
        .def(
            "staging_refusal",
            [](const ThreadPool& pool, size_t n, size_t k, size_t bytes) {
                require(pool.staging() != nullptr && n > 0, "nothing to ask about");
                const size_t panels = (n + kPanelChannels - 1) / kPanelChannels;
                return staging_refusal(*pool.staging(), StagedSizes(bytes, k, panels, bytes / panels));
            },
            "n"_a, "k"_a, "bytes"_a,
            "Why a linear of such packed weights does not go through tightly coupled memory; empty if it does.")
        .def_prop_ro("size", &ThreadPool::size)
        .def_prop_ro("arrivals", [](const ThreadPool& pool) { return pool.arrivals(); });
    nb::class_<Arrival>(m, "Arrival")
        .def_ro("cpu", &Arrival::cpu)
        .def_ro("vector_bits", &Arrival::vector_bits)
        .def_prop_ro("matrix_unit", [](const Arrival& arrival) { return name_of(arrival.matrix_unit); })
        .def_prop_ro("isas", [](const Arrival& arrival) { return names_of(arrival.isas); })
        .def_ro("problem", &Arrival::problem);
}

}  // namespace nybble
