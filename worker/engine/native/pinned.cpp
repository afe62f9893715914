// Pinned memory: the Rust bindings name a device for it, about which libtorch warns. No exception leaves this file.

#include "guarded.h"

#include <ATen/core/Tensor.h>

#include <cstddef>

extern "C" {

// A copy of a tensor in pinned memory, or the tensor if already pinned, freed by the caller; null on failure: then `error` holds the reason, cut to
// `error_size` bytes with the final zero.
at::Tensor *longhaul_pinned(const at::Tensor *tensor, char *error, size_t error_size);
}

at::Tensor *longhaul_pinned(const at::Tensor *tensor, char *error, size_t error_size) {
  at::Tensor *pinned = nullptr;
  longhaul::guarded([&] { pinned = new at::Tensor(tensor->pin_memory()); }, error, error_size);
  return pinned;
}
