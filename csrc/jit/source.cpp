#include "source.h"

#include <filesystem>
#include <fstream>
#include <map>
#include <stdexcept>

namespace reformer::gpu {
namespace {

namespace fs = std::filesystem;

// The name in `#include "..."`; empty for other lines.
std::string included_name(const std::string& line) {
  constexpr const char* kSpaces = " \t\r\f\v";
  size_t at = line.find_first_not_of(kSpaces);
  if (at == std::string::npos || line[at] != '#') return {};
  at = line.find_first_not_of(kSpaces, at + 1);
  if (at == std::string::npos || line.compare(at, 7, "include") != 0) return {};
  at = line.find_first_not_of(kSpaces, at + 7);
  if (at == std::string::npos || line[at] != '"') return {};
  const size_t end = line.find('"', at + 1);
  return end == std::string::npos ? std::string() : line.substr(at + 1, end - at - 1);
}

class Flattener {
 public:
  std::string text;

  void append(const fs::path& path) {
    std::ifstream stream(path);
    if (!stream) throw std::runtime_error("the kernel's source " + path.string() + " can't be read");
    if (++depth_ > 32) throw std::runtime_error(path.string() + " is included by itself without end");
    const std::string name = path.filename().string();
    line_directive(1, name);
    bool guarded = false;
    std::string line;
    for (int number = 1; std::getline(stream, line); ++number) {
      const std::string included = included_name(line);
      if (line == "#pragma once" && !guarded) {
        guarded = true;
        const std::string guard = "REFORMER_INCLUDED_" + std::to_string(index_of(path));
        text += "#ifndef " + guard + "\n#define " + guard + "\n";
        line_directive(number + 1, name);
      } else if (!included.empty() && fs::exists(path.parent_path() / included)) {
        append(path.parent_path() / included);
        line_directive(number + 1, name);
      } else {
        text += line + "\n";
      }
    }
    if (guarded) text += "#endif\n";
    --depth_;
  }

 private:
  // Names without folders, so that the text, and thus the cache key, does not depend on where the package is installed.
  void line_directive(int number, const std::string& name) {
    text += "#line " + std::to_string(number) + " \"" + name + "\"\n";
  }

  size_t index_of(const fs::path& path) {
    return guards_.emplace(fs::weakly_canonical(path).string(), guards_.size()).first->second;
  }

  std::map<std::string, size_t> guards_;
  int depth_ = 0;
};

}  // namespace

std::string flatten(const std::string& path) {
  Flattener flattener;
  flattener.append(path);
  return std::move(flattener.text);
}

}  // namespace reformer::gpu
