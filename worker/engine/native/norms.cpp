// Norms of many tensors at once, which the Rust bindings lack, behind a C interface. No exception leaves this file.

#include "guarded.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/stack.h>

#include <cstddef>
#include <vector>

extern "C" {

// The norms [count] of `count` tensors, freed by the caller; null on failure: then `error` holds the reason, cut to `error_size` bytes with the final zero.
at::Tensor *longhaul_norms(const at::Tensor *const *tensors, size_t count, char *error, size_t error_size);
}

at::Tensor *longhaul_norms(const at::Tensor *const *tensors, size_t count, char *error, size_t error_size) {
  at::Tensor *norms = nullptr;
  const auto make = [&] {
    const at::NoGradGuard no_grad;
    std::vector<at::Tensor> all;
    all.reserve(count);
    for (size_t i = 0; i < count; ++i) {
      all.push_back(*tensors[i]);
    }
    norms = new at::Tensor(at::stack(at::_foreach_norm(all, 2)));
  };
  longhaul::guarded(make, error, error_size);
  return norms;
}
