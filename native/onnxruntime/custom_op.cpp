// The library as one of custom operators: `SessionOptions.register_custom_ops_library`. The operator MatMulNBits of the
// domain nybble has the inputs and attributes of com.microsoft's, so that a model changes by the domain of a node only.
#include <map>
#include <memory>
#include <mutex>

#include "onnxruntime/linear.hpp"

namespace nybble::onnxruntime {
namespace {

constexpr const char* kDomain = "nybble";
constexpr const char* kName = "MatMulNBits";

// A runtime that writes names into memory of ours says how many bytes it needs, the final zero included.
template <typename Function>
std::string read_name(const Runtime& runtime, const Function& function) {
    size_t bytes = 0;
    // It fails for want of room, or has nothing to write.
    if (OrtStatus* status = function(nullptr, &bytes)) runtime.ReleaseStatus(status);
    std::string name(bytes, '\0');
    runtime.check(function(name.data(), &bytes));
    name.resize(bytes == 0 ? 0 : bytes - 1);
    return name;
}

// Missing: stays what it is.
void read_attribute(const Runtime& runtime, const OrtKernelInfo* info, const char* name, int64_t& value) {
    int64_t found = 0;
    if (OrtStatus* status = runtime.KernelInfoGetAttribute_int64(info, name, &found)) {
        runtime.ReleaseStatus(status);
        return;
    }
    value = found;
}

MatMulNBits read_node(const Runtime& runtime, const OrtKernelInfo* info) {
    MatMulNBits node;
    node.name = read_name(runtime,
                          [&](char* name, size_t* bytes) { return runtime.KernelInfo_GetNodeName(info, name, bytes); });
    read_attribute(runtime, info, "K", node.k);
    read_attribute(runtime, info, "N", node.n);
    read_attribute(runtime, info, "bits", node.bits);
    read_attribute(runtime, info, "block_size", node.block);
    read_attribute(runtime, info, "accuracy_level", node.accuracy_level);
    size_t count = 0;
    runtime.check(runtime.KernelInfo_GetInputCount(info, &count));
    for (size_t input = 0; input < std::min<size_t>(count, MatMulNBits::inputs); ++input) {
        node.is_given[input] = !read_name(runtime, [&](char* name, size_t* bytes) {
                                    return runtime.KernelInfo_GetInputName(info, input, name, bytes);
                                }).empty();
        int is_constant = 0;
        const OrtValue* value = nullptr;
        if (input == MatMulNBits::activations || !node.is_given[input]) continue;
        runtime.check(runtime.KernelInfoGetConstantInput_tensor(info, input, &is_constant, &value));
        if (is_constant != 0 && value != nullptr) node.constants[input] = tensor_of(runtime, value);
    }
    return node;
}

struct Kernel {
    Runtime runtime;
    Linear linear;
};

OrtStatus* create_kernel(const OrtCustomOp*, const OrtApi* api, const OrtKernelInfo* info, void** kernel) {
    const Runtime runtime(api);
    return runtime.guard([&] { *kernel = new Kernel{runtime, Linear(read_node(runtime, info))}; });
}

OrtStatus* compute(void* kernel, OrtKernelContext* context) {
    const auto& [runtime, linear] = *static_cast<const Kernel*>(kernel);
    return runtime.guard([&] { linear.run(runtime, context); });
}

// One operator for each type of activations; the runtime picks by the types of a node.
template <ONNXTensorElementDataType Type>
constexpr OrtCustomOp operator_for() {
    OrtCustomOp op{};
    op.version = kOperatorVersion;
    op.GetName = [](const OrtCustomOp*) { return kName; };
    op.GetExecutionProviderType = [](const OrtCustomOp*) -> const char* { return nullptr; };  // the CPU's
    op.GetInputTypeCount = [](const OrtCustomOp*) -> size_t { return MatMulNBits::inputs; };
    op.GetInputType = [](const OrtCustomOp*, size_t index) {
        switch (index) {
            case MatMulNBits::codes: return ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8;
            case MatMulNBits::zero_points: return ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;  // codes or floats
            case MatMulNBits::group_index: return ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32;
            default: return Type;
        }
    };
    op.GetInputCharacteristic = [](const OrtCustomOp*, size_t index) {
        return index < MatMulNBits::zero_points ? INPUT_OUTPUT_REQUIRED : INPUT_OUTPUT_OPTIONAL;
    };
    op.GetInputMemoryType = [](const OrtCustomOp*, size_t) { return OrtMemTypeDefault; };
    op.GetOutputTypeCount = [](const OrtCustomOp*) -> size_t { return 1; };
    op.GetOutputType = [](const OrtCustomOp*, size_t) { return Type; };
    op.GetOutputCharacteristic = [](const OrtCustomOp*, size_t) { return INPUT_OUTPUT_REQUIRED; };
    op.CreateKernelV2 = create_kernel;
    op.KernelComputeV2 = compute;
    op.KernelDestroy = [](void* kernel) { delete static_cast<Kernel*>(kernel); };
    op.GetStartVersion = [](const OrtCustomOp*) { return 1; };
    op.GetEndVersion = [](const OrtCustomOp*) { return INT32_MAX; };
    return op;
}

constexpr OrtCustomOp kOperators[] = {operator_for<ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT>(),
                                      operator_for<ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16>()};

// One for each runtime in this process; sessions refer to it for as long as they live, so it is never released.
OrtCustomOpDomain* domain_of(const OrtApi* api, const Runtime& runtime) {
    static std::mutex mutex;
    static std::map<const OrtApi*, OrtCustomOpDomain*> domains;
    const std::lock_guard lock(mutex);
    OrtCustomOpDomain*& domain = domains[api];
    if (domain == nullptr) {
        runtime.check(runtime.CreateCustomOpDomain(kDomain, &domain));
        for (const OrtCustomOp& op : kOperators) runtime.check(runtime.CustomOpDomain_Add(domain, &op));
    }
    return domain;
}

}  // namespace
}  // namespace nybble::onnxruntime

extern "C" __attribute__((visibility("default"))) nybble::onnxruntime::OrtStatus* RegisterCustomOps(
    nybble::onnxruntime::OrtSessionOptions* options, const nybble::onnxruntime::OrtApiBase* base) {
    using namespace nybble::onnxruntime;
    OrtStatus* too_old = nullptr;
    const OrtApi* api = find_api(*base, kOperatorVersion, "custom operator", too_old);
    if (api == nullptr) return too_old;
    const Runtime runtime(api);
    return runtime.guard([&] { runtime.check(runtime.AddCustomOpDomain(options, domain_of(api, runtime))); });
}
