#include "program_text.h"

#include "jit/cache.h"
#include "program/program_key.h"
#include "set_cache.h"
#include "stitch_args.h"
#include "stitch_source.h"

namespace reformer {

static_assert(kStitchMostInputs <= ProgramKey::kMostInputs);

const ProgramText& program_text(const ProgramCall& call) {
  thread_local SetCache<ProgramKey, ProgramText> known;
  const ProgramKey key(call);
  const uint64_t hash = key.hash();
  if (const ProgramText* found = known.find(key, hash)) return *found;
  std::string source = stitch_source(call);
  std::string digest = gpu::digest(source).substr(0, 16);
  return known.remember(key, hash, {std::move(source), std::move(digest)});
}

gpu::Kernel stitch_finish(const ProgramText& program) {
  const std::string name = "stitch_finish_" + program.digest;
  return {"pointwise/stitch", name, "0", program.source + "REFORMER_STITCH_FINISH(" + name + ", Program)\n"};
}

}  // namespace reformer
