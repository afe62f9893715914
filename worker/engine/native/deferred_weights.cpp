// Products whose backward pass returns the gradient of the input, and defers those of the weights, behind a C interface. No exception leaves this file. See
// ../src/models/deferred.rs.

#include "guarded.h"
#include "operation.h"
#include "selection.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/mm.h>

#include <cstddef>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

extern "C" {

// Queue of deferred work.
struct longhaul_deferred;
// Deferred work of some backward passes.
struct longhaul_left;

// With `columns_only`, only products with selected columns leave their weights' gradients, computed at once, as those columns; all other gradients come with
// that of the input. Null on failure. Then, as everywhere here, `error` holds the reason, cut to `error_size` bytes with the final zero.
longhaul_deferred *longhaul_new_deferred(bool columns_only, char *error, size_t error_size);
void longhaul_free_deferred(longhaul_deferred *deferred);

// x [.., in] times the weight, which is [in, out] with `in_first` and [out, in] otherwise, plus the bias [out] unless null, in the format of x. Weight and
// bias are leaves of autograd's graph. The gradients of x and of the weight use `kept` values of each row of the product's gradient with `by_row`, and `kept`
// of its columns otherwise; all if `kept` is 0. Null on failure.
at::Tensor *longhaul_deferred_product(longhaul_deferred *deferred, const at::Tensor *x, const at::Tensor *weight,
                                      const at::Tensor *bias, bool in_first, int64_t kept, bool by_row, char *error,
                                      size_t error_size);

// Takes the work deferred since the last call. Null on failure.
longhaul_left *longhaul_take_left(longhaul_deferred *deferred, char *error, size_t error_size);
void longhaul_free_left(longhaul_left *left);

// The gradients of these leaves: for each a tensor owned by the caller, or null if none was deferred. False on failure.
bool longhaul_left_gradients(const longhaul_left *left, const at::Tensor *const *leaves, size_t count,
                             at::Tensor **gradients, char *error, size_t error_size);

// The columns [k] of the gradients of these leaves, and their values [k, in]: for each two tensors owned by the caller, or null if none were left. A leaf of
// several products has the columns of each, one after the other. False on failure.
bool longhaul_left_columns(const longhaul_left *left, const at::Tensor *const *leaves, size_t count,
                           at::Tensor **columns, at::Tensor **values, char *error, size_t error_size);
}

namespace longhaul {

struct Left {
  at::Tensor weight;
  at::Tensor x; // [N, in]
  Kept kept;
  bool in_first;
  std::optional<at::Tensor> bias;
  at::Tensor of_bias; // [out], if any: computed at once, because it needs the whole gradient and next to no time
};

// Columns of the gradient of a weight, and their values.
struct Columns {
  at::Tensor weight;
  at::Tensor columns; // [k]
  at::Tensor values;  // [k, in]
};

struct Queue : torch::CustomClassHolder {
  explicit Queue(bool only) : columns_only(only) {}
  const bool columns_only;
  std::mutex mutex;
  std::vector<Left> left;
  std::vector<Columns> columns;
};

class DeferredProduct final : public Operation {
public:
  DeferredProduct(bool in_first, Selection selection, c10::intrusive_ptr<Queue> queue)
      : in_first(in_first), selection(selection), queue(std::move(queue)) {}

  at::Tensor forward(AutogradContext *context, const at::Tensor &x, const std::optional<at::Tensor> &with,
                     const std::optional<at::Tensor> &added) override {
    context->save_for_backward({x});
    weight = *with;
    bias = added;
    const at::Tensor matrix = in_first ? weight.to(x.scalar_type()) : weight.to(x.scalar_type()).t(); // [in, out]
    const at::Tensor rows = x.reshape({-1, matrix.size(0)});
    const at::Tensor y = bias.has_value() ? at::addmm(bias->to(x.scalar_type()), rows, matrix) : at::mm(rows, matrix);
    std::vector<int64_t> sizes = x.sizes().vec();
    sizes.back() = matrix.size(1);
    return y.view(sizes);
  }

  InputGradients backward(AutogradContext *context, const at::Tensor &of_product) override {
    const at::Tensor x = context->get_saved_variables()[0].detach();
    const at::Tensor matrix = weight.detach().to(x.scalar_type()); // [in, out] or [out, in]
    const int64_t width = matrix.size(in_first ? 1 : 0);
    const at::Tensor gradient = of_product.detach().reshape({-1, width}); // [N, out]
    const Kept kept = keep(gradient, selection);
    // Pixels need none.
    const at::Tensor of_x = context->needs_input_grad(0)
                                ? gradient_of_input(kept, matrix, in_first).view(x.sizes())
                                : at::Tensor();
    const at::Tensor rows = x.reshape({-1, x.size(-1)});
    if (queue->columns_only) {
      return columns_at_once(kept, rows, of_x,
                             bias.has_value() ? gradient.sum(0).to(bias->scalar_type()) : at::Tensor());
    }
    const std::lock_guard<std::mutex> lock(queue->mutex);
    queue->left.push_back(
        Left{weight, rows, kept, in_first, bias, bias.has_value() ? gradient.sum(0) : at::Tensor()});
    return {of_x, {}, {}};
  }

private:
  // The columns go into the queue, and autograd gets no gradient of the weight, unless all columns are kept.
  InputGradients columns_at_once(const Kept &kept, const at::Tensor &x, const at::Tensor &of_x,
                                 const at::Tensor &of_bias) {
    if (!kept.columns.has_value()) {
      const int64_t out = weight.size(in_first ? 1 : 0);
      return {of_x, gradient_of_weight(kept, x, out, in_first).to(weight.scalar_type()), of_bias};
    }
    const at::Tensor values = at::mm(kept.gradient.t(), x).to(weight.scalar_type()); // [k, in]
    const std::lock_guard<std::mutex> lock(queue->mutex);
    queue->columns.push_back(Columns{weight, *kept.columns, values});
    return {of_x, {}, of_bias};
  }

  const bool in_first;
  const Selection selection;
  const c10::intrusive_ptr<Queue> queue;
  // The leaves themselves, as keys of their deferred work.
  at::Tensor weight;
  std::optional<at::Tensor> bias;
};

// Adds a gradient to the present one, if any.
void add(at::Tensor &sum, const at::Tensor &gradient) { sum = sum.defined() ? sum.add(gradient) : gradient; }

std::vector<at::Tensor> gradients_of(const std::vector<Left> &all, const at::Tensor *const *leaves, size_t count) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> sums(count);
  const auto add_to = [&](const at::Tensor &leaf, const at::Tensor &gradient) {
    for (size_t i = 0; i < count; ++i) {
      if (leaves[i]->is_same(leaf)) {
        return add(sums[i], gradient.to(leaf.scalar_type()));
      }
    }
    TORCH_CHECK(false, "a weight of sizes ", leaf.sizes(), " is none of the leaves");
  };
  for (const Left &left : all) {
    const int64_t out = left.weight.size(left.in_first ? 1 : 0);
    add_to(left.weight, gradient_of_weight(left.kept, left.x, out, left.in_first));
    if (left.bias.has_value()) {
      add_to(*left.bias, left.of_bias);
    }
  }
  return sums;
}

} // namespace longhaul

struct longhaul_deferred {
  c10::intrusive_ptr<longhaul::Queue> queue;
};

struct longhaul_left {
  std::vector<longhaul::Left> all;
  std::vector<longhaul::Columns> columns;
};

longhaul_deferred *longhaul_new_deferred(bool columns_only, char *error, size_t error_size) {
  longhaul_deferred *deferred = nullptr;
  const auto make = [&] { deferred = new longhaul_deferred{c10::make_intrusive<longhaul::Queue>(columns_only)}; };
  longhaul::guarded(make, error, error_size);
  return deferred;
}

void longhaul_free_deferred(longhaul_deferred *deferred) { delete deferred; }

at::Tensor *longhaul_deferred_product(longhaul_deferred *deferred, const at::Tensor *x, const at::Tensor *weight,
                                      const at::Tensor *bias, bool in_first, int64_t kept, bool by_row, char *error,
                                      size_t error_size) {
  at::Tensor *product = nullptr;
  const auto compute = [&] {
    const auto added = bias != nullptr ? std::optional<at::Tensor>(*bias) : std::nullopt;
    const longhaul::Selection selection{kept, by_row};
    const auto operation = c10::make_intrusive<longhaul::DeferredProduct>(in_first, selection, deferred->queue);
    product = new at::Tensor(longhaul::recorded(operation, *x, *weight, added));
  };
  longhaul::guarded(compute, error, error_size);
  return product;
}

longhaul_left *longhaul_take_left(longhaul_deferred *deferred, char *error, size_t error_size) {
  longhaul_left *left = nullptr;
  const auto take = [&] {
    left = new longhaul_left{};
    const std::lock_guard<std::mutex> lock(deferred->queue->mutex);
    left->all = std::exchange(deferred->queue->left, {});
    left->columns = std::exchange(deferred->queue->columns, {});
  };
  longhaul::guarded(take, error, error_size);
  return left;
}

void longhaul_free_left(longhaul_left *left) { delete left; }

bool longhaul_left_gradients(const longhaul_left *left, const at::Tensor *const *leaves, size_t count,
                             at::Tensor **gradients, char *error, size_t error_size) {
  const auto compute = [&] {
    const std::vector<at::Tensor> sums = longhaul::gradients_of(left->all, leaves, count);
    for (size_t i = 0; i < count; ++i) {
      gradients[i] = sums[i].defined() ? new at::Tensor(sums[i]) : nullptr;
    }
  };
  return longhaul::guarded(compute, error, error_size);
}

bool longhaul_left_columns(const longhaul_left *left, const at::Tensor *const *leaves, size_t count,
                           at::Tensor **columns, at::Tensor **values, char *error, size_t error_size) {
  const auto compute = [&] {
    const at::NoGradGuard no_grad;
    for (size_t i = 0; i < count; ++i) {
      std::vector<at::Tensor> which, what;
      for (const longhaul::Columns &found : left->columns) {
        if (leaves[i]->is_same(found.weight)) {
          which.push_back(found.columns);
          what.push_back(found.values);
        }
      }
      columns[i] = which.empty() ? nullptr : new at::Tensor(at::cat(which));
      values[i] = which.empty() ? nullptr : new at::Tensor(at::cat(what));
    }
  };
  return longhaul::guarded(compute, error, error_size);
}
