#include "rtc.h"

#include <dlfcn.h>

#include <memory>
#include <stdexcept>

#include "loaded_library.h"

namespace reformer::gpu {
namespace {

bool is_amd(const std::string& architecture) { return architecture.rfind("gfx", 0) == 0; }

// NVRTC and hipRTC have the same functions.
struct Api {
  using Program = void*;
  const std::string prefix, code_name;
  std::string name;  // name of the library: NVRTC 13.0
  int (*create)(Program*, const char*, const char*, int, const char* const*, const char* const*);
  int (*destroy)(Program*);
  int (*compile)(Program, int, const char* const*);
  int (*log_size)(Program, size_t*);
  int (*log)(Program, char*);
  int (*code_size)(Program, size_t*);
  int (*code)(Program, char*);
  const char* (*error_string)(int);

  Api(void* library, std::string of, std::string code_of) : prefix(std::move(of)), code_name(std::move(code_of)) {
    const auto symbol = [&](const std::string& suffix, auto& function) {
      find_symbol(library, (prefix + suffix).c_str(), function);
    };
    int (*version)(int*, int*);
    symbol("Version", version);
    symbol("CreateProgram", create);
    symbol("DestroyProgram", destroy);
    symbol("CompileProgram", compile);
    symbol("GetProgramLogSize", log_size);
    symbol("GetProgramLog", log);
    symbol("Get" + code_name + "Size", code_size);
    symbol("Get" + code_name, code);
    symbol("GetErrorString", error_string);
    int major = 0, minor = 0;
    version(&major, &minor);
    name = (prefix == "nvrtc" ? "NVRTC " : "hipRTC ") + std::to_string(major) + "." + std::to_string(minor);
  }
};

void* open_first(std::initializer_list<const char*> names) {
  for (const char* name : names)
    if (void* library = dlopen(name, RTLD_NOW)) return library;
  return nullptr;
}

std::string& nvrtc_file() {
  static auto& file = *new std::string;
  return file;
}

// The library that torch has loaded fits the driver; after it, the one found by the loader, or a wheel's.
const Api* nvrtc() {
  static const std::unique_ptr<Api> api = [] {
    void* library = loaded_library("libnvrtc.so");
    if (!library) library = open_first({"libnvrtc.so.13", "libnvrtc.so.12"});
    if (!library && !nvrtc_file().empty()) library = open_first({nvrtc_file().c_str()});
    return library ? std::make_unique<Api>(library, "nvrtc", "CUBIN") : nullptr;
  }();
  return api.get();
}

// A library of its own, or part of HIP's.
const Api* hiprtc() {
  static const std::unique_ptr<Api> api = [] {
    void* library = loaded_library("libhiprtc.so");
    if (!library) library = open_first({"libhiprtc.so.7", "libhiprtc.so.6", "libhiprtc.so"});
    if (!library) library = loaded_library("libamdhip64");
    const bool has_it = library && dlsym(library, "hiprtcCreateProgram");
    return has_it ? std::make_unique<Api>(library, "hiprtc", "Code") : nullptr;
  }();
  return api.get();
}

const Api* api_for(const std::string& architecture) { return is_amd(architecture) ? hiprtc() : nvrtc(); }

// From Hopper on, the most useful instructions exist on only one architecture.
std::vector<std::string> options(const std::string& architecture) {
  if (is_amd(architecture)) return {"--offload-arch=" + architecture, "-std=c++17", "-O3"};
  const bool specific = std::stoi(architecture.substr(3)) >= 90;
  // -default-device: functions in headers shared with the host are not marked __device__.
  return {"--gpu-architecture=" + architecture + (specific ? "a" : ""), "-std=c++17", "-default-device"};
}

class Program {
 public:
  Program(const Api& api, const std::string& source, const std::string& name) : api_(api) {
    check(api_.create(&program_, source.c_str(), name.c_str(), 0, nullptr, nullptr));
  }
  ~Program() { api_.destroy(&program_); }
  Program(const Program&) = delete;

  std::string compile(const std::vector<std::string>& options) {
    std::vector<const char*> pointers;
    for (const std::string& option : options) pointers.push_back(option.c_str());
    const int error = api_.compile(program_, int(pointers.size()), pointers.data());
    if (error)
      throw std::runtime_error(api_.name + ": " + api_.error_string(error) + "\n" + get(api_.log_size, api_.log));
    return get(api_.code_size, api_.code);
  }

 private:
  std::string get(int (*size)(void*, size_t*), int (*bytes)(void*, char*)) const {
    size_t count = 0;
    check(size(program_, &count));
    std::string text(count, '\0');
    if (count) check(bytes(program_, text.data()));
    return text;
  }

  void check(int error) const {
    if (error) throw std::runtime_error(api_.name + ": " + api_.error_string(error));
  }

  const Api& api_;
  Api::Program program_ = nullptr;
};

}  // namespace

void set_nvrtc_file(const char* path) { nvrtc_file() = path; }

const char* no_compiler(const std::string& architecture) {
  if (api_for(architecture)) return nullptr;
  return is_amd(architecture) ? "hipRTC (libhiprtc.so), which could compile them now, is not found"
                              : "NVRTC (libnvrtc.so.13 or .12, in the wheel nvidia-cuda-nvrtc), which could compile "
                                "them now, is not found";
}

Compiler compiler_for(const std::string& architecture) {
  const Api& api = *api_for(architecture);
  Dl_info info{};
  dladdr(reinterpret_cast<void*>(api.compile), &info);
  return {info.dli_fname, api.prefix, api.code_name, options(architecture)};
}

std::string compiler_and_options(const std::string& architecture) {
  std::string text = api_for(architecture)->name;
  for (const std::string& option : options(architecture)) text += " " + option;
  return text;
}

std::string compile(const std::string& source, const std::string& name, const std::string& architecture) {
  return Program(*api_for(architecture), source, name).compile(options(architecture));
}

}  // namespace reformer::gpu
