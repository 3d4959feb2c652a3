// Compiles only if what native/onnxruntime declares by hand is what ONNX Runtime's own headers say.
#include <onnxruntime_c_api.h>

#include <type_traits>

#include "onnxruntime/declarations.hpp"

namespace ours = nybble::onnxruntime;

// In this scope the names in slots.inc are the headers' own. A function of theirs converts to one of ours that may
// throw.
#define SAME_SLOT(table, place, name, result, parameters)                             \
    static_assert(offsetof(table, name) == (place) * sizeof(void*), #name ": place"); \
    static_assert(std::is_convertible_v<decltype(table::name), result(*) parameters>, #name ": type");
#define OPERATOR_SLOT(...) SAME_SLOT(OrtApi, __VA_ARGS__)
#define PROVIDER_SLOT(...) SAME_SLOT(OrtApi, __VA_ARGS__)
#define DEVICE_SLOT(...) SAME_SLOT(OrtEpApi, __VA_ARGS__)
#include "onnxruntime/slots.inc"

// Types inside differ by name only; that there are as many parameters is what can be compared.
template <typename Ours, typename Theirs>
struct AlikeFunctions : std::false_type {};
template <typename R, typename... P, typename S, typename... Q>
struct AlikeFunctions<R (*)(P...), S (*)(Q...)>
    : std::bool_constant<sizeof...(P) == sizeof...(Q) && std::is_void_v<R> == std::is_void_v<S>> {};
template <typename R, typename... P, typename S, typename... Q>
struct AlikeFunctions<R (*)(P...), S (*)(Q...) noexcept> : AlikeFunctions<R (*)(P...), S (*)(Q...)> {};

#define SAME_FUNCTION(type, member)                                                              \
    static_assert(offsetof(ours::type, member) == offsetof(::type, member), #type "::" #member); \
    static_assert(AlikeFunctions<decltype(ours::type::member), decltype(::type::member)>::value, #type "::" #member);
#define SAME_MEMBER(type, member) \
    static_assert(offsetof(ours::type, member) == offsetof(::type, member), #type "::" #member);
#define SAME_CONSTANT(name) static_assert(static_cast<int>(ours::name) == static_cast<int>(::name), #name);

SAME_FUNCTION(OrtApiBase, GetApi)
SAME_FUNCTION(OrtApiBase, GetVersionString)

SAME_MEMBER(OrtCustomOp, version)
SAME_FUNCTION(OrtCustomOp, CreateKernel)
SAME_FUNCTION(OrtCustomOp, GetName)
SAME_FUNCTION(OrtCustomOp, GetExecutionProviderType)
SAME_FUNCTION(OrtCustomOp, GetInputType)
SAME_FUNCTION(OrtCustomOp, GetInputTypeCount)
SAME_FUNCTION(OrtCustomOp, GetOutputType)
SAME_FUNCTION(OrtCustomOp, GetOutputTypeCount)
SAME_FUNCTION(OrtCustomOp, KernelCompute)
SAME_FUNCTION(OrtCustomOp, KernelDestroy)
SAME_FUNCTION(OrtCustomOp, GetInputCharacteristic)
SAME_FUNCTION(OrtCustomOp, GetOutputCharacteristic)
SAME_FUNCTION(OrtCustomOp, GetInputMemoryType)
SAME_FUNCTION(OrtCustomOp, GetVariadicInputMinArity)
SAME_FUNCTION(OrtCustomOp, GetVariadicInputHomogeneity)
SAME_FUNCTION(OrtCustomOp, GetVariadicOutputMinArity)
SAME_FUNCTION(OrtCustomOp, GetVariadicOutputHomogeneity)
SAME_FUNCTION(OrtCustomOp, CreateKernelV2)
SAME_FUNCTION(OrtCustomOp, KernelComputeV2)
SAME_FUNCTION(OrtCustomOp, InferOutputShapeFn)
SAME_FUNCTION(OrtCustomOp, GetStartVersion)
SAME_FUNCTION(OrtCustomOp, GetEndVersion)

SAME_MEMBER(OrtNodeFusionOptions, ort_version_supported)
SAME_MEMBER(OrtNodeFusionOptions, drop_constant_initializers)

SAME_MEMBER(OrtNodeComputeInfo, ort_version_supported)
SAME_FUNCTION(OrtNodeComputeInfo, CreateState)
SAME_FUNCTION(OrtNodeComputeInfo, Compute)
SAME_FUNCTION(OrtNodeComputeInfo, ReleaseState)

SAME_MEMBER(OrtEp, ort_version_supported)
SAME_FUNCTION(OrtEp, GetName)
SAME_FUNCTION(OrtEp, GetCapability)
SAME_FUNCTION(OrtEp, Compile)
SAME_FUNCTION(OrtEp, ReleaseNodeComputeInfos)
static_assert(offsetof(ours::OrtEp, optional) == offsetof(::OrtEp, GetPreferredDataLayout));
static_assert(sizeof(ours::OrtEp) >= offsetof(::OrtEp, GetCompiledModelCompatibilityInfo) + sizeof(void*));

SAME_MEMBER(OrtEpFactory, ort_version_supported)
SAME_FUNCTION(OrtEpFactory, GetName)
SAME_FUNCTION(OrtEpFactory, GetVendor)
SAME_FUNCTION(OrtEpFactory, GetSupportedDevices)
SAME_FUNCTION(OrtEpFactory, CreateEp)
SAME_FUNCTION(OrtEpFactory, ReleaseEp)
SAME_FUNCTION(OrtEpFactory, GetVendorId)
SAME_FUNCTION(OrtEpFactory, GetVersion)
SAME_MEMBER(OrtEpFactory, ValidateCompiledModelCompatibilityInfo)
SAME_FUNCTION(OrtEpFactory, CreateAllocator)
SAME_FUNCTION(OrtEpFactory, ReleaseAllocator)
SAME_FUNCTION(OrtEpFactory, CreateDataTransfer)
SAME_FUNCTION(OrtEpFactory, IsStreamAware)
SAME_MEMBER(OrtEpFactory, CreateSyncStreamForDevice)

SAME_CONSTANT(ORT_FAIL)
SAME_CONSTANT(ORT_NOT_IMPLEMENTED)
SAME_CONSTANT(ORT_OP_ATTR_INT)
SAME_CONSTANT(OrtHardwareDeviceType_CPU)
SAME_CONSTANT(INPUT_OUTPUT_REQUIRED)
SAME_CONSTANT(INPUT_OUTPUT_OPTIONAL)
SAME_CONSTANT(OrtMemTypeDefault)
SAME_CONSTANT(ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED)
SAME_CONSTANT(ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT)
SAME_CONSTANT(ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8)
SAME_CONSTANT(ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32)
SAME_CONSTANT(ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16)
