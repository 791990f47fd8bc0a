#include "c_api.h"

#include <algorithm>
#include <exception>
#include <stdexcept>
#include <string>
#include <vector>

#include "cpu/cost.h"
#include "cpu/parallel.h"
#include "dispatch/decide.h"
#include "dispatch/pytorch_settings.h"
#include "dispatch/selectors.h"
#include "dispatch/solver_list.h"
#include "jit/cache.h"
#include "jit/code_objects.h"
#include "jit/compiled.h"
#include "jit/gpu.h"
#include "jit/rtc.h"
#include "plan/interned.h"

namespace {

using namespace reformer;

thread_local std::string text;
thread_local std::string error;

const char* keep(std::string value) {
  text = std::move(value);
  return text.c_str();
}

// Turns an exception into `failed` and the error sentence.
template <class Result, class Body>
Result guarded(Result failed, const Body& body) {
  try {
    return body();
  } catch (const std::exception& exception) {
    error = exception.what();
    return failed;
  }
}

Device device_of(const char* text) {
  Device device = text ? Device::parse(text) : Device::cpu(max_threads());
  device.tf32 = allows_tf32(device);
  device.deterministic = asks_for_determinism(device);
  return device;
}

int32_t index_of(const Decision& choice) {
  return static_cast<int32_t>(std::find(solvers().begin(), solvers().end(), choice.solver) - solvers().begin());
}

std::shared_ptr<const Selector> selector_of(const Device& device) {
  auto selector = find_selector(device);
  if (!selector) throw std::invalid_argument("there is no selector for " + device.str() + ": the static rule chooses");
  return selector;
}

Decides decides_of(int32_t number) {
  if (number != int32_t(Decides::kernels) && number != int32_t(Decides::epilogues))
    throw std::invalid_argument("selectors decide about kernels (0) or epilogues (1)");
  return Decides(number);
}

std::shared_ptr<const Selector> selector_from(const ReformerSelector& s) {
  if (s.feature_version != kFeatureVersion)
    throw std::invalid_argument("the selector for " + std::string(s.arch) + " was trained on version " +
                                std::to_string(s.feature_version) + " of the features, and this is version " +
                                std::to_string(kFeatureVersion) +
                                ": train it anew with `python -m torch_reformer train` of this installation");
  const Decides decides = decides_of(s.decides);
  std::vector<std::string> names;
  if (decides == Decides::kernels)
    for (const Solver* solver : solvers()) names.push_back(solver->name());
  else
    names.assign(std::begin(kEpilogueWays), std::end(kEpilogueWays));
  auto selector =
      std::make_shared<Selector>(decides, SelectorShape{s.rows, s.width, s.hidden, s.blocks},
                                 std::vector<std::string>(s.names, s.names + s.candidates), names, s.tensors);
  for (size_t way = 0; decides == Decides::epilogues && way < names.size(); ++way)
    if (selector->candidate_of(way) < 0)
      throw std::invalid_argument("a selector of epilogues must know the way \"" + names[way] + "\"");
  return selector;
}

void copy(const Features& features, int32_t*& rows, float*& weights) {
  for (const auto& token : features.tokens)
    for (const Features::Term& term : token) {
      *rows++ = term.row;
      *weights++ = term.weight;
    }
}

// A program's call behind the problem's convolution, without its tensors.
ProgramCall call_without_tensors(const Program& program, const ConvProblem& p) {
  const auto type = Stored(int8_t(p.dtype));
  ProgramCall call{program, {p.layout, p.n, p.k, int64_t{p.out_h()} * p.out_w()}, type, nullptr, {}, {}};
  for (const ProgramInput& input : program.inputs) {
    if (input.kind == ProgramOp::table || input.kind == ProgramOp::index)
      throw std::invalid_argument("tables are looked up behind no convolution");
    const Stored given = input.kind == ProgramOp::random ? Stored::key
                         : input.kind == ProgramOp::full ? type
                                                         : Stored::fp32;
    call.inputs.push_back({nullptr, given});
  }
  return call;
}

}  // namespace

void reformer::report_error(const char* sentence) { error = sentence; }

const char* reformer_error() { return error.c_str(); }

int32_t reformer_problem_parse(const char* key, ConvProblem* problem) {
  return guarded(-1, [&] {
    *problem = ConvProblem::parse(key);
    return 0;
  });
}

const char* reformer_problem_str(const ConvProblem* problem) {
  return guarded<const char*>(nullptr, [&] {
    problem->check();
    return keep(problem->str());
  });
}

const char* reformer_problem_kind(const ConvProblem* problem) {
  return guarded<const char*>(nullptr, [&] {
    problem->check();
    return name(problem->kind());
  });
}

const char* reformer_device(const char* device) {
  return guarded<const char*>(nullptr, [&] { return keep(device_of(device).str()); });
}

int32_t reformer_solver_count() { return static_cast<int32_t>(solvers().size()); }

const char* reformer_solver_name(int32_t index) {
  return guarded<const char*>(nullptr, [&] { return solvers().at(size_t(index))->name(); });
}

int32_t reformer_decide(const ConvProblem* problem, const char* device) {
  return guarded(-1, [&] {
    problem->check();
    return index_of(decide(*problem, device_of(device)));
  });
}

int32_t reformer_decide_all(const ConvProblem* problems, int64_t count, const char* device_text, int32_t* choices) {
  return guarded(-1, [&] {
    const Device device = device_of(device_text);
    for (int64_t i = 0; i < count; ++i) {
      problems[i].check();
      choices[i] = index_of(decide(problems[i], device));
    }
    return 0;
  });
}

int32_t reformer_candidates(const ConvProblem* problem, const char* device_text, ReformerCandidate* result,
                            int32_t* count) {
  return guarded(-1, [&] {
    problem->check();
    const auto found = candidates(*problem, device_of(device_text), config());
    *count = static_cast<int32_t>(found.size());
    for (const Candidate& candidate : found)
      *result++ = {candidate.solver->name(), candidate.refusal,     candidate.estimate_us, candidate.workspace_bytes,
                   int32_t(candidate.index), candidate.probability, candidate.condition};
    return reformer_decide(problem, device_text);
  });
}

int32_t reformer_run(const ConvProblem* problem, const char* device_text, int32_t solver, void* x, void* w, void* y,
                     const void* bias, gpu::Launcher launcher) {
  return guarded(-1, [&] {
    problem->check();
    const Device device = device_of(device_text);
    const Solver& chosen = *solvers().at(size_t(solver));
    if (!chosen.runs_on(device)) throw std::invalid_argument("the solver does not run on such a device");
    const Planned<ConvPlan> planned = chosen.plan(*problem, device);
    if (!planned.plan) throw std::invalid_argument(planned.reason);
    if (!planned.plan->run) throw std::invalid_argument("PyTorch's own convolution takes tensors");
    // NaN, for those who read what they didn't write.
    std::vector<char> workspace(size_t(planned.plan->workspace_bytes) + 64, '\xff');
    const auto address = reinterpret_cast<uintptr_t>(workspace.data());
    planned.plan->run({x, w, y, bias, reinterpret_cast<void*>((address + 63) / 64 * 64), {0, nullptr, launcher}});
    return 0;
  });
}

int32_t reformer_conv_plan(const ConvProblem* problem, int32_t index, ReformerConvPlan* found) {
  return guarded(-1, [&] {
    // Made once a thread: a GPU's name is a string.
    thread_local Device device;
    thread_local int32_t device_index = -2;
    if (index != device_index) {
      device = index < 0 ? Device::cpu(max_threads()) : gpu::device(index);
      device_index = index;
    }
    if (index < 0) device.threads = max_threads();
    device.tf32 = problem->dtype == DType::fp32 && allows_tf32(device);
    device.deterministic = asks_for_determinism(device);
    const ConvPlan* const plan = decide(*problem, device).plan.get();
    *found = {plan, plan->workspace_bytes, plan->aten ? int32_t(*plan->aten) : -1, plan->leaves_bias};
    return 0;
  });
}

int32_t reformer_cost_class(const ConvProblem* problem) {
  return guarded(-1, [&] {
    problem->check();
    return cost_class(*problem);
  });
}

int32_t reformer_cost_terms(const ConvProblem* problem, const char* device, double* terms) {
  return guarded(-1, [&] {
    problem->check();
    const CostTerms found = cost_terms(*problem, device_of(device));
    terms[0] = found.flop_us;
    terms[1] = found.bytes_us;
    terms[2] = 1;
    return 0;
  });
}

int32_t reformer_epilogue(const ConvProblem* problem, const char* device, const int64_t* code, int64_t size,
                          ReformerEpilogue* epilogue, int32_t* rows, float* weights) {
  return guarded(-1, [&] {
    problem->check();
    const auto program = interned_program(code, size);
    const ProgramCall call = call_without_tensors(program->whole, *problem);
    const FusionChoice found = choose_fusion(*problem, device_of(device), call);
    *epilogue = {index_of(found.separate), found.fused.solver ? index_of(found.fused) : -1, found.is_fused,
                 found.features.has_value(), found.probability};
    if (found.features) copy(*found.features, rows, weights);
    return 0;
  });
}

void reformer_feature_shape(int32_t decides, int32_t shape[4]) {
  const int32_t count = Decides(decides) == Decides::kernels ? feature_rows() : epilogue_feature_rows();
  const int32_t values[] = {kFeatureVersion, kTokens, kTerms, count};
  std::copy(std::begin(values), std::end(values), shape);
}

int32_t reformer_features(const ConvProblem* problems, int64_t count, const char* device_text, int32_t* rows,
                          float* weights) {
  return guarded(-1, [&] {
    const Device device = device_of(device_text);
    for (const ConvProblem* problem = problems; problem < problems + count; ++problem) {
      problem->check();
      copy(features(*problem, device), rows, weights);
    }
    return 0;
  });
}

int32_t reformer_selector_check(const ReformerSelector* s) {
  return guarded(-1, [&] {
    selector_from(*s);
    return 0;
  });
}

int32_t reformer_selector_set(const ReformerSelector* s) {
  return guarded(-1, [&] {
    set_selector(s->arch, decides_of(s->decides), selector_from(*s));
    return 0;
  });
}

int32_t reformer_selector_remove(const char* arch, int32_t decides) {
  return guarded(-1, [&] {
    set_selector(arch, decides_of(decides), nullptr);
    return 0;
  });
}

int32_t reformer_selector_candidates(const char* device) {
  return guarded(-1, [&] { return static_cast<int32_t>(selector_of(device_of(device))->candidates().size()); });
}

int32_t reformer_selector_logits(const ConvProblem* problems, int64_t count, const char* device_text, int32_t isa,
                                 float* logits) {
  return guarded(-1, [&] {
    const Device device = device_of(device_text);
    const auto selector = selector_of(device);
    const Isa chosen = isa_of(isa);
    for (int64_t i = 0; i < count; ++i, logits += selector->candidates().size()) {
      problems[i].check();
      selector->logits(features(problems[i], device), logits, chosen);
    }
    return 0;
  });
}

int32_t reformer_set_config(const ReformerConfig* c) {
  return guarded(-1, [&] {
    if (c->epilogues < 0 || c->epilogues > int32_t(Epilogues::separate))
      throw std::invalid_argument("epilogues are chosen (0), fused (1) or separate (2)");
    std::vector<bool> forbidden(solvers().size());
    for (int32_t i = 0; i < c->forbidden_count; ++i) forbidden.at(size_t(c->forbidden[i])) = true;
    set_config({std::move(forbidden), c->forced, c->workspace_limit, c->deterministic_only != 0,
                c->allow_reduced_accuracy != 0, Epilogues(c->epilogues)});
    return 0;
  });
}

void reformer_set_tf32_reader(SettingReader reader) { set_tf32_reader(reader); }
void reformer_set_deterministic_reader(SettingReader reader) { set_deterministic_reader(reader); }

int32_t reformer_allows_tf32(const char* device) {
  return guarded(-1, [&] { return int32_t(device_of(device).tf32); });
}

void reformer_cache_counts(int64_t* hits, int64_t* misses) {
  const CacheCounts counts = decision_cache_counts();
  *hits = counts.hits;
  *misses = counts.misses;
}

int32_t reformer_operation_count() { return kProgramOpCount; }
const char* reformer_operation_name(int32_t number) { return kProgramOps[number].name; }
int32_t reformer_operation_operands(int32_t number) { return kProgramOps[number].operands; }

int64_t reformer_intern_plan(const int64_t* code, int64_t size) {
  return guarded<int64_t>(-1, [&] { return intern_plan(code, size); });
}

void reformer_release_plan(int64_t number) { release_plan(number); }

void reformer_interned_counts(int64_t* programs, int64_t* plans) {
  const InternedCounts counts = interned_counts();
  *programs = counts.programs;
  *plans = counts.plans;
}

void reformer_gpu_kernels(const char* folder) { gpu::set_kernels_folder(folder); }

void reformer_gpu_nvrtc(const char* file) { gpu::set_nvrtc_file(file); }

const char* reformer_gpu_architecture(int32_t device) {
  return guarded<const char*>(nullptr, [&] { return gpu::architecture(device).c_str(); });
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
    *cached = compiled.from_cache;
    *code = keep(std::move(compiled.code));
    return static_cast<int64_t>(text.size());
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
