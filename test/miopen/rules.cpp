#include "rules.h"

#include <cstring>
#include <map>
#include <optional>
#include <sstream>

#include "calls.h"
#include "winograd.h"

namespace stub {
namespace {

struct Entry {
  std::optional<size_t> workspace;
};
using Entries = std::map<std::string, Entry>;  // by a solver's name

auto& find_db = *new std::map<std::string, Entries>;
bool has_mlir = false;

char letter(int type) {
  switch (type) {
    case kFloat: return 'f';
    case kHalf: return 'h';
    case kBFloat16: return 'b';
    default: return ' ';
  }
}

// A product of matrices without im2col: forward and the input's gradient by stride 2, too.
bool is_plain(const Problem& p) {
  const int most = p.direction == Direction::backward_weights ? 1 : 2;
  return p.r == 1 && p.s == 1 && p.pad == std::array{0, 0} && p.stride[0] == p.stride[1] && p.stride[0] <= most;
}

bool meets_needs(unsigned needs, const Problem& p) {
  if (needs & kNoPad && p.pad != std::array{0, 0}) return false;
  if (needs & kOneGroup && p.groups != 1) return false;
  if (needs & kNoDilation && p.dilation != std::array{1, 1}) return false;
  if (needs & kMlir && !has_mlir) return false;
  return !(needs & kNotPlain && is_plain(p));
}

bool by_rule(const Solver& solver, const Problem& p, const std::string& architecture) {
  if (!std::strchr(solver.types, letter(p.type))) return false;
  if (solver.layouts != Layouts::both && (solver.layouts == Layouts::nhwc) != (p.layout == kNhwc)) return false;
  if (solver.filter_h && (p.r != solver.filter_h || p.s != solver.filter_w)) return false;
  if (solver.stride && (p.stride[0] != solver.stride || p.stride[1] != solver.stride)) return false;
  if (!meets_needs(solver.needs, p) || architecture.rfind(solver.architectures, 0) != 0) return false;
  switch (solver.id) {
    case 15: return winograd_rxs(p, architecture);
    case 37: return winograd_rxs_f3x2(p, architecture);
    case 53: return (p.groups > 1 || p.direction == Direction::backward_weights) && winograd_rxs_f2x3(p, architecture);
    case 84: return winograd_rxs_f2x3(p, architecture);
    default: return true;
  }
}

const Entry* entry_of(const Solver& solver, const Problem& p, bool& is_listed) {
  auto line = find_db.find(p.key());
  if (line == find_db.end()) line = find_db.find("*");
  is_listed = line != find_db.end();
  if (!is_listed) return nullptr;
  const auto entry = line->second.find(solver.name);
  return entry == line->second.end() ? nullptr : &entry->second;
}

std::pair<std::string, Entry> parsed(const std::string& text) {
  std::istringstream fields(text);
  std::string name, milliseconds, bytes;
  std::getline(fields, name, ':');
  if (!registered(name)) misuse("no solver is called \"" + name + "\"");
  Entry entry;
  if (std::getline(fields, milliseconds, ',') && std::getline(fields, bytes, ',')) entry.workspace = std::stoull(bytes);
  return {name, entry};
}

}  // namespace

bool is_applicable(const Solver& solver, const Problem& p, const std::string& architecture) {
  const std::lock_guard lock(state);
  if (!std::strchr(solver.directions, "FBW"[static_cast<int>(p.direction)])) return false;
  if (p.is_deterministic && solver.algorithm == kImplicitGemm) return false;
  bool is_listed;
  const Entry* entry = entry_of(solver, p, is_listed);
  return is_listed ? entry != nullptr : by_rule(solver, p, architecture);
}

size_t workspace_bytes(const Solver& solver, const Problem& p) {
  if (solver.query == Query::zero) return 0;
  const std::lock_guard lock(state);
  bool is_listed;
  const Entry* entry = entry_of(solver, p, is_listed);
  if (entry && entry->workspace) return *entry->workspace;
  const int64_t bytes = bytes_of(p.type);
  switch (solver.workspace) {
    case Workspace::none: return 0;
    case Workspace::columns: return p.c * p.r * p.s * p.out_h * p.out_w * bytes;
    case Workspace::transposed: return p.layout == kNchw ? (p.x_elements() + p.y_elements()) * bytes : 0;
    case Workspace::wide_weights: return p.type == kFloat ? 0 : p.w_elements() * int64_t{sizeof(float)};
    case Workspace::spectra: return 2 * (p.x_elements() + p.w_elements() + p.y_elements()) * bytes;
  }
  return 0;
}

void set_applicable(const std::string& text) {
  std::map<std::string, Entries> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    if (line.empty()) continue;
    const size_t equals = line.find('=');
    if (equals == std::string::npos) misuse("\"" + line + "\" is no line of a find-db");
    Entries& entries = lines[line.substr(0, equals)];
    std::istringstream values(line.substr(equals + 1));
    for (std::string value; std::getline(values, value, ';');) entries.insert(parsed(value));
  }
  const std::lock_guard lock(state);
  find_db = std::move(lines);
}

void set_mlir(bool is_built_in) { has_mlir = is_built_in; }

}  // namespace stub
