#include "compiled.h"

#include <map>
#include <mutex>
#include <stdexcept>
#include <tuple>

#include "cache.h"
#include "code_objects.h"
#include "rtc.h"
#include "source.h"

namespace reformer::gpu {
namespace {

struct Code {
  std::mutex mutex;  // held while it is compiled
  std::string bytes;
};

class Codes {
 public:
  Code& of(const Entry& entry, const std::string& architecture) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return all_[{entry.file, entry.name, entry.arguments, architecture}];
  }

 private:
  std::mutex mutex_;
  std::map<std::tuple<std::string, std::string, std::string, std::string>, Code> all_;
};

Codes& codes() {
  static Codes& all = *new Codes;  // torch's threads may outlive static objects
  return all;
}

struct Job {
  std::string what, key;  // what: for messages; key: of the cache
  Source source;
};

Job job_of(const Entry& entry, const std::string& architecture) {
  Job job;
  job.what = std::string(entry.file) + " " + entry.name;
  if (const char* missing = no_compiler(architecture))
    throw std::runtime_error("the kernel " + job.what + " is not packaged for " + architecture + ", and " + missing);
  job.source.name = std::string(entry.file) + ".hip";
  job.source.text = (*entry.text ? std::string("#define REFORMER_TEXT_FOLLOWS")
                                 : std::string("#define REFORMER_ENTRY ") + entry.arguments) +
                    "\n" + flatten(kernels_folder() + "/src/" + job.source.name) + entry.text;
  job.key = "kernel: " + job.what + "\narchitecture: " + architecture +
            "\ncompiler: " + compiler_and_options(architecture) + "\nsource: " + digest(job.source.text) + "\n";
  return job;
}

}  // namespace

Compiled compile_entry(const Entry& entry, const std::string& architecture) {
  const Job job = job_of(entry, architecture);
  if (auto cached = find_cached(job.key)) return {std::move(*cached), true};
  try {
    Compiled result{compile(job.source.text, job.source.name, architecture), false};
    store_cached(job.key, result.code);
    return result;
  } catch (const std::runtime_error& error) {
    throw std::runtime_error("the kernel " + job.what + " can't be compiled for " + architecture + ": " + error.what());
  }
}

const std::string& compiled_once(const Entry& entry, const std::string& architecture) {
  Code& code = codes().of(entry, architecture);
  const std::lock_guard<std::mutex> lock(code.mutex);
  if (code.bytes.empty()) code.bytes = compile_entry(entry, architecture).code;
  return code.bytes;
}

std::optional<Source> missing_source(const Entry& entry, const std::string& architecture) {
  if (!*entry.text && packaged_code(entry.file, architecture)) return std::nullopt;
  Code& code = codes().of(entry, architecture);
  const std::lock_guard<std::mutex> lock(code.mutex);
  if (!code.bytes.empty()) return std::nullopt;
  Job job = job_of(entry, architecture);
  if (auto cached = find_cached(job.key)) {
    code.bytes = std::move(*cached);
    return std::nullopt;
  }
  return std::move(job.source);
}

void add_compiled(const Entry& entry, const std::string& architecture, std::string bytes) {
  Code& code = codes().of(entry, architecture);
  const std::lock_guard<std::mutex> lock(code.mutex);
  if (!code.bytes.empty()) return;  // modules may point to it, so it must not be replaced
  store_cached(job_of(entry, architecture).key, bytes);
  code.bytes = std::move(bytes);
}

}  // namespace reformer::gpu
