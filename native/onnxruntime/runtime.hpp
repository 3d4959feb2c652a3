// The functions a runtime has handed over, and its way of reporting failures.
#pragma once

#include <stdexcept>
#include <string>
#include <vector>

#include "onnxruntime/declarations.hpp"

namespace nybble::onnxruntime {

// What a kernel of an operator needs.
struct Runtime {
    explicit Runtime(const OrtApi* api);

#define OPERATOR_SLOT(place, name, result, parameters) result(*name) parameters;
#define PROVIDER_SLOT(place, name, result, parameters)
#define DEVICE_SLOT(place, name, result, parameters)
#include "onnxruntime/slots.inc"
#undef OPERATOR_SLOT
#undef PROVIDER_SLOT

    // Throws std::runtime_error with the message of a status that is a failure, and releases it.
    void check(OrtStatus* status) const;

    // Call function(); what it throws becomes a status.
    template <typename Function>
    OrtStatus* guard(const Function& function) const {
        try {
            function();
            return nullptr;
        } catch (const std::exception& error) {
            return CreateStatus(ORT_FAIL, error.what());
        }
    }
};

// What a provider needs on top.
struct ProviderRuntime : Runtime {
    explicit ProviderRuntime(const OrtApi* api);

#define OPERATOR_SLOT(place, name, result, parameters)
#define PROVIDER_SLOT(place, name, result, parameters) result(*name) parameters;
#include "onnxruntime/slots.inc"
#undef PROVIDER_SLOT
#undef DEVICE_SLOT
#define PROVIDER_SLOT(place, name, result, parameters)
#define DEVICE_SLOT(place, name, result, parameters) result(*name) parameters;
#include "onnxruntime/slots.inc"
#undef OPERATOR_SLOT
#undef PROVIDER_SLOT
#undef DEVICE_SLOT
};

// The table of `version`. Null when the runtime is older; `too_old` then says so.
const OrtApi* find_api(const OrtApiBase& base, uint32_t version, const char* what, OrtStatus*& too_old);

// A tensor that the runtime owns.
struct Tensor {
    ONNXTensorElementDataType type;
    std::vector<int64_t> shape;
    const void* data;

    size_t elements() const;
    template <typename T>
    const T* as() const {
        return static_cast<const T*>(data);
    }
};

Tensor tensor_of(const Runtime& runtime, const OrtValue* value);

}  // namespace nybble::onnxruntime
