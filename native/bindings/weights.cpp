#include <tuple>

#include "bindings/arrays.hpp"
#include "bindings/weight_memory.hpp"
#include "packing/packer.hpp"

using namespace nanobind::literals;

namespace nybble {
namespace {

StorageType storage_named(const std::string& name, bool wide_scales = false) {
    std::optional<StorageType> type = find_storage_type(name);
    require(type.has_value(), "unknown storage type");
    type->packed.wide_scales = wide_scales;
    return *type;
}

PackedFormat format_of(const std::string& storage, bool wide_scales, const std::string& layout) {
    PackedFormat format = storage_named(storage, wide_scales).packed;
    format.layout = layout_named(layout);
    require(format.is_possible(), "no such weights in this layout");
    return format;
}

// Whether `arrays` are all that `type` stores of equally many rows of k.
bool fit(const StorageType& type, const std::vector<StoredArray>& arrays, size_t k) {
    const RowBytes bytes = type.row_bytes(k);
    const size_t wanted[] = {bytes.data, bytes.scales, bytes.zero_points};
    const size_t count = type.is_separate() ? type.packed.has_offsets ? 3 : 2 : 1;
    if (arrays.size() != count) return false;
    for (size_t i = 0; i < count; ++i) {
        if (arrays[i].shape(0) != arrays[0].shape(0) || arrays[i].shape(1) != wanted[i]) return false;
    }
    return true;
}

// Tensors stacked along N, each the arrays that store it, packed at `offset` of `memory`. Also the (part, row) of a
// scale that is not finite.
using PackResult = std::pair<std::shared_ptr<PackedMatrix>, std::optional<std::pair<size_t, size_t>>>;
PackResult pack(const WeightMemory& memory, size_t offset,
                const std::vector<std::pair<std::string, std::vector<StoredArray>>>& parts, size_t k,
                ThreadPool& threads, bool wide_scales, const std::string& layout) {
    require(!parts.empty() && k > 0, "nothing to pack");
    const PackedFormat format = format_of(parts[0].first, wide_scales, layout);
    size_t n = 0;
    std::vector<StorageType> types;
    for (const auto& [name, arrays] : parts) {
        const StorageType& type = types.emplace_back(storage_named(name, wide_scales));
        require(format_of(name, wide_scales, layout) == format, "stacked tensors must have one packed format");
        require(type.elements % 16 == 0 || type.elements >= k || !type.is_separate(), "a block is no multiple of 16");
        require(fit(type, arrays, k), "row bytes do not match k");
        n += arrays[0].shape(0);
    }
    const size_t bytes = format.matrix_bytes(n, k), available = memory.memory->bytes();
    require(offset % kCacheLine == 0 && offset <= available && bytes <= available - offset, "weight memory too small");
    auto matrix = std::make_shared<PackedMatrix>(format, n, k, memory.memory->data() + offset, memory.memory);
    size_t channel = 0;
    nb::gil_scoped_release unlocked;
    for (size_t part = 0; part < parts.size(); ++part) {
        const std::vector<StoredArray>& arrays = parts[part].second;
        const auto data = [&](size_t index) { return index < arrays.size() ? arrays[index].data() : nullptr; };
        const size_t rows = arrays[0].shape(0);
        const size_t bad = pack_rows(*matrix, channel, {&types[part], {data(0), data(1), data(2)}, rows}, threads);
        if (bad != kAllFinite) return {matrix, std::pair{part, bad}};
        channel += rows;
    }
    return {matrix, std::nullopt};
}

// What pack() left at `offset`, or a file that was read there.
std::shared_ptr<PackedMatrix> packed_view(const WeightMemory& memory, size_t offset, const std::string& storage,
                                          size_t n, size_t k, bool wide_scales, const std::string& layout) {
    require(n > 0 && k > 0, "an empty matrix");
    const PackedFormat format = format_of(storage, wide_scales, layout);
    const size_t bytes = format.matrix_bytes(n, k), available = memory.memory->bytes();
    require(offset % kCacheLine == 0 && offset <= available && bytes <= available - offset, "weight memory too small");
    return std::make_shared<PackedMatrix>(format, n, k, memory.memory->data() + offset, memory.memory);
}

NumpyMatrix decode_rows(const PackedMatrix& matrix, size_t begin, size_t end) {
    require(begin <= end && end <= matrix.n(), "rows out of range");
    NumpyMatrix result = new_matrix(end - begin, matrix.k());
    for (size_t row = begin; row < end; ++row) matrix.decode_row(row, result.data() + (row - begin) * matrix.k());
    return result;
}

}  // namespace

void bind_weights(nb::module_& m) {
    m.def(
        "packed_format",
        [](const std::string& storage) {
            const PackedFormat format = storage_named(storage).packed;
            return std::tuple{std::string(name_of(format.type)), format.block, format.has_offsets};
        },
        "storage"_a, "What a storage type is packed as: (weights, block, has offsets).");
    m.def(
        "packed_bytes",
        [](const std::string& storage, size_t n, size_t k, bool wide_scales, const std::string& layout) {
            return format_of(storage, wide_scales, layout).matrix_bytes(n, k);
        },
        "storage"_a, "n"_a, "k"_a, "wide_scales"_a = false, "layout"_a = "panel32",
        "Bytes of the packed form of an (n, k) tensor.");
    m.def(
        "can_pack",
        [](const std::string& storage, const std::string& layout) {
            PackedFormat format = storage_named(storage).packed;
            format.layout = layout_named(layout);
            return format.is_possible();
        },
        "storage"_a, "layout"_a, "Whether the layout knows weights of that storage type.");
    m.def("pack", &pack, "memory"_a, "offset"_a, "parts"_a, "k"_a, "threads"_a, "wide_scales"_a = false,
          "layout"_a = "panel32");
    m.def("packed_view", &packed_view, "memory"_a, "offset"_a, "storage"_a, "n"_a, "k"_a, "wide_scales"_a = false,
          "layout"_a = "panel32", "The matrix of n x k weights of that storage type that lies packed at `offset`.");
    nb::class_<WeightMemory>(m, "WeightMemory").def(nb::init<size_t>(), "bytes"_a);
    nb::class_<PackedMatrix>(m, "PackedMatrix")
        .def_prop_ro("n", &PackedMatrix::n)
        .def_prop_ro("k", &PackedMatrix::k)
        .def_prop_ro("bytes", &PackedMatrix::bytes)
        .def("rows", &decode_rows, "begin"_a, "end"_a, "Decoded rows, fp32 (end - begin, k).");
}

}  // namespace nybble
