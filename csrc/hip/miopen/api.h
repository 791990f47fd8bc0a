// The functions of MIOpen's C API that this package calls, as declared in AMD's public header (MIOpen 2.20 to 3.5),
// which is not needed to build.
#pragma once

#include <cstddef>
#include <cstdint>

namespace reformer::miopen {

using Status = int;
constexpr Status kSuccess = 0, kBadParameter = 3;

using Handle = void*;
using TensorDescriptor = void*;
using ConvDescriptor = void*;

// In every direction: the descriptors of two operands, of the convolution, and of the result.
using WorkspaceSize = Status (*)(Handle, TensorDescriptor, TensorDescriptor, ConvDescriptor, TensorDescriptor,
                                 uint64_t solver, size_t* bytes);
using Compile = Status (*)(Handle, TensorDescriptor, TensorDescriptor, ConvDescriptor, TensorDescriptor,
                           uint64_t solver);
using Run = Status (*)(Handle, TensorDescriptor, const void*, TensorDescriptor, const void*, ConvDescriptor,
                       TensorDescriptor, void* result, void* workspace, size_t bytes, uint64_t solver);

struct Api {
  Status (*version)(size_t* major, size_t* minor, size_t* patch);
  const char* (*error_string)(Status);  // name of the status
  Status (*create)(Handle*, void* stream);
  Status (*set_stream)(Handle, void* stream);
  Status (*create_tensor)(TensorDescriptor*);
  Status (*destroy_tensor)(TensorDescriptor);
  Status (*set_tensor)(TensorDescriptor, int type, int layout, const int* sizes, int dimensions);
  Status (*create_conv)(ConvDescriptor*);
  Status (*destroy_conv)(ConvDescriptor);
  Status (*init_conv)(ConvDescriptor, int dimensions, const int* padding, const int* stride, const int* dilation,
                      int mode);
  Status (*set_groups)(ConvDescriptor, int groups);
  Status (*set_attribute)(ConvDescriptor, int attribute, int value);
  Status (*algorithm_of)(uint64_t solver, int* algorithm);
  // Indexed by Direction.
  WorkspaceSize workspace_size[3];
  Compile compile[3];
  Run run[3];
};

}  // namespace reformer::miopen
