#include <cerrno>
#include <cstring>

#include "bindings/arrays.hpp"
#include "bindings/weight_memory.hpp"
#include "packing/weight_file.hpp"

using namespace nanobind::literals;

namespace nybble {
namespace {

nb::bytes as_bytes(const std::vector<uint64_t>& words) {
    return nb::bytes(words.data(), words.size() * sizeof(uint64_t));
}

std::vector<uint64_t> as_words(const nb::bytes& octets) {
    require(octets.size() % sizeof(uint64_t) == 0, "expected whole words of 8 bytes");
    std::vector<uint64_t> words(octets.size() / sizeof(uint64_t));
    std::memcpy(words.data(), octets.data(), octets.size());
    return words;
}

const uint8_t* checked_start(const WeightMemory& memory, size_t bytes) {
    require(bytes <= memory.memory->bytes(), "the weight memory is smaller");
    return memory.memory->data();
}

int write_weights(const WeightMemory& memory, size_t begin, size_t end, int descriptor) {
    const uint8_t* data = checked_start(memory, end);
    require(begin <= end, "begins behind its end");
    nb::gil_scoped_release unlocked;
    return write_all(descriptor, data + begin, end - begin);
}

nb::bytes weight_checksums(const WeightMemory& memory, size_t bytes) {
    return as_bytes(chunk_checksums(checked_start(memory, bytes), bytes));
}

bool finish(WeightReader& reader) {
    bool raised = false;
    bool whole = false;
    {
        nb::gil_scoped_release unlocked;
        whole = reader.finish([&] {
            nb::gil_scoped_acquire locked;
            raised = raised || PyErr_CheckSignals() != 0;
            return raised;
        });
    }
    if (raised) throw nb::python_error();
    return whole;
}

}  // namespace

void bind_weight_files(nb::module_& m) {
    m.def(
        "checksum",
        [](const nb::bytes& data) { return checksum(static_cast<const uint8_t*>(data.data()), data.size()); }, "data"_a,
        "64 bits that guard against damage.");
    m.def("weight_checksums", &weight_checksums, "memory"_a, "bytes"_a,
          "One 8-byte checksum for each MiB of the first `bytes` bytes.");
    m.def("write_weights", &write_weights, "memory"_a, "begin"_a, "end"_a, "descriptor"_a,
          "Write these bytes to an open file. Returns 0 or errno.");
    nb::class_<WeightReader>(m, "WeightReader")
        .def(
            "__init__",
            [](WeightReader* self, int descriptor, size_t offset, size_t bytes, const nb::bytes& checksums,
               size_t threads) { new (self) WeightReader(descriptor, offset, bytes, as_words(checksums), threads); },
            "descriptor"_a, "offset"_a, "bytes"_a, "checksums"_a, "threads"_a)
        .def_prop_ro("memory", [](const WeightReader& reader) { return WeightMemory(reader.memory()); })
        .def("finish", &finish, "Wait until all is read. False: not what the checksums say.");
}

}  // namespace nybble
