// HIP's library without a GPU, for test_gpu_runtime.py and the stub of MIOpen (test/miopen). Its GPUs' architectures are
// those of FAKE_HIP_ARCHS, "gfx908,gfx908".
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { kMostDevices = 16, kLongestName = 64, kInvalidDevice = 101 };

static int capture_mode, launches;
static atomic_int capturing, set_device_calls;
static _Thread_local int current_device;

static char architectures[kMostDevices][kLongestName];
static int devices;
static pthread_once_t devices_read = PTHREAD_ONCE_INIT;

static void read_devices(void) {
  const char* from = getenv("FAKE_HIP_ARCHS");
  if (!from) from = "gfx942,gfx90a";
  while (*from && devices < kMostDevices) {
    const int length = (int)strcspn(from, ",");
    snprintf(architectures[devices++], kLongestName, "%.*s:sramecc+:xnack-", length, from);
    from += length + (from[length] == ',');
  }
}

static int is_device(int device) {
  pthread_once(&devices_read, read_devices);
  return device >= 0 && device < devices;
}

int fake_launches(void) { return launches; }

// Whether streams are being captured from now on.
void fake_set_capturing(int is) { capturing = is; }
int fake_set_device_calls(void) { return set_device_calls; }

int hipInit(unsigned flags) { return (int)flags; }
const char* hipGetErrorString(int error) { return error == 700 ? "illegal address" : "some error"; }
int hipDeviceGetAttribute(int* value, int which, int device) {
  if (!is_device(device)) return kInvalidDevice;
  *value = which == 63 ? 304 + device : -1;
  return 0;
}
int hipGetDeviceCount(int* count) {
  pthread_once(&devices_read, read_devices);
  *count = devices;
  return 0;
}
int hipGetDevice(int* device) {
  *device = current_device;
  return 0;
}
int hipSetDevice(int device) {
  if (!is_device(device)) return kInvalidDevice;
  ++set_device_calls;
  current_device = device;
  return 0;
}
int hipStreamIsCapturing(void* stream, int* status) {
  (void)stream;
  *status = capturing;
  return 0;
}
int hipGetDevicePropertiesR0600(void* properties, int device) {
  if (!is_device(device)) return kInvalidDevice;
  memset(properties, 0, 1472);
  strcpy(properties, "AMD Instinct MI300X (gfx named)");
  strcpy((char*)properties + 1160, architectures[device]);
  return 0;
}
int hipThreadExchangeStreamCaptureMode(int* mode) {
  const int old = capture_mode;
  capture_mode = *mode;
  *mode = old;
  return 0;
}
int hipModuleLoadData(void** module, const void* code) {
  if (capture_mode != 2) return 900;
  *module = (void*)code;
  return memcmp(code, "\177ELF", 4) ? 200 : 0;
}
int hipModuleGetFunction(void** function, void* module, const char* name) {
  if (!strstr(module, name)) return 500;
  *function = module;
  return 0;
}
int hipModuleLaunchKernel(void* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                          unsigned shared, void* stream, void** parameters, void** extra) {
  (void)function, (void)gx, (void)gy, (void)gz, (void)by, (void)bz, (void)shared, (void)stream, (void)extra;
  ++launches;
  return bx > 1024 ? 700 : *(int*)parameters[0] == 7 ? 0 : 1;
}
