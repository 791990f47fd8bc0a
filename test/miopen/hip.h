// What MIOpen asks of HIP, whose library (test/hip/fake_hip.c) is in the process already.
#pragma once

#include <string>

namespace stub::hip {

int current_device();
void set_current_device(int device);
bool is_capturing(void* stream);
std::string architecture(int device);  // gfx90a

}  // namespace stub::hip
