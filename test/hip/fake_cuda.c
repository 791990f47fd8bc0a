// A CUDA driver without a GPU, for test_gpu_runtime.py: it refuses what the real one would refuse, and counts.
#include <stdatomic.h>
#include <stdlib.h>
#include <stdio.h>
#include <string.h>

enum { kInvalidImage = 200, kInvalidContext = 201, kNoBinary = 209, kNotFound = 500, kForbiddenInCapture = 900 };

static atomic_int loads, launches;
static int refused_loads, largest_shared;
static unsigned last_shape[5], last_cluster, last_pdl;
static void *last_stream, *last_kernel;
static int last_argument;
static _Thread_local void* context;
static _Thread_local int capture_mode;  // 0: global, the strictest; 2: relaxed
static int contexts[8];

// For the test.
int fake_loads(void) { return loads; }
int fake_launches(void) { return launches; }
int fake_largest_shared(void) { return largest_shared; }
int fake_last_argument(void) { return last_argument; }
void* fake_last_stream(void) { return last_stream; }
const unsigned* fake_last_shape(void) { return last_shape; }
int fake_capture_mode(void) { return capture_mode; }
void fake_refuse_loads(int count) { refused_loads = count; }
void fake_drop_context(void) { context = NULL; }

int cuInit(unsigned flags) { return (int)flags; }
// NVRTC asks for this when there is a driver.
int cuGetExportTable(const void** table, const void* id) {
  (void)id;
  *table = NULL;
  return kNotFound;
}
int cuGetErrorString(int error, const char** text) {
  *text = error == kNoBinary ? "no kernel image is available" : "some error";
  return 0;
}
int cuDeviceGetAttribute(int* value, int which, int device) {
  if (device > 2) return 101;
  const int minor[] = {0, 6, 0}, major[] = {9, 8, 12};
  *value = which == 75 ? major[device] : which == 76 ? minor[device] : which == 16 ? 132 + device : 232448;
  return 0;
}
int cuDeviceGetName(char* name, int size, int device) {
  snprintf(name, size, "NVIDIA %s 80GB", device ? "Nothing" : "H100");
  return 0;
}
int cuDevicePrimaryCtxRetain(void** result, int device) {
  *result = &contexts[device];
  return 0;
}
int cuTensorMapEncodeTiled(void* map) {
  memset(map, 0, 128);
  return 0;
}
int cuTensorMapEncodeIm2col(void* map) {
  memset(map, 0, 128);
  return 0;
}
int cuCtxGetCurrent(void** result) {
  *result = context;
  return 0;
}
int cuCtxSetCurrent(void* value) {
  context = value;
  return 0;
}
int cuThreadExchangeStreamCaptureMode(int* mode) {
  const int old = capture_mode;
  capture_mode = *mode;
  *mode = old;
  return 0;
}
int cuLibraryLoadData(void** library, const void* code, void* a, void* b, unsigned c, void* d, void* e, unsigned f) {
  (void)a, (void)b, (void)c, (void)d, (void)e, (void)f;
  if (capture_mode != 2) return kForbiddenInCapture;
  if (memcmp(code, "\177ELF", 4) != 0) return kInvalidImage;
  if (refused_loads > 0) return --refused_loads, kNoBinary;
  atomic_fetch_add(&loads, 1);
  *library = (void*)code;
  return 0;
}
// "\177ELFfake name name ..." holds these names; what a compiler made holds any.
int cuLibraryGetKernel(void** kernel, void* library, const char* name) {
  if (memcmp((char*)library + 4, "fake", 4) == 0 && !strstr(library, name)) return kNotFound;
  *kernel = strdup(name);
  return 0;
}
int cuKernelGetFunction(void** function, void* kernel) {
  if (capture_mode != 2) return kForbiddenInCapture;
  if (!context) return kInvalidContext;
  *function = kernel;
  return 0;
}
int cuKernelGetAttribute(int* value, int which, void* kernel, int device) {
  (void)kernel, (void)device;
  *value = which == 1 ? 1024 : 0;
  return 0;
}
int cuKernelSetAttribute(int which, int value, void* kernel, int device) {
  (void)kernel, (void)device;
  if (which == 8) largest_shared = value;
  return 0;
}
int cuLaunchKernel(void* kernel, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, void* stream, void** parameters, void** extra) {
  if (!context) return kInvalidContext;
  if (by != 1 || bz != 1 || extra) return 1;
  const unsigned shape[] = {gx, gy, gz, bx, shared};
  memcpy(last_shape, shape, sizeof shape);
  last_stream = stream;
  last_kernel = kernel;
  last_argument = *(int*)parameters[0];
  atomic_fetch_add(&launches, 1);
  return 0;
}

// As cuda.h has it; of the attributes, those that say a cluster's blocks and that the kernel is launched programmatically.
struct attribute {
  int id, padding;
  unsigned value[16];
};
struct configuration {
  unsigned grid[3], block[3], shared;
  void* stream;
  struct attribute* attributes;
  unsigned count;
};
int cuLaunchKernelEx(const struct configuration* c, void* kernel, void** parameters, void** extra) {
  last_cluster = last_pdl = 0;
  if (sizeof(struct attribute) != 72) return 1;
  for (unsigned i = 0; i < c->count; ++i) {
    const unsigned* value = c->attributes[i].value;
    if (c->attributes[i].id == 4 && value[0] == 1 && value[1] == 1)
      last_cluster = value[2];
    else if (c->attributes[i].id == 6)
      last_pdl = value[0];
    else
      return 1;
  }
  return cuLaunchKernel(kernel, c->grid[0], c->grid[1], c->grid[2], c->block[0], c->block[1], c->block[2], c->shared,
                        c->stream, parameters, extra);
}
unsigned fake_last_cluster(void) { return last_cluster; }
unsigned fake_last_pdl(void) { return last_pdl; }
