// A CUDA driver over host memory, compiled against the real cuda.h: whatever tfctr/engines/tensorrt_cuda.py binds must
// have these names and types. Work is done at once; a recorded graph does nothing.
#include <cuda.h>
#include <stdlib.h>
#include <string.h>

static const CUcontext kContext = (CUcontext)0x123456789abcULL;  // needs all 64 bits
static const size_t kMostBytes = (size_t)1 << 33;

static CUresult expect(int holds) { return holds ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE; }

static void* memory(size_t bytes) { return aligned_alloc(256, (bytes + 255) / 256 * 256); }

CUresult CUDAAPI cuInit(unsigned int flags) { return expect(flags == 0); }

CUresult CUDAAPI cuDriverGetVersion(int* version) {
  *version = CUDA_VERSION;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGetErrorName(CUresult error, const char** text) {
  *text = error == CUDA_ERROR_OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_INVALID_VALUE";
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGetErrorString(CUresult error, const char** text) {
  *text = error == CUDA_ERROR_OUT_OF_MEMORY ? "out of memory" : "invalid argument";
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGet(CUdevice* device, int ordinal) {
  *device = 7;
  return expect(ordinal == 0);
}

CUresult CUDAAPI cuDeviceGetName(char* name, int size, CUdevice device) {
  strncpy(name, "Stub GPU", (size_t)size);
  return expect(device == 7);
}

CUresult CUDAAPI cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
  *value = attribute == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR ? 12 : 1;
  return expect(device == 7 && (*value == 12 || attribute == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR));
}

CUresult CUDAAPI cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  *context = kContext;
  return expect(device == 7);
}

CUresult CUDAAPI cuCtxSetCurrent(CUcontext context) { return expect(context == kContext); }

CUresult CUDAAPI cuStreamCreate(CUstream* stream, unsigned int flags) {
  *stream = (CUstream)memory(1);
  return expect(flags == CU_STREAM_NON_BLOCKING);
}

CUresult CUDAAPI cuStreamDestroy(CUstream stream) {
  free(stream);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuStreamSynchronize(CUstream stream) { return expect(stream != NULL); }

CUresult CUDAAPI cuMemAlloc(CUdeviceptr* address, size_t bytes) {
  if (bytes > kMostBytes) return CUDA_ERROR_OUT_OF_MEMORY;
  *address = (CUdeviceptr)memory(bytes);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemFree(CUdeviceptr address) {
  free((void*)address);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemHostAlloc(void** address, size_t bytes, unsigned int flags) {
  *address = memory(bytes);
  return expect(flags == 0);
}

CUresult CUDAAPI cuMemFreeHost(void* address) {
  free(address);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemcpyHtoDAsync(CUdeviceptr device, const void* host, size_t bytes, CUstream stream) {
  memcpy((void*)device, host, bytes);
  return expect(stream != NULL);
}

CUresult CUDAAPI cuMemcpyDtoHAsync(void* host, CUdeviceptr device, size_t bytes, CUstream stream) {
  memcpy(host, (const void*)device, bytes);
  return expect(stream != NULL);
}

CUresult CUDAAPI cuStreamBeginCapture(CUstream stream, CUstreamCaptureMode mode) {
  return expect(stream != NULL && mode == CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
}

CUresult CUDAAPI cuStreamEndCapture(CUstream stream, CUgraph* graph) {
  *graph = (CUgraph)memory(1);
  return expect(stream != NULL);
}

CUresult CUDAAPI cuGraphInstantiate(CUgraphExec* made, CUgraph graph, unsigned long long flags) {
  *made = (CUgraphExec)memory(1);
  return expect(graph != NULL && flags == 0);
}

CUresult CUDAAPI cuGraphLaunch(CUgraphExec graph, CUstream stream) { return expect(graph != NULL && stream != NULL); }

CUresult CUDAAPI cuGraphExecDestroy(CUgraphExec graph) {
  free(graph);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGraphDestroy(CUgraph graph) {
  free(graph);
  return CUDA_SUCCESS;
}
