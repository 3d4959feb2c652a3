#include "onnxruntime/weight_store.hpp"

#include <map>
#include <mutex>
#include <stdexcept>
#include <tuple>

#include "onnxruntime/fingerprint.hpp"
#include "packing/packer.hpp"

namespace nybble::onnxruntime {
namespace {

using Key = std::tuple<std::string, int64_t, int64_t, Fingerprint>;

size_t element_bytes(const Tensor& tensor) {
    switch (tensor.type) {
        case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT: return 4;
        case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16: return 2;
        default: return 1;
    }
}

Key key_of(const MatMulNBits& node) {
    Fingerprint fingerprint;
    for (const auto input : {MatMulNBits::codes, MatMulNBits::scales, MatMulNBits::zero_points}) {
        if (!node.is_given[input]) continue;
        const Tensor& tensor = node.constant(input);
        fingerprint.add(tensor.data, tensor.elements() * element_bytes(tensor));
    }
    return {storage_name_of(node), node.n, node.k, fingerprint};
}

std::shared_ptr<const PackedMatrix> pack(const MatMulNBits& node) {
    const StorageType storage = storage_of(node);
    const auto n = static_cast<size_t>(node.n), k = static_cast<size_t>(node.k);
    const auto memory = std::make_shared<Memory>(storage.packed.matrix_bytes(n, k), Pages::huge);
    const auto matrix = std::make_shared<PackedMatrix>(storage.packed, n, k, memory->data(), memory);
    const auto bytes_of = [&](MatMulNBits::Input input) {
        return node.is_given[input] ? node.constant(input).as<uint8_t>() : nullptr;
    };
    const StoredRow first = {bytes_of(MatMulNBits::codes), bytes_of(MatMulNBits::scales),
                             bytes_of(MatMulNBits::zero_points)};
    ThreadPool one_thread(1);  // the session's threads can't be had before it runs
    if (pack_rows(*matrix, 0, {&storage, first, n}, one_thread) != kAllFinite) {
        throw std::runtime_error("a scale is not finite in fp16");
    }
    return matrix;
}

}  // namespace

std::shared_ptr<const PackedMatrix> packed_weights(const MatMulNBits& node) {
    static std::mutex mutex;
    static std::map<Key, std::weak_ptr<const PackedMatrix>> living;
    const Key key = key_of(node);
    const std::lock_guard lock(mutex);
    std::erase_if(living, [](const auto& entry) { return entry.second.expired(); });
    std::weak_ptr<const PackedMatrix>& known = living[key];
    if (auto weights = known.lock()) return weights;
    const std::shared_ptr<const PackedMatrix> packed = pack(node);
    known = packed;
    return packed;
}

}  // namespace nybble::onnxruntime
