#include "cache.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

namespace reformer::gpu {
namespace {

namespace fs = std::filesystem;
using std::chrono::hours;

constexpr uintmax_t kDefaultLimit = uintmax_t(256) << 20;

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

uintmax_t limit() {
  const std::string text = variable("TORCH_REFORMER_CACHE_LIMIT");
  char* end = nullptr;
  const unsigned long long bytes = std::strtoull(text.c_str(), &end, 10);
  return text.empty() || *end ? kDefaultLimit : bytes;
}

std::string header(const std::string& key, const std::string& code) {
  return "torch_reformer code object 1\n" + key + "bytes: " + std::to_string(code.size()) +
         "\ndigest: " + digest(code) + "\n\n";
}

fs::path path_of(const std::string& key) { return fs::path(cache_folder()) / (digest(key) + ".code"); }

void warn_once(const std::string& folder) {
  static std::atomic<bool> warned{false};
  if (!warned.exchange(true))
    std::fprintf(stderr,
                 "torch_reformer: compiled kernels can't be kept in \"%s\", so every process compiles them anew; set "
                 "TORCH_REFORMER_CACHE_DIR to a folder that can be written to\n",
                 folder.c_str());
}

// Another process may remove the same files at the same time: what is gone is no error.
void trim(const fs::path& folder, const fs::path& keep) {
  struct File {
    fs::path path;
    uintmax_t bytes;
    fs::file_time_type used;
  };
  std::vector<File> files;
  uintmax_t total = 0;
  std::error_code error;
  const auto now = fs::file_time_type::clock::now();
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const auto used = entry.last_write_time(error);
    const uintmax_t bytes = error ? 0 : entry.file_size(error);
    if (error) continue;
    if (entry.path().extension() == ".tmp" && now - used > hours(1)) {
      fs::remove(entry.path(), error);  // of a process that died
    } else if (entry.path().extension() == ".code") {
      total += bytes;
      if (entry.path() != keep) files.push_back({entry.path(), bytes, used});
    }
  }
  std::sort(files.begin(), files.end(), [](const File& a, const File& b) { return a.used < b.used; });
  for (size_t i = 0; i < files.size() && total > limit(); ++i) {
    fs::remove(files[i].path, error);
    total -= files[i].bytes;
  }
}

}  // namespace

std::string digest(std::string_view text) {
  // http://www.isthe.com/chongo/tech/comp/fnv/
  constexpr auto word = [](uint64_t high, uint64_t low) { return static_cast<unsigned __int128>(high) << 64 | low; };
  constexpr unsigned __int128 prime = word(1 << 24, 0x13b);
  unsigned __int128 hash = word(0x6c62272e07bb0142, 0x62b821756295c58d);
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * prime;
  char digits[33];
  std::snprintf(digits, sizeof digits, "%016llx%016llx", static_cast<unsigned long long>(hash >> 64),
                static_cast<unsigned long long>(hash));
  return digits;
}

std::string cache_folder() {
  if (const std::string chosen = variable("TORCH_REFORMER_CACHE_DIR"); !chosen.empty()) return chosen;
  if (const std::string base = variable("XDG_CACHE_HOME"); base.rfind('/', 0) == 0) return base + "/torch_reformer";
  const std::string home = variable("HOME");
  return home.empty() ? "" : home + "/.cache/torch_reformer";
}

std::optional<std::string> find_cached(const std::string& key) {
  if (cache_folder().empty() || !limit()) return std::nullopt;
  const fs::path path = path_of(key);
  std::ifstream stream(path, std::ios::binary);
  if (!stream) return std::nullopt;
  const std::string bytes(std::istreambuf_iterator<char>(stream), {});
  const size_t end = bytes.find("\n\n");
  if (end == std::string::npos) return std::nullopt;
  std::string code = bytes.substr(end + 2);
  if (bytes.compare(0, end + 2, header(key, code)) != 0) return std::nullopt;
  std::error_code ignored;
  fs::last_write_time(path, fs::file_time_type::clock::now(), ignored);
  return code;
}

void store_cached(const std::string& key, const std::string& code) {
  const std::string folder = cache_folder();
  if (!limit()) return;
  if (folder.empty()) return warn_once(folder);
  static std::atomic<uint64_t> count{0};
  const fs::path path = path_of(key);
  const fs::path temporary =
      path.string() + "." + std::to_string(getpid()) + "." + std::to_string(count.fetch_add(1)) + ".tmp";
  std::error_code error;
  fs::create_directories(folder, error);
  std::ofstream stream(temporary, std::ios::binary);
  stream << header(key, code) << code;
  stream.close();
  if (stream) fs::rename(temporary, path, error);
  if (!stream || error) {
    fs::remove(temporary, error);
    return warn_once(folder);
  }
  trim(folder, path);
}

}  // namespace reformer::gpu
