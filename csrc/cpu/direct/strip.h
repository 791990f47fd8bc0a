// Strips of a direct convolution's tensors: packed with padding, converted, and split into phases.
#pragma once

#include "config.h"
#include "kernels.h"

namespace reformer {

// The part of one task: positions [begin, begin + rows) of the height, and `channels` channels from `channel` on.
struct DirectStrip {
  int32_t image, begin, rows;
  int64_t channel;
  int32_t channels;
};

// Packs the planes [channel][phase of h][phase of w] of a strip; zero outside the source.
template <class T>
void pack_source(const DirectConfig& config, const DirectCopies<T>& copies, T* tensor, const DirectStrip& strip,
                 typename Element<T>::Sum* planes);

// Packs the target [channel] of a strip for weight_grad; zero between width and pitch, and up to target_step.
template <class T>
void pack_target(const DirectConfig& config, const DirectCopies<T>& copies, T* tensor, const DirectStrip& strip,
                 typename Element<T>::Sum* packed);

// Stores the results [pass][channel] of a strip.
template <class T>
void unpack_target(const DirectConfig& config, const DirectCopies<T>& copies, const typename Element<T>::Sum* packed,
                   const DirectStrip& strip, T* tensor);

}  // namespace reformer
