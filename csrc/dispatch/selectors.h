// The selectors in force, one for each kind of device and decision: "cpu" for every CPU, else the architecture's name.
#pragma once

#include <memory>
#include <string>

#include "device.h"
#include "selector/selector.h"

namespace reformer {

// Replaces the selector of an architecture ("cpu", "gfx942", "sm_90"), or removes it if null. Invalidates all threads'
// decisions. Throws std::invalid_argument for other names.
void set_selector(const std::string& arch, Decides decides, std::shared_ptr<const Selector> selector);

// Null if there is no such selector for this device.
std::shared_ptr<const Selector> find_selector(const Device& device, Decides decides = Decides::kernels);

}  // namespace reformer
