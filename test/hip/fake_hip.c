// HIP's library without a GPU, for test_gpu_runtime.py.
#include <string.h>

static int capture_mode, launches;

int fake_launches(void) { return launches; }

int hipInit(unsigned flags) { return (int)flags; }
const char* hipGetErrorString(int error) { return error == 700 ? "illegal address" : "some error"; }
int hipDeviceGetAttribute(int* value, int which, int device) {
  *value = which == 63 ? 304 + device : -1;
  return 0;
}
int hipGetDevicePropertiesR0600(void* properties, int device) {
  memset(properties, 0, 1472);
  strcpy(properties, "AMD Instinct MI300X (gfx named)");
  strcpy((char*)properties + 1160, device ? "gfx90a:sramecc+:xnack-" : "gfx942:sramecc+:xnack-");
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
