// The part of a product's output gradient used by its backward pass (meProp: Sun et al. 2017, "meProp: Sparsified back propagation for accelerated deep
// learning with reduced overfitting", arXiv 1706.06197). See ../docs/sparse.md.

#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

namespace longhaul {

struct Selection {
  // Values of each row, or columns; 0: all of them.
  int64_t kept;
  // Each row keeps its own values; otherwise all rows keep the same columns.
  bool by_row;
};

// The selected part of a gradient [N, out].
struct Kept {
  // [N, out] with zeros, or the columns [N, k] alone.
  at::Tensor gradient;
  // Indices of those columns, ascending [k].
  std::optional<at::Tensor> columns;
};

// The largest magnitudes of each row; or the columns with the largest sums of magnitudes.
Kept keep(const at::Tensor &gradient, Selection selection);

// The gradient of the input [N, in], for a weight that is [in, out] with `in_first` and [out, in] otherwise.
at::Tensor gradient_of_input(const Kept &kept, const at::Tensor &weight, bool in_first);

// That of such a weight with `out` columns, for the input [N, in].
at::Tensor gradient_of_weight(const Kept &kept, const at::Tensor &x, int64_t out, bool in_first);

} // namespace longhaul
