// MIOpen, AMD's library of convolutions, as loaded into the process by torch for ROCm.
#pragma once

#include "api.h"
#include "solver_table.h"

namespace reformer::miopen {

// MIOpen's functions; or null and the reason: it is missing, too old, or not MIOpen itself.
struct Library {
  const Api* api = nullptr;
  const char* reason = nullptr;
};
const Library& library();  // looked up once per process

// True if the library has the table's solver under the table's number. Checked once per process and solver.
bool is_registered(const Api& api, const MiopenSolver& solver);

}  // namespace reformer::miopen
