// Products whose backward pass goes on with a part of the gradient of what came out, behind a C interface. No exception leaves this file. See
// ../src/models/sparse.rs.

#include "guarded.h"
#include "selection.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/mm.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

extern "C" {

// x [.., in] times the weight, which is [in, out] where `in_first` and [out, in] otherwise, plus the bias [out] unless that is null; all in one format.
// The gradients of x and of the weight are made of `kept` values of each row of that of the product where `by_row`, and of `kept` of its columns otherwise;
// that of the bias of all. Null when it failed: then `error` holds the reason, cut to `error_size` bytes with the final zero.
at::Tensor *longhaul_sparse_product(const at::Tensor *x, const at::Tensor *weight, const at::Tensor *bias, bool in_first,
                                    int64_t kept, bool by_row, char *error, size_t error_size);
}

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Product : torch::autograd::Function<Product> {
  static at::Tensor forward(AutogradContext *context, const at::Tensor &x, const at::Tensor &weight,
                            const std::optional<at::Tensor> &bias, bool in_first, int64_t kept, bool by_row) {
    context->save_for_backward({x, weight});
    context->saved_data["in_first"] = in_first;
    context->saved_data["kept"] = kept;
    context->saved_data["by_row"] = by_row;
    context->saved_data["biased"] = bias.has_value();
    const at::Tensor matrix = in_first ? weight : weight.t(); // [in, out]
    const at::Tensor rows = x.reshape({-1, matrix.size(0)});
    const at::Tensor y = bias.has_value() ? at::addmm(*bias, rows, matrix) : at::mm(rows, matrix);
    std::vector<int64_t> sizes = x.sizes().vec();
    sizes.back() = matrix.size(1);
    return y.view(sizes);
  }

  static variable_list backward(AutogradContext *context, variable_list gradients) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1];
    const bool in_first = context->saved_data["in_first"].toBool();
    const int64_t out = weight.size(in_first ? 1 : 0);
    const at::Tensor gradient = gradients[0].reshape({-1, out}); // [N, out]
    const longhaul::Selection selection{context->saved_data["kept"].toInt(), context->saved_data["by_row"].toBool()};
    at::Tensor of_x, of_weight, of_bias;
    if (context->needs_input_grad(0) || context->needs_input_grad(1)) {
      const longhaul::Kept kept = longhaul::keep(gradient, selection);
      if (context->needs_input_grad(0)) {
        of_x = longhaul::gradient_of_input(kept, weight, in_first).view(x.sizes());
      }
      if (context->needs_input_grad(1)) {
        of_weight = longhaul::gradient_of_weight(kept, x.reshape({-1, x.size(-1)}), out, in_first);
      }
    }
    // Without a bias there are two inputs only that may want a gradient.
    if (context->saved_data["biased"].toBool() && context->needs_input_grad(2)) {
      of_bias = gradient.sum(0);
    }
    return {of_x, of_weight, of_bias, {}, {}, {}};
  }
};

} // namespace

at::Tensor *longhaul_sparse_product(const at::Tensor *x, const at::Tensor *weight, const at::Tensor *bias, bool in_first,
                                    int64_t kept, bool by_row, char *error, size_t error_size) {
  at::Tensor *product = nullptr;
  const auto compute = [&] {
    TORCH_CHECK(x->dim() >= 1 && weight->dim() == 2, "a product takes rows and a matrix, not sizes ", x->sizes(), " and ",
                weight->sizes());
    TORCH_CHECK(kept >= 1, "a backward pass goes on with one column at least, not ", kept);
    const auto added = bias != nullptr ? std::optional<at::Tensor>(*bias) : std::nullopt;
    product = new at::Tensor(Product::apply(*x, *weight, added, in_first, kept, by_row));
  };
  longhaul::guarded(compute, error, error_size);
  return product;
}
