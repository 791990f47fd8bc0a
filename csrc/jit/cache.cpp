#include "cache.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <random>
#include <utility>
#include <vector>

namespace reformer::gpu {
namespace {

constexpr uint64_t kDefaultLimit = uint64_t{256} << 20;
constexpr off_t kMostBytes = off_t{1} << 28;  // larger files are not read

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

uint64_t limit() {
  const std::string text = variable("TORCH_REFORMER_CACHE_LIMIT");
  if (text.empty()) return kDefaultLimit;
  uint64_t bytes = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), bytes);
  if (error == std::errc() && end == text.data() + text.size()) return bytes;
  static std::atomic<bool> warned{false};
  if (!warned.exchange(true))
    std::fprintf(
        stderr,
        "torch_reformer: TORCH_REFORMER_CACHE_LIMIT must be a number of bytes, got \"%s\": it is %llu instead\n",
        text.c_str(), static_cast<unsigned long long>(kDefaultLimit));
  return kDefaultLimit;
}

std::string header(const std::string& key, const std::string& code) {
  return "torch_reformer code object 1\n" + key + "bytes: " + std::to_string(code.size()) +
         "\ndigest: " + digest(code) + "\n\n";
}

std::string name_of(const std::string& key) { return digest(key) + ".code"; }

bool ends_with(const std::string& text, const std::string& end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

void warn_once(const std::string& path, const char* why) {
  static std::atomic<bool> warned{false};
  if (!warned.exchange(true))
    std::fprintf(stderr,
                 "torch_reformer: compiled kernels can't be cached in \"%s\", since %s, so every process compiles them "
                 "anew; set TORCH_REFORMER_CACHE_DIR to a folder that only you can write to\n",
                 path.c_str(), why);
}

// Why code in this file or folder must not be run; null if only the user can have written it.
const char* distrust(const struct stat& found) {
  if (found.st_uid != geteuid()) return "it belongs to another user";
  return found.st_mode & (S_IWGRP | S_IWOTH) ? "others may write to it (chmod go-w)" : nullptr;
}

class Descriptor {
 public:
  explicit Descriptor(int number) : number_(number) {}
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  ~Descriptor() {
    if (number_ >= 0) close(number_);
  }
  explicit operator bool() const { return number_ >= 0; }
  int operator*() const { return number_; }
  // True if closing succeeded: some file systems write only then.
  bool closed() { return close(std::exchange(number_, -1)) == 0; }

 private:
  int number_;
};

// The folder, if it exists and its files may be used. All files are opened relative to it, so that it remains the
// folder that was checked.
Descriptor open_folder(const std::string& folder) {
  Descriptor opened(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  struct stat found;
  if (!opened || fstat(*opened, &found)) return Descriptor(-1);
  const char* const why = distrust(found);
  if (!why) return opened;
  warn_once(folder, why);
  return Descriptor(-1);
}

// The content of a regular file that only the user can have written. Does not block on other kinds of files and follows
// no links.
std::optional<std::string> read_file(const Descriptor& file, const std::string& path) {
  struct stat found;
  if (!file || fstat(*file, &found) || !S_ISREG(found.st_mode) || found.st_size > kMostBytes) return std::nullopt;
  if (const char* why = distrust(found)) {
    warn_once(path, why);
    return std::nullopt;
  }
  std::string bytes(size_t(found.st_size), 0);
  for (size_t done = 0; done < bytes.size();) {
    const ssize_t count = read(*file, &bytes[done], bytes.size() - done);
    if (count <= 0) return std::nullopt;
    done += size_t(count);
  }
  return bytes;
}

bool write_all(Descriptor file, const std::string& bytes) {
  for (size_t done = 0; done < bytes.size();) {
    const ssize_t count = write(*file, &bytes[done], bytes.size() - done);
    if (count <= 0) return false;
    done += size_t(count);
  }
  return file.closed();
}

std::string random_name() {
  std::random_device source;
  char digits[17];
  std::snprintf(digits, sizeof digits, "%08x%08x", source(), source());
  return digits;
}

// Another process may remove the same files at the same time: missing files are no error.
void trim(const Descriptor& folder, const std::string& keep) {
  struct File {
    std::string name;
    uint64_t bytes;
    timespec used;
    bool operator<(const File& other) const {
      return used.tv_sec != other.used.tv_sec ? used.tv_sec < other.used.tv_sec : used.tv_nsec < other.used.tv_nsec;
    }
  };
  std::vector<File> files;
  uint64_t total = 0;
  DIR* const listing = fdopendir(openat(*folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!listing) return;
  while (const dirent* entry = readdir(listing)) {
    const std::string name = entry->d_name;
    struct stat found;
    if (fstatat(*folder, name.c_str(), &found, AT_SYMLINK_NOFOLLOW) || !S_ISREG(found.st_mode)) continue;
    if (ends_with(name, ".tmp") && time(nullptr) - found.st_mtime > 3600) {
      unlinkat(*folder, name.c_str(), 0);  // left by a process that died
    } else if (ends_with(name, ".code")) {
      total += uint64_t(found.st_size);
      if (name != keep) files.push_back({name, uint64_t(found.st_size), found.st_mtim});
    }
  }
  closedir(listing);
  std::sort(files.begin(), files.end());
  for (size_t i = 0; i < files.size() && total > limit(); ++i) {
    unlinkat(*folder, files[i].name.c_str(), 0);
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
  const std::string folder = cache_folder(), name = name_of(key);
  if (folder.empty() || !limit()) return std::nullopt;
  const Descriptor opened = open_folder(folder);
  if (!opened) return std::nullopt;
  const Descriptor file(openat(*opened, name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  const std::optional<std::string> bytes = read_file(file, folder + "/" + name);
  const size_t end = bytes ? bytes->find("\n\n") : std::string::npos;
  if (end == std::string::npos) return std::nullopt;
  std::string code = bytes->substr(end + 2);
  if (bytes->compare(0, end + 2, header(key, code)) != 0) return std::nullopt;
  futimens(*file, nullptr);  // mark as used now
  return code;
}

void store_cached(const std::string& key, const std::string& code) {
  const std::string folder = cache_folder(), name = name_of(key);
  if (!limit()) return;
  if (folder.empty()) return warn_once(folder, "there is no such folder");
  std::error_code ignored;
  std::filesystem::path path(folder);
  if (!path.has_filename()) path = path.parent_path();  // the path ends with a slash
  if (path.has_parent_path()) std::filesystem::create_directories(path.parent_path(), ignored);
  mkdir(folder.c_str(), S_IRWXU);
  const Descriptor opened = open_folder(folder);
  if (!opened) return warn_once(folder, "it can't be opened or made");
  const std::string temporary = name + "." + random_name() + ".tmp";
  constexpr int flags = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
  Descriptor file(openat(*opened, temporary.c_str(), flags, S_IRUSR | S_IWUSR));
  if (!file) return warn_once(folder, "it can't be written to");
  if (!write_all(std::move(file), header(key, code) + code) ||
      renameat(*opened, temporary.c_str(), *opened, name.c_str())) {
    unlinkat(*opened, temporary.c_str(), 0);
    return warn_once(folder, "a file can't be written there");
  }
  trim(opened, name);
}

}  // namespace reformer::gpu
