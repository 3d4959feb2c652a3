#include "onnxruntime/runtime.hpp"

#include <memory>

namespace nybble::onnxruntime {
namespace {

// The tables are structures of nothing but function pointers.
template <typename Function>
Function at_place(const void* table, size_t place) {
    return reinterpret_cast<Function>(static_cast<void* const*>(table)[place]);
}

}  // namespace

#define OPERATOR_SLOT(place, name, result, parameters) name = at_place<decltype(name)>(api, place);
#define PROVIDER_SLOT(place, name, result, parameters)
#define DEVICE_SLOT(place, name, result, parameters)
Runtime::Runtime(const OrtApi* api) {
#include "onnxruntime/slots.inc"
}
#undef OPERATOR_SLOT
#undef PROVIDER_SLOT
#undef DEVICE_SLOT

#define OPERATOR_SLOT(place, name, result, parameters)
#define PROVIDER_SLOT(place, name, result, parameters) name = at_place<decltype(name)>(api, place);
#define DEVICE_SLOT(place, name, result, parameters) name = at_place<decltype(name)>(GetEpApi(), place);
ProviderRuntime::ProviderRuntime(const OrtApi* api) : Runtime(api) {
#include "onnxruntime/slots.inc"
}
#undef OPERATOR_SLOT
#undef PROVIDER_SLOT
#undef DEVICE_SLOT

void Runtime::check(OrtStatus* status) const {
    if (status == nullptr) return;
    const std::string message = GetErrorMessage(status);
    ReleaseStatus(status);
    throw std::runtime_error(message);
}

const OrtApi* find_api(const OrtApiBase& base, uint32_t version, const char* what, OrtStatus*& too_old) {
    if (const OrtApi* api = base.GetApi(version)) return api;
    // Version 1 has all that is needed to report an error.
    const std::string message = std::string("nybble's ") + what + " needs ONNX Runtime 1." + std::to_string(version) +
                                " or newer, this is " + base.GetVersionString() + ": upgrade onnxruntime";
    too_old = at_place<decltype(Runtime::CreateStatus)>(base.GetApi(1), 0)(ORT_NOT_IMPLEMENTED, message.c_str());
    return nullptr;
}

size_t Tensor::elements() const {
    size_t count = 1;
    for (const int64_t dimension : shape) {
        if (__builtin_mul_overflow(count, static_cast<size_t>(dimension), &count)) throw std::bad_alloc();
    }
    return count;
}

Tensor tensor_of(const Runtime& runtime, const OrtValue* value) {
    OrtTensorTypeAndShapeInfo* info = nullptr;
    runtime.check(runtime.GetTensorTypeAndShape(value, &info));
    const std::unique_ptr<OrtTensorTypeAndShapeInfo, decltype(runtime.ReleaseTensorTypeAndShapeInfo)> owner(
        info, runtime.ReleaseTensorTypeAndShapeInfo);
    Tensor tensor{};
    size_t rank = 0;
    runtime.check(runtime.GetTensorElementType(info, &tensor.type));
    runtime.check(runtime.GetDimensionsCount(info, &rank));
    tensor.shape.resize(rank);
    runtime.check(runtime.GetDimensions(info, tensor.shape.data(), rank));
    void* data = nullptr;
    // Only this function gives the data; constants are not written to.
    runtime.check(runtime.GetTensorMutableData(const_cast<OrtValue*>(value), &data));
    tensor.data = data;
    return tensor;
}

}  // namespace nybble::onnxruntime
