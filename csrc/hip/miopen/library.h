// MIOpen, AMD's library of convolutions, where torch for ROCm has brought it into the process.
#pragma once

#include "api.h"
#include "solver_table.h"

namespace reformer::miopen {

// Its functions, or null and the reason: it is not there, too old, or not MIOpen's own.
struct Library {
  const Api* api = nullptr;
  const char* reason = nullptr;
};
const Library& library();  // looked for once a process

// True if the library has the table's solver under the table's number. Asked once a process and solver.
bool is_registered(const Api& api, const MiopenSolver& solver);

}  // namespace reformer::miopen
