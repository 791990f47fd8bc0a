// GPU kernels: where they are found and how they are compiled and launched.
#include <iterator>
#include <string>
#include <utility>

#include "c_api_common.h"
#include "hip/devices.h"
#include "jit/cache.h"
#include "jit/code_objects.h"
#include "jit/compiled.h"
#include "jit/gpu.h"
#include "jit/rtc.h"

using namespace reformer;
using namespace reformer::c_api;

const GpuSpec* reformer_gpu_specs(int32_t* count) {
  *count = static_cast<int32_t>(std::size(kGpuSpecs));
  return kGpuSpecs;
}

void reformer_gpu_kernels(const char* folder) { gpu::set_kernels_folder(folder); }

void reformer_gpu_nvrtc(const char* file) { gpu::set_nvrtc_file(file); }

const char* reformer_gpu_architecture(int32_t device) {
  return guarded<const char*>(nullptr, [&] { return gpu::architecture(device).c_str(); });
}

const char* reformer_gpu_device(int32_t device) {
  return guarded<const char*>(nullptr, [&] { return keep(gpu::device(device).str()); });
}

const char* reformer_gpu_unavailable(const char* architecture) {
  return guarded<const char*>(nullptr, [&] {
    const char* why = gpu::unavailable(architecture);
    return why ? why : "";
  });
}

int32_t reformer_gpu_launch(const ReformerEntry* entry, const ReformerLaunch* launch, const void* arguments,
                            int64_t bytes) {
  return guarded(-1, [&] {
    const gpu::Launch shape{launch->blocks[0],    launch->blocks[1], launch->blocks[2], launch->threads,
                            launch->shared_bytes, launch->cluster_z, launch->pdl != 0};
    const gpu::Kernel kernel(gpu::Entry{entry->file, entry->name, entry->arguments, entry->text});
    gpu::launch(kernel, shape, {launch->device, launch->stream}, arguments, size_t(bytes));
    return 0;
  });
}

int64_t reformer_gpu_compile(const ReformerEntry* entry, const char* architecture, const char** code, int32_t* cached) {
  return guarded<int64_t>(-1, [&] {
    gpu::Compiled compiled =
        gpu::compile_entry({entry->file, entry->name, entry->arguments, entry->text}, architecture);
    const auto size = static_cast<int64_t>(compiled.code.size());
    *cached = compiled.from_cache;
    *code = keep(std::move(compiled.code));
    return size;
  });
}

void reformer_gpu_begin_noting() { gpu::begin_noting(); }

int32_t reformer_gpu_end_noting(const char* architecture, ReformerMissing missing) {
  return guarded(-1, [&] {
    for (const gpu::OwnedEntry& each : gpu::end_noting()) {
      const gpu::Entry entry = each.entry();
      const ReformerEntry words{entry.file, entry.name, entry.arguments, entry.text};
      if (const auto source = gpu::missing_source(entry, architecture))
        missing(&words, source->name.c_str(), source->text.c_str());
    }
    return 0;
  });
}

const char* reformer_gpu_compiler(const char* architecture) {
  return guarded<const char*>(nullptr, [&] {
    const gpu::Compiler compiler = gpu::compiler_for(architecture);
    std::string lines = compiler.library + "\n" + compiler.prefix + "\n" + compiler.code;
    for (const std::string& option : compiler.options) lines += "\n" + option;
    return keep(std::move(lines));
  });
}

int32_t reformer_gpu_add_compiled(const ReformerEntry* entry, const char* architecture, const char* code,
                                  int64_t size) {
  return guarded(-1, [&] {
    gpu::add_compiled({entry->file, entry->name, entry->arguments, entry->text}, architecture, {code, size_t(size)});
    return 0;
  });
}

const char* reformer_gpu_cache_folder() { return keep(gpu::cache_folder()); }
