#include "profiler.h"

namespace reformer {
namespace {

ReformerProfiler profiler{};

}  // namespace

void set_profiler(const ReformerProfiler& functions) { profiler = functions; }

bool is_profiled() { return profiler.is_active && profiler.is_active(); }

ProfilerRange::ProfilerRange(const std::string& name) : range_(profiler.begin(name.c_str())) {}

ProfilerRange::~ProfilerRange() { profiler.end(range_); }

}  // namespace reformer
