// The library as a plugin execution provider: it claims the MatMulNBits nodes of unmodified models, each on its own,
// and leaves to ONNX Runtime what it refuses.
#include <memory>
#include <string_view>

#include "onnxruntime/linear.hpp"

namespace nybble::onnxruntime {
namespace {

constexpr const char* kName = "nybble";

int64_t read_attribute(const ProviderRuntime& runtime, const OrtNode* node, const char* name, int64_t value) {
    const OrtOpAttr* attribute = nullptr;
    if (OrtStatus* status = runtime.Node_GetAttributeByName(node, name, &attribute)) {
        runtime.ReleaseStatus(status);  // a missing one is an error for some versions
        return value;
    }
    size_t needed = 0;
    if (attribute != nullptr) {
        runtime.check(runtime.ReadOpAttr(attribute, ORT_OP_ATTR_INT, &value, sizeof value, &needed));
    }
    return value;
}

MatMulNBits read_node(const ProviderRuntime& runtime, const OrtNode* from) {
    MatMulNBits node;
    const char* name = nullptr;
    runtime.check(runtime.Node_GetName(from, &name));
    node.name = name;
    node.k = read_attribute(runtime, from, "K", node.k);
    node.n = read_attribute(runtime, from, "N", node.n);
    node.bits = read_attribute(runtime, from, "bits", node.bits);
    node.block = read_attribute(runtime, from, "block_size", node.block);
    node.accuracy_level = read_attribute(runtime, from, "accuracy_level", node.accuracy_level);
    size_t count = 0;
    runtime.check(runtime.Node_GetNumInputs(from, &count));
    std::vector<const OrtValueInfo*> inputs(count);
    runtime.check(runtime.Node_GetInputs(from, inputs.data(), count));
    for (size_t input = 0; input < std::min<size_t>(count, MatMulNBits::inputs); ++input) {
        if (inputs[input] == nullptr) continue;  // one left out
        runtime.check(runtime.GetValueInfoName(inputs[input], &name));
        node.is_given[input] = *name != '\0';
        bool is_constant = false;
        if (node.is_given[input]) runtime.check(runtime.ValueInfo_IsConstantInitializer(inputs[input], &is_constant));
        const OrtValue* value = nullptr;
        if (is_constant) runtime.check(runtime.ValueInfo_GetInitializerValue(inputs[input], &value));
        if (value != nullptr) node.constants[input] = tensor_of(runtime, value);
    }
    return node;
}

std::vector<const OrtNode*> nodes_of(const ProviderRuntime& runtime, const OrtGraph* graph) {
    size_t count = 0;
    runtime.check(runtime.Graph_GetNumNodes(graph, &count));
    std::vector<const OrtNode*> nodes(count);
    runtime.check(runtime.Graph_GetNodes(graph, nodes.data(), count));
    return nodes;
}

bool is_matmul_nbits(const ProviderRuntime& runtime, const OrtNode* node) {
    const char *type = nullptr, *domain = nullptr;
    runtime.check(runtime.Node_GetOperatorType(node, &type));
    runtime.check(runtime.Node_GetDomain(node, &domain));
    return type == std::string_view("MatMulNBits") && domain == std::string_view("com.microsoft");
}

// Of one claimed node, which has become a graph with the activations as its only input.
struct ComputeInfo : OrtNodeComputeInfo {
    ComputeInfo(const ProviderRuntime& of, const MatMulNBits& node) : OrtNodeComputeInfo{}, runtime(of), linear(node) {
        ort_version_supported = kProviderVersion;
        CreateState = [](OrtNodeComputeInfo* self, OrtNodeComputeContext*, void** state) -> OrtStatus* {
            *state = self;  // runs share nothing that changes
            return nullptr;
        };
        Compute = [](OrtNodeComputeInfo* info, void*, OrtKernelContext* context) {
            const auto& self = *static_cast<const ComputeInfo*>(info);
            return self.runtime.guard([&] { self.linear.run(self.runtime, context); });
        };
        ReleaseState = [](OrtNodeComputeInfo*, void*) {};
    }

    const ProviderRuntime& runtime;
    Linear linear;
};

struct Provider : OrtEp {
    explicit Provider(const ProviderRuntime& of) : OrtEp{}, runtime(of) {
        ort_version_supported = kProviderVersion;
        GetName = [](const OrtEp*) { return kName; };
        GetCapability = [](OrtEp* ep, const OrtGraph* graph, OrtEpGraphSupportInfo* support) {
            const auto& self = *static_cast<Provider*>(ep);
            return self.runtime.guard([&] { self.claim(graph, support); });
        };
        Compile = [](OrtEp* ep, const OrtGraph** graphs, const OrtNode**, size_t count, OrtNodeComputeInfo** infos,
                     OrtNode**) {
            const auto& self = *static_cast<Provider*>(ep);
            return self.runtime.guard([&] { self.compile(graphs, count, infos); });
        };
        ReleaseNodeComputeInfos = [](OrtEp*, OrtNodeComputeInfo** infos, size_t count) {
            for (size_t i = 0; i < count; ++i) delete static_cast<ComputeInfo*>(infos[i]);
        };
    }

    void claim(const OrtGraph* graph, OrtEpGraphSupportInfo* support) const {
        const OrtNode* parent = nullptr;
        runtime.check(runtime.Graph_GetParentNode(graph, &parent));
        if (parent != nullptr) return;  // a branch or loop body, whose weights can lie outside
        for (const OrtNode* from : nodes_of(runtime, graph)) {
            if (!is_matmul_nbits(runtime, from)) continue;
            const MatMulNBits node = read_node(runtime, from);
            if (node.constants[MatMulNBits::activations] || refusal(node)) continue;
            // On fp32 activations ONNX Runtime is the faster one for few rows, and exact.
            if (!node.rounds_activations()) continue;
            OrtNodeFusionOptions options{};
            options.ort_version_supported = kProviderVersion;
            options.drop_constant_initializers = true;  // they are packed
            runtime.check(runtime.EpGraphSupportInfo_AddNodesToFuse(support, &from, 1, &options));
        }
    }

    void compile(const OrtGraph** graphs, size_t count, OrtNodeComputeInfo** infos) const {
        std::vector<std::unique_ptr<ComputeInfo>> made;
        for (size_t i = 0; i < count; ++i) {
            const MatMulNBits node = read_node(runtime, nodes_of(runtime, graphs[i]).at(0));
            made.push_back(std::make_unique<ComputeInfo>(runtime, node));
        }
        for (size_t i = 0; i < count; ++i) infos[i] = made[i].release();
    }

    const ProviderRuntime& runtime;
};

struct Factory : OrtEpFactory {
    explicit Factory(const OrtApi* api) : OrtEpFactory{}, runtime(api) {
        ort_version_supported = kProviderVersion;
        GetName = [](const OrtEpFactory*) { return kName; };
        GetVendor = [](const OrtEpFactory*) { return kName; };
        GetVendorId = [](const OrtEpFactory*) -> uint32_t { return 0; };
        GetVersion = [](const OrtEpFactory*) { return NYBBLE_VERSION; };
        GetSupportedDevices = [](OrtEpFactory* factory, const OrtHardwareDevice* const* devices, size_t count,
                                 OrtEpDevice** ep_devices, size_t most, size_t* found) {
            const auto& self = *static_cast<Factory*>(factory);
            *found = 0;
            return self.runtime.guard([&] {
                for (size_t i = 0; i < count && *found < most; ++i) {
                    if (self.runtime.HardwareDevice_Type(devices[i]) != OrtHardwareDeviceType_CPU) continue;
                    self.runtime.check(
                        self.runtime.CreateEpDevice(factory, devices[i], nullptr, nullptr, &ep_devices[*found]));
                    ++*found;
                }
            });
        };
        CreateEp = [](OrtEpFactory* factory, const OrtHardwareDevice* const*, const OrtKeyValuePairs* const*, size_t,
                      const OrtSessionOptions*, const OrtLogger*, OrtEp** ep) {
            const auto& self = *static_cast<Factory*>(factory);
            return self.runtime.guard([&] { *ep = new Provider(self.runtime); });
        };
        ReleaseEp = [](OrtEpFactory*, OrtEp* ep) { delete static_cast<Provider*>(ep); };
        // Its memory is the CPU's, which the runtime allocates and need not copy.
        CreateAllocator = [](OrtEpFactory*, const void*, const OrtKeyValuePairs*, void** allocator) -> OrtStatus* {
            *allocator = nullptr;
            return nullptr;
        };
        ReleaseAllocator = [](OrtEpFactory*, void*) {};
        CreateDataTransfer = [](OrtEpFactory*, void** transfer) -> OrtStatus* {
            *transfer = nullptr;
            return nullptr;
        };
        IsStreamAware = [](const OrtEpFactory*) { return false; };
    }

    ProviderRuntime runtime;
};

}  // namespace
}  // namespace nybble::onnxruntime

extern "C" __attribute__((visibility("default"))) nybble::onnxruntime::OrtStatus* CreateEpFactories(
    const char*, const nybble::onnxruntime::OrtApiBase* base, const nybble::onnxruntime::OrtLogger*,
    nybble::onnxruntime::OrtEpFactory** factories, size_t most, size_t* count) {
    using namespace nybble::onnxruntime;
    *count = 0;
    OrtStatus* too_old = nullptr;
    const OrtApi* api = find_api(*base, kProviderVersion, "execution provider", too_old);
    if (api == nullptr) return too_old;
    const Runtime runtime(api);
    return runtime.guard([&] {
        if (most == 0) throw std::runtime_error("no room for an execution provider");
        factories[0] = new Factory(api);
        *count = 1;
    });
}

extern "C" __attribute__((visibility("default"))) nybble::onnxruntime::OrtStatus* ReleaseEpFactory(
    nybble::onnxruntime::OrtEpFactory* factory) {
    delete static_cast<nybble::onnxruntime::Factory*>(factory);
    return nullptr;
}
