#include "bindings/threads.hpp"
#include "measure/ceilings.hpp"
#include "packing/packed_matrix.hpp"

using namespace nanobind::literals;

namespace nybble {
namespace {

double weights_bandwidth(ThreadPool& threads, const std::vector<std::shared_ptr<PackedMatrix>>& matrices,
                         size_t cache_bytes, double seconds) {
    std::vector<Extent> extents;
    for (const auto& matrix : matrices) extents.push_back({std::as_const(*matrix).panel(0), matrix->bytes()});
    nb::gil_scoped_release unlocked;
    return read_bandwidth(threads, extents, cache_bytes, seconds);
}

double memory_bandwidth(ThreadPool& threads, size_t bytes, size_t cache_bytes, double seconds) {
    nb::gil_scoped_release unlocked;
    const Memory memory(bytes, Pages::huge);
    // Pages that were never written are all the same page of zeros.
    threads.run([&](size_t thread) {
        constexpr size_t kPage = 4096;
        for (size_t at = thread * kPage; at < bytes; at += threads.size() * kPage) memory.data()[at] = 1;
    });
    return read_bandwidth(threads, {{memory.data(), bytes}}, cache_bytes, seconds);
}

}  // namespace

void bind_measure(nb::module_& m) {
    m.def("measure_weights_bandwidth", &weights_bandwidth, "threads"_a, "matrices"_a, "cache_bytes"_a, "seconds"_a,
          "Bytes per second at which `threads` read the memory that holds `matrices`, none of it in caches of "
          "`cache_bytes`; the fastest pass.");
    m.def("measure_memory_bandwidth", &memory_bandwidth, "threads"_a, "bytes"_a, "cache_bytes"_a, "seconds"_a,
          "Bytes per second at which `threads` read so many bytes of new memory in huge pages; the fastest pass.");
    m.def(
        "measure_int8_peak",
        [](ThreadPool& threads, const std::vector<std::string>& isas, double seconds) {
            const std::vector<Isa> named = isas_of(threads, isas);
            nb::gil_scoped_release unlocked;
            return int8_peak(threads, named, seconds);
        },
        "threads"_a, "isas"_a, "seconds"_a, "int8 multiply-adds per second of `threads`, each on its own of `isas`.");
    m.def(
        "measure_fp32_peak",
        [](ThreadPool& threads, const std::vector<std::string>& isas, double seconds) {
            const std::vector<Isa> named = isas_of(threads, isas);
            nb::gil_scoped_release unlocked;
            return fp32_peak(threads, named, seconds);
        },
        "threads"_a, "isas"_a, "seconds"_a,
        "fp32 fused multiply-adds per second of `threads`, each on its own of `isas`.");
}

}  // namespace nybble
