// Pinned memory, for which the Rust bindings name a device, of which libtorch warns. No exception leaves this file.

#include "guarded.h"

#include <ATen/core/Tensor.h>

#include <cstddef>

extern "C" {

// A copy of a tensor in memory that a GPU copies from and to by itself, or the tensor where it is there already, which the caller frees; null when it failed: then `error` holds the reason, cut to
// `error_size` bytes with the final zero.
at::Tensor *longhaul_pinned(const at::Tensor *tensor, char *error, size_t error_size);
}

at::Tensor *longhaul_pinned(const at::Tensor *tensor, char *error, size_t error_size) {
  at::Tensor *pinned = nullptr;
  longhaul::guarded([&] { pinned = new at::Tensor(tensor->pin_memory()); }, error, error_size);
  return pinned;
}
