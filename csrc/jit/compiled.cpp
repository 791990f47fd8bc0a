#include "compiled.h"

#include <stdexcept>

#include "cache.h"
#include "code_objects.h"
#include "rtc.h"
#include "source.h"

namespace reformer::gpu {

Compiled compile_entry(const Entry& entry, const std::string& architecture) {
  const std::string what = std::string(entry.file) + " " + entry.name;
  if (const char* missing = no_compiler(architecture))
    throw std::runtime_error("the kernel " + what + " is not packaged for " + architecture + ", and " + missing);
  const std::string file = std::string(entry.file) + ".hip";
  const std::string source = (*entry.text ? std::string("#define REFORMER_TEXT_FOLLOWS")
                                          : std::string("#define REFORMER_ENTRY ") + entry.arguments) +
                             "\n" + flatten(kernels_folder() + "/src/kernels/" + file) + entry.text;
  const std::string key = "kernel: " + what + "\narchitecture: " + architecture +
                          "\ncompiler: " + compiler_and_options(architecture) + "\nsource: " + digest(source) + "\n";
  if (auto cached = find_cached(key)) return {std::move(*cached), true};
  try {
    Compiled result{compile(source, file, architecture), false};
    store_cached(key, result.code);
    return result;
  } catch (const std::runtime_error& error) {
    throw std::runtime_error("the kernel " + what + " can't be compiled for " + architecture + ": " + error.what());
  }
}

}  // namespace reformer::gpu
