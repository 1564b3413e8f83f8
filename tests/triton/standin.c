/* A stand-in for libcuda.so.1 on a machine without a GPU: it checks what a driver would refuse, runs
 * nothing, and tells `standin.py` about every launch. */
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "cuda.h"

#define SHARED 232448 /* bytes of shared memory that a block may take on sm_90 */
#define FUNCTIONS 4096

typedef void (*on_launch)(uint64_t function, unsigned x, unsigned y, unsigned z, unsigned threads,
                          unsigned shared, uint64_t stream, void** parameters);
static on_launch listener;
static uint64_t modules;
static char refusal[512];
static int allowed_shared[FUNCTIONS];

#define REFUSE(...)                                    \
  do {                                                 \
    snprintf(refusal, sizeof refusal, __VA_ARGS__);    \
    return CUDA_ERROR_INVALID_VALUE;                   \
  } while (0)

void standin_listen(on_launch function) { listener = function; }

CUresult cuInit(unsigned flags) { return 0; }
CUresult cuDriverGetVersion(int* version) { return *version = 13000, 0; }
CUresult cuGetErrorString(CUresult result, const char** text) { return *text = refusal, 0; }
CUresult cuGetErrorName(CUresult result, const char** text) { return *text = "REFUSED", 0; }
CUresult cuDeviceGet(CUdevice* device, int index) { return *device = index, 0; }
CUresult cuDeviceGetCount(int* count) { return *count = 1, 0; }
CUresult cuCtxGetCurrent(CUcontext* context) { return *context = (CUcontext)1, 0; }
CUresult cuCtxSetCurrent(CUcontext context) { return 0; }
CUresult cuCtxGetDevice(CUdevice* device) { return *device = 0, 0; }
CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  return *context = (CUcontext)1, 0;
}
CUresult cuCtxGetLimit(size_t* value, CUlimit limit) { return *value = 0, 0; }
CUresult cuCtxSetLimit(CUlimit limit, size_t value) { return 0; }
CUresult cuModuleLoadData(CUmodule* module, const void* image) {
  return *module = (CUmodule)(++modules), 0;
}
CUresult cuModuleUnload(CUmodule module) { return 0; }
CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
  return *function = (CUfunction)module, 0;
}
CUresult cuFuncSetCacheConfig(CUfunction function, CUfunc_cache config) { return 0; }
CUresult cuPointerGetAttribute(void* out, CUpointer_attribute attribute, CUdeviceptr pointer) {
  return *(uint64_t*)out = pointer, 0;
}
CUresult cuOccupancyMaxActiveClusters(int* count, CUfunction function, const CUlaunchConfig* how) {
  return *count = 1, 0;
}
CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus* status) {
  return *status = 0, 0;
}

CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
  switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: *value = SHARED; break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR: *value = SHARED + 1024; break;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: *value = 132; break;
    case CU_DEVICE_ATTRIBUTE_WARP_SIZE: *value = 32; break;
    case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK: *value = 65536; break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: *value = 9; break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: *value = 0; break;
    default: *value = 1;
  }
  return 0;
}

CUresult cuFuncGetAttribute(int* value, CUfunction_attribute attribute, CUfunction function) {
  return *value = attribute == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024 : 0, 0;
}

CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value) {
  if (attribute != CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) REFUSE("an old driver");
  if (value > SHARED) REFUSE("%d bytes of shared memory", value);
  allowed_shared[(uint64_t)function % FUNCTIONS] = value;
  return 0;
}

CUresult cuLaunchKernelEx(const CUlaunchConfig* how, CUfunction function, void** parameters,
                          void** extra) {
  unsigned x = how->gridDimX, y = how->gridDimY, z = how->gridDimZ, threads = how->blockDimX;
  if (!x || !y || !z || x > INT32_MAX || y > 65535 || z > 65535 || threads > 1024)
    REFUSE("a grid of %u x %u x %u with %u threads", x, y, z, threads);
  int allowed = allowed_shared[(uint64_t)function % FUNCTIONS];
  if ((int)how->sharedMemBytes > (allowed ? allowed : 49152))
    REFUSE("%u bytes of shared memory, %d are allowed", how->sharedMemBytes, allowed);
  if (listener)
    listener((uint64_t)function, x, y, z, threads, how->sharedMemBytes, (uint64_t)how->hStream,
             parameters);
  return 0;
}

/* The map holds what it was made from: the address, three sizes, three box sizes, the stride. */
CUresult cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank,
                                void* address, const cuuint64_t* sizes, const cuuint64_t* strides,
                                const cuuint32_t* box, const cuuint32_t* element_strides,
                                CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
  int half = type == CU_TENSOR_MAP_DATA_TYPE_FLOAT16 || type == CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  if ((uintptr_t)map % 64) REFUSE("a map at %p", (void*)map);
  if ((uintptr_t)address % 16) REFUSE("an address of %p", address);
  if (rank < 1 || rank > 5) REFUSE("rank %u", rank);
  for (unsigned i = 0; i < rank; i++) {
    if (!sizes[i] || sizes[i] > (1ull << 32)) REFUSE("size %llu", (unsigned long long)sizes[i]);
    if (!box[i] || box[i] > 256) REFUSE("box %u", box[i]);
    if (i + 1 < rank && (strides[i] % 16 || strides[i] >= (1ull << 40)))
      REFUSE("stride %llu", (unsigned long long)strides[i]);
  }
  int inner = (int)box[0] * (half ? 2 : 4);
  int most = swizzle == CU_TENSOR_MAP_SWIZZLE_128B   ? 128
             : swizzle == CU_TENSOR_MAP_SWIZZLE_64B  ? 64
             : swizzle == CU_TENSOR_MAP_SWIZZLE_32B  ? 32
                                                     : 512;
  if (inner % 16 || inner > most) REFUSE("rows of %d bytes in a swizzle of %d", inner, most);
  uint64_t* words = (uint64_t*)map;
  memset(map, 0, sizeof *map);
  words[0] = (uint64_t)address;
  for (unsigned i = 0; i < rank && i < 3; i++) words[1 + i] = sizes[i], words[4 + i] = box[i];
  words[7] = rank > 1 ? strides[0] : 0;
  return 0;
}
