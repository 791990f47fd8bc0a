// Libraries that torch has loaded into the process, whatever their folder and version.
#pragma once

#include <dlfcn.h>
#include <link.h>

#include <stdexcept>
#include <string>
#include <string_view>

namespace reformer::gpu {

// Handle of the loaded library whose file name is `stem` followed by nothing or by anything that begins with a dot or a
// dash (libamdhip64.so.7, libamdhip64-0123abcd.so), or null. Searches by file name rather than by soname, since wheels
// rename the libraries that they bundle.
inline void* loaded_library(std::string_view stem) {
  struct Search {
    std::string_view stem;
    std::string path;
  } search{stem, {}};
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* data) {
        auto& wanted = *static_cast<Search*>(data);
        const std::string_view path = info->dlpi_name ? info->dlpi_name : "";
        const size_t slash = path.rfind('/');
        const auto file = slash == std::string_view::npos ? path : path.substr(slash + 1);
        if (file.substr(0, wanted.stem.size()) != wanted.stem) return 0;
        const auto rest = file.substr(wanted.stem.size());
        if (!rest.empty() && rest[0] != '.' && rest[0] != '-') return 0;
        wanted.path = path;
        return 1;
      },
      &search);
  return search.path.empty() ? nullptr : dlopen(search.path.c_str(), RTLD_NOW | RTLD_NOLOAD);
}

template <class Function>
void find_symbol(void* library, const char* name, Function*& function) {
  function = reinterpret_cast<Function*>(dlsym(library, name));
  if (!function) throw std::runtime_error(std::string("the GPU's libraries have no ") + name + ": they are too old");
}

}  // namespace reformer::gpu
