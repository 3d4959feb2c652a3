// As much of ONNX Runtime's C interface as is used. Nothing is linked: the runtime hands its functions over in a table.
// Names are the interface's own. Structures that a library fills in state the version they were written for, and the
// runtime reads no further than that version had members.
#pragma once

#include <cstddef>
#include <cstdint>

namespace nybble::onnxruntime {

inline constexpr uint32_t kOperatorVersion = 17;  // the first with KernelContext_ParallelFor
inline constexpr uint32_t kProviderVersion = 23;  // the first with plugin execution providers

struct OrtApi;
struct OrtEpApi;
struct OrtStatus;
struct OrtSessionOptions;
struct OrtCustomOpDomain;
struct OrtKernelInfo;
struct OrtKernelContext;
struct OrtValue;
struct OrtTypeInfo;
struct OrtTensorTypeAndShapeInfo;
struct OrtShapeInferContext;
struct OrtValueInfo;
struct OrtGraph;
struct OrtNode;
struct OrtOpAttr;
struct OrtHardwareDevice;
struct OrtKeyValuePairs;
struct OrtEpDevice;
struct OrtEpGraphSupportInfo;
struct OrtNodeComputeContext;
struct OrtLogger;

enum OrtErrorCode : int { ORT_FAIL = 1, ORT_NOT_IMPLEMENTED = 9 };
enum OrtOpAttrType : int { ORT_OP_ATTR_INT = 1 };
enum OrtHardwareDeviceType : int { OrtHardwareDeviceType_CPU = 0 };
enum OrtCustomOpInputOutputCharacteristic : int { INPUT_OUTPUT_REQUIRED = 0, INPUT_OUTPUT_OPTIONAL = 1 };
enum OrtMemType : int { OrtMemTypeDefault = 0 };
enum ONNXTensorElementDataType : int {
    ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED = 0,
    ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT = 1,
    ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8 = 2,
    ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32 = 6,
    ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16 = 10,
};

struct OrtApiBase {
    const OrtApi* (*GetApi)(uint32_t version);  // null: the runtime is older
    const char* (*GetVersionString)();
};

struct OrtCustomOp {
    uint32_t version;
    void* (*CreateKernel)(const OrtCustomOp*, const OrtApi*, const OrtKernelInfo*);  // CreateKernelV2 is called instead
    const char* (*GetName)(const OrtCustomOp*);
    const char* (*GetExecutionProviderType)(const OrtCustomOp*);
    ONNXTensorElementDataType (*GetInputType)(const OrtCustomOp*, size_t index);
    size_t (*GetInputTypeCount)(const OrtCustomOp*);
    ONNXTensorElementDataType (*GetOutputType)(const OrtCustomOp*, size_t index);
    size_t (*GetOutputTypeCount)(const OrtCustomOp*);
    void (*KernelCompute)(void* kernel, OrtKernelContext*);  // KernelComputeV2 is called instead
    void (*KernelDestroy)(void* kernel);
    OrtCustomOpInputOutputCharacteristic (*GetInputCharacteristic)(const OrtCustomOp*, size_t index);
    OrtCustomOpInputOutputCharacteristic (*GetOutputCharacteristic)(const OrtCustomOp*, size_t index);
    OrtMemType (*GetInputMemoryType)(const OrtCustomOp*, size_t index);
    int (*GetVariadicInputMinArity)(const OrtCustomOp*);
    int (*GetVariadicInputHomogeneity)(const OrtCustomOp*);
    int (*GetVariadicOutputMinArity)(const OrtCustomOp*);
    int (*GetVariadicOutputHomogeneity)(const OrtCustomOp*);
    OrtStatus* (*CreateKernelV2)(const OrtCustomOp*, const OrtApi*, const OrtKernelInfo*, void** kernel);
    OrtStatus* (*KernelComputeV2)(void* kernel, OrtKernelContext*);
    OrtStatus* (*InferOutputShapeFn)(const OrtCustomOp*, OrtShapeInferContext*);
    int (*GetStartVersion)(const OrtCustomOp*);
    int (*GetEndVersion)(const OrtCustomOp*);
};

struct OrtNodeFusionOptions {
    uint32_t ort_version_supported;
    bool drop_constant_initializers;
};

struct OrtNodeComputeInfo {
    uint32_t ort_version_supported;
    OrtStatus* (*CreateState)(OrtNodeComputeInfo*, OrtNodeComputeContext*, void** state);
    OrtStatus* (*Compute)(OrtNodeComputeInfo*, void* state, OrtKernelContext*);
    void (*ReleaseState)(OrtNodeComputeInfo*, void* state);
};

struct OrtEp {
    uint32_t ort_version_supported;
    const char* (*GetName)(const OrtEp*);
    OrtStatus* (*GetCapability)(OrtEp*, const OrtGraph*, OrtEpGraphSupportInfo*);
    OrtStatus* (*Compile)(OrtEp*, const OrtGraph** graphs, const OrtNode** fused_nodes, size_t count,
                          OrtNodeComputeInfo** infos, OrtNode** context_nodes);
    void (*ReleaseNodeComputeInfos)(OrtEp*, OrtNodeComputeInfo** infos, size_t count);
    void* optional[8];  // null: the runtime's defaults
};

struct OrtEpFactory {
    uint32_t ort_version_supported;
    const char* (*GetName)(const OrtEpFactory*);
    const char* (*GetVendor)(const OrtEpFactory*);
    OrtStatus* (*GetSupportedDevices)(OrtEpFactory*, const OrtHardwareDevice* const* devices, size_t count,
                                      OrtEpDevice** ep_devices, size_t most, size_t* found);
    OrtStatus* (*CreateEp)(OrtEpFactory*, const OrtHardwareDevice* const* devices,
                           const OrtKeyValuePairs* const* metadata, size_t count, const OrtSessionOptions*,
                           const OrtLogger*, OrtEp** ep);
    void (*ReleaseEp)(OrtEpFactory*, OrtEp*);
    uint32_t (*GetVendorId)(const OrtEpFactory*);
    const char* (*GetVersion)(const OrtEpFactory*);
    void* ValidateCompiledModelCompatibilityInfo;  // null: models are not compiled ahead
    OrtStatus* (*CreateAllocator)(OrtEpFactory*, const void* memory_info, const OrtKeyValuePairs*, void** allocator);
    void (*ReleaseAllocator)(OrtEpFactory*, void* allocator);
    OrtStatus* (*CreateDataTransfer)(OrtEpFactory*, void** transfer);
    bool (*IsStreamAware)(const OrtEpFactory*);
    void* CreateSyncStreamForDevice;  // null: not stream aware
};

}  // namespace nybble::onnxruntime
