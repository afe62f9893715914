// Products whose backward pass uses a part of the output's gradient, behind a C interface. No exception leaves this file. See ../src/models/sparse.rs.

#include "guarded.h"
#include "operation.h"
#include "selection.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/mm.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

extern "C" {

// x [.., in] times the weight, which is [in, out] with `in_first` and [out, in] otherwise, plus the bias [out] unless null; all in one format. The gradients
// of x and of the weight use `kept` values of each row of the product's gradient with `by_row`, and `kept` of its columns otherwise; that of the bias uses
// all. Null on failure: then `error` holds the reason, cut to `error_size` bytes with the final zero.
at::Tensor *longhaul_sparse_product(const at::Tensor *x, const at::Tensor *weight, const at::Tensor *bias, bool in_first,
                                    int64_t kept, bool by_row, char *error, size_t error_size);
}

namespace {

using longhaul::AutogradContext;
using longhaul::InputGradients;

class SparseProduct final : public longhaul::Operation {
public:
  SparseProduct(bool in_first, longhaul::Selection selection) : in_first(in_first), selection(selection) {}

  at::Tensor forward(AutogradContext *context, const at::Tensor &x, const std::optional<at::Tensor> &weight,
                     const std::optional<at::Tensor> &bias) override {
    context->save_for_backward({x, *weight});
    biased = bias.has_value();
    const at::Tensor matrix = in_first ? *weight : weight->t(); // [in, out]
    const at::Tensor rows = x.reshape({-1, matrix.size(0)});
    const at::Tensor y = biased ? at::addmm(*bias, rows, matrix) : at::mm(rows, matrix);
    std::vector<int64_t> sizes = x.sizes().vec();
    sizes.back() = matrix.size(1);
    return y.view(sizes);
  }

  InputGradients backward(AutogradContext *context, const at::Tensor &of_product) override {
    const longhaul::variable_list saved = context->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1];
    const int64_t out = weight.size(in_first ? 1 : 0);
    const at::Tensor gradient = of_product.reshape({-1, out}); // [N, out]
    InputGradients of;
    if (context->needs_input_grad(0) || context->needs_input_grad(1)) {
      const longhaul::Kept kept = longhaul::keep(gradient, selection);
      if (context->needs_input_grad(0)) {
        of.x = longhaul::gradient_of_input(kept, weight, in_first).view(x.sizes());
      }
      if (context->needs_input_grad(1)) {
        of.weight = longhaul::gradient_of_weight(kept, x.reshape({-1, x.size(-1)}), out, in_first);
      }
    }
    // Without a bias only two inputs may need a gradient.
    if (biased && context->needs_input_grad(2)) {
      of.bias = gradient.sum(0);
    }
    return of;
  }

private:
  const bool in_first;
  const longhaul::Selection selection;
  bool biased = false;
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
    const auto operation = c10::make_intrusive<SparseProduct>(in_first, longhaul::Selection{kept, by_row});
    product = new at::Tensor(longhaul::recorded(operation, *x, *weight, added));
  };
  longhaul::guarded(compute, error, error_size);
  return product;
}
