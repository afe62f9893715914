#include "selection.h"

#include <ATen/OpMathType.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <tuple>

namespace longhaul {

namespace {

Kept keep_values(const at::Tensor &gradient, int64_t count) {
  const at::Tensor places = std::get<1>(gradient.abs().topk(count, 1, /*largest=*/true, /*sorted=*/false)); // [N, k]
  return Kept{at::zeros_like(gradient).scatter_(1, places, gradient.gather(1, places)), std::nullopt};
}

Kept keep_columns(const at::Tensor &gradient, int64_t count) {
  // Sums of half-precision values are made in f32: in their own format, small ones would be lost beside large ones.
  const at::Tensor sums = gradient.abs().sum(0, /*keepdim=*/false, at::toOpMathType(gradient.scalar_type())); // [out]
  const at::Tensor largest = std::get<1>(sums.topk(count, 0, /*largest=*/true, /*sorted=*/false));
  const at::Tensor columns = std::get<0>(largest.sort()); // [k]
  return Kept{gradient.index_select(1, columns), columns};
}

} // namespace

Kept keep(const at::Tensor &gradient, Selection selection) {
  const auto [count, by_row] = selection;
  if (count <= 0 || count >= gradient.size(1)) {
    return Kept{gradient, std::nullopt};
  }
  return by_row ? keep_values(gradient, count) : keep_columns(gradient, count);
}

at::Tensor gradient_of_input(const Kept &kept, const at::Tensor &weight, bool in_first) {
  const int64_t of_outputs = in_first ? 1 : 0;
  const at::Tensor used = kept.columns.has_value() ? weight.index_select(of_outputs, *kept.columns) : weight;
  return at::mm(kept.gradient, in_first ? used.t() : used);
}

at::Tensor gradient_of_weight(const Kept &kept, const at::Tensor &x, int64_t out, bool in_first) {
  const at::Tensor product = in_first ? at::mm(x.t(), kept.gradient) : at::mm(kept.gradient.t(), x);
  if (!kept.columns.has_value()) {
    return product;
  }
  const int64_t in = x.size(1);
  at::Tensor whole = in_first ? at::zeros({in, out}, product.options()) : at::zeros({out, in}, product.options());
  return whole.index_copy_(in_first ? 1 : 0, *kept.columns, product);
}

} // namespace longhaul
