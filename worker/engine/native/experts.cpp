// Mixtures of experts, behind a C interface. No exception leaves this file. See ../src/models/experts.rs.

#include "guarded.h"
#include "operation.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/addcmul.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/silu_backward.h>
#include <ATen/ops/zeros.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

extern "C" {

// Tokens x [N, D] through their k experts each: rows [R, D], those of an expert one after the other. `inner` [E, 2F, D] and `outer` [E, D, F] are the
// matrices, which are cast to the format of x one by one. Row r computes token order[r] / k; place[t·k + j] is the row of a token's j-th expert; counts[e] rows are those of expert e,
// on the host. No place has the rows beyond N·k, whose gradients must be zero. Null on failure: then `error` holds the reason, cut to `error_size` bytes with
// the final zero.
at::Tensor *longhaul_expert_rows(const at::Tensor *x, const at::Tensor *inner, const at::Tensor *outer, const at::Tensor *order,
                                 const at::Tensor *place, const int64_t *counts, size_t experts, char *error, size_t error_size);

// The sums [N, D] in f32 of each token's rows of all [R, D] by its weights [N, k] in f32. Expert e has counts[e] rows, of which tokens read the first
// read[e]. Null on failure, as above.
at::Tensor *longhaul_combine_rows(const at::Tensor *rows, const at::Tensor *weights, const at::Tensor *order, const at::Tensor *place,
                                  const int64_t *counts, const int64_t *read, size_t experts, char *error, size_t error_size);

// x [N, E], to whose gradient `added` [E] is added in each row. Null on failure, as above.
at::Tensor *longhaul_with_gradient(const at::Tensor *x, const at::Tensor *added, char *error, size_t error_size);
}

namespace {

using longhaul::AutogradContext;
using longhaul::InputGradients;

// Calls `of` with each expert that has rows, the first of them and their number.
template <typename Of> void each_expert(const std::vector<int64_t> &counts, const Of &of) {
  int64_t start = 0;
  for (size_t expert = 0; expert < counts.size(); ++expert) {
    if (counts[expert] > 0) {
      of(static_cast<int64_t>(expert), start, counts[expert]);
    }
    start += counts[expert];
  }
}

// The rows of each expert by its matrix, transposed or not, in the format of the rows.
at::Tensor grouped(const at::Tensor &rows, const at::Tensor &matrices, bool transposed, const std::vector<int64_t> &counts) {
  at::Tensor product = at::empty({rows.size(0), matrices.size(transposed ? 1 : 2)}, rows.options());
  each_expert(counts, [&](int64_t expert, int64_t start, int64_t count) {
    at::Tensor part = product.narrow(0, start, count);
    const at::Tensor matrix = matrices.select(0, expert).to(rows.scalar_type());
    at::mm_out(part, rows.narrow(0, start, count), transposed ? matrix.t() : matrix);
  });
  return product;
}

// The gradients of the experts' matrices [E, out, in], from those of their products and their inputs. Without rows they are zero.
at::Tensor grouped_gradient(const at::Tensor &of_product, const at::Tensor &rows, const at::Tensor &matrices,
                            const std::vector<int64_t> &counts) {
  at::Tensor gradient = at::empty(matrices.sizes(), matrices.options());
  for (size_t expert = 0; expert < counts.size(); ++expert) {
    if (counts[expert] == 0) {
      gradient.select(0, static_cast<int64_t>(expert)).zero_();
    }
  }
  each_expert(counts, [&](int64_t expert, int64_t start, int64_t count) {
    at::Tensor part = gradient.select(0, expert);
    const at::Tensor transposed = of_product.narrow(0, start, count).t(), own = rows.narrow(0, start, count);
    if (part.scalar_type() == rows.scalar_type()) {
      at::mm_out(part, transposed, own);
    } else {
      part.copy_(at::mm(transposed, own));
    }
  });
  return gradient;
}

class ExpertRows final : public longhaul::Operation {
public:
  ExpertRows(const at::Tensor &order, const at::Tensor &place, std::vector<int64_t> counts)
      : order(order), place(place), counts(std::move(counts)) {}

  at::Tensor forward(AutogradContext *context, const at::Tensor &x, const std::optional<at::Tensor> &inner,
                     const std::optional<at::Tensor> &outer) override {
    const at::Tensor both = grouped(rows_of(x), *inner, true, counts); // [N·k, 2F]
    context->save_for_backward({x, *inner, *outer, both});
    const auto halves = both.chunk(2, 1);
    return grouped(at::silu(halves[0]).mul_(halves[1]), *outer, true, counts);
  }

  InputGradients backward(AutogradContext *context, const at::Tensor &of_rows) override {
    const longhaul::variable_list saved = context->get_saved_variables();
    const at::Tensor &x = saved[0], &inner = saved[1], &outer = saved[2], &both = saved[3];
    const at::Tensor gradient = of_rows.contiguous();
    const auto halves = both.chunk(2, 1);
    const at::Tensor gate = at::silu(halves[0]);
    InputGradients of;
    if (context->needs_input_grad(2)) {
      of.bias = grouped_gradient(gradient, gate.mul(halves[1]), outer, counts);
    }
    if (!context->needs_input_grad(0) && !context->needs_input_grad(1)) {
      return of;
    }
    const at::Tensor of_product = grouped(gradient, outer, false, counts); // [N·k, F]
    at::Tensor of_both = at::empty_like(both);
    auto parts = of_both.chunk(2, 1);
    parts[1].copy_(gate.mul_(of_product));
    parts[0].copy_(at::silu_backward(of_product.mul(halves[1]), halves[0]));
    if (context->needs_input_grad(1)) {
      of.weight = grouped_gradient(of_both, rows_of(x), inner, counts);
    }
    if (context->needs_input_grad(0)) {
      const at::Tensor by_token = grouped(of_both, inner, false, counts).index_select(0, place);
      of.x = by_token.view({x.size(0), -1, x.size(1)}).sum(1);
    }
    return of;
  }

private:
  at::Tensor rows_of(const at::Tensor &x) const {
    return x.index_select(0, order.floor_divide(place.size(0) / x.size(0)));
  }

  const at::Tensor order, place;
  const std::vector<int64_t> counts;
};

class CombineRows final : public longhaul::Operation {
public:
  CombineRows(const at::Tensor &order, const at::Tensor &place, std::vector<int64_t> counts, std::vector<int64_t> read)
      : order(order), place(place), counts(std::move(counts)), read(std::move(read)) {}

  at::Tensor forward(AutogradContext *context, const at::Tensor &rows, const std::optional<at::Tensor> &weights,
                     const std::optional<at::Tensor> & /*bias*/) override {
    context->save_for_backward({rows, *weights});
    const int64_t tokens = weights->size(0), chosen = weights->size(1);
    const at::Tensor places = place.view({tokens, chosen});
    at::Tensor sum = at::zeros({tokens, rows.size(1)}, weights->options());
    for (int64_t at = 0; at < chosen; ++at) {
      sum.addcmul_(rows.index_select(0, places.select(1, at)).to(sum.scalar_type()), weights->narrow(1, at, 1));
    }
    return sum;
  }

  InputGradients backward(AutogradContext *context, const at::Tensor &of_sum) override {
    const longhaul::variable_list saved = context->get_saved_variables();
    const at::Tensor &rows = saved[0], &weights = saved[1];
    const at::Tensor by_row = of_sum.index_select(0, order.floor_divide(weights.size(1))); // [R, D]
    InputGradients of;
    if (context->needs_input_grad(1)) {
      const at::Tensor of_rows = by_row.mul(rows).sum(1); // [R]
      of.weight = of_rows.index_select(0, place).view(weights.sizes());
    }
    if (context->needs_input_grad(0)) {
      of.x = by_row.mul(weights.reshape({-1}).index_select(0, order).unsqueeze(1)).to(rows.scalar_type());
      each_expert(counts, [&](int64_t expert, int64_t start, int64_t count) {
        const int64_t own = read[expert];
        if (own < count) {
          of.x.narrow(0, start + own, count - own).zero_();
        }
      });
    }
    return of;
  }

private:
  const at::Tensor order, place;
  const std::vector<int64_t> counts, read;
};

class WithGradient final : public longhaul::Operation {
public:
  explicit WithGradient(const at::Tensor &added) : added(added) {}

  at::Tensor forward(AutogradContext * /*context*/, const at::Tensor &x, const std::optional<at::Tensor> & /*weight*/,
                     const std::optional<at::Tensor> & /*bias*/) override {
    return x.view_as(x);
  }

  InputGradients backward(AutogradContext * /*context*/, const at::Tensor &gradient) override {
    InputGradients of;
    of.x = gradient.add(added);
    return of;
  }

private:
  const at::Tensor added;
};

} // namespace

at::Tensor *longhaul_expert_rows(const at::Tensor *x, const at::Tensor *inner, const at::Tensor *outer, const at::Tensor *order,
                                 const at::Tensor *place, const int64_t *counts, size_t experts, char *error, size_t error_size) {
  at::Tensor *rows = nullptr;
  const auto compute = [&] {
    TORCH_CHECK(x->dim() == 2 && inner->dim() == 3 && outer->dim() == 3, "experts take rows and stacked matrices, not sizes ",
                x->sizes(), ", ", inner->sizes(), " and ", outer->sizes());
    TORCH_CHECK(inner->size(0) == static_cast<int64_t>(experts) && outer->size(0) == inner->size(0) && x->size(0) > 0,
                "there are ", inner->size(0), " experts, and counts of ", experts);
    std::vector<int64_t> of_experts(counts, counts + experts);
    int64_t total = 0;
    for (const int64_t count : of_experts) {
      TORCH_CHECK(count >= 0, "an expert cannot have ", count, " rows");
      total += count;
    }
    TORCH_CHECK(total == order->size(0) && place->size(0) <= total && place->size(0) % x->size(0) == 0, "experts have ", total,
                " rows, and their order is of ", order->size(0));
    const auto operation = c10::make_intrusive<ExpertRows>(*order, *place, std::move(of_experts));
    rows = new at::Tensor(longhaul::recorded(operation, *x, *inner, *outer));
  };
  longhaul::guarded(compute, error, error_size);
  return rows;
}

at::Tensor *longhaul_combine_rows(const at::Tensor *rows, const at::Tensor *weights, const at::Tensor *order, const at::Tensor *place,
                                  const int64_t *counts, const int64_t *read, size_t experts, char *error, size_t error_size) {
  at::Tensor *sum = nullptr;
  const auto compute = [&] {
    TORCH_CHECK(rows->dim() == 2 && weights->dim() == 2 && rows->size(0) >= weights->numel() && place->numel() == weights->numel(),
                "sizes ", rows->sizes(), " and ", weights->sizes(), " are not rows and their weights");
    std::vector<int64_t> of_experts(counts, counts + experts), own(read, read + experts);
    int64_t total = 0;
    for (size_t expert = 0; expert < experts; ++expert) {
      TORCH_CHECK(own[expert] >= 0 && own[expert] <= of_experts[expert], "an expert has ", of_experts[expert], " rows, and ", own[expert],
                  " tokens");
      total += of_experts[expert];
    }
    TORCH_CHECK(total == rows->size(0), "experts have ", total, " rows, and there are ", rows->size(0));
    const auto operation = c10::make_intrusive<CombineRows>(*order, *place, std::move(of_experts), std::move(own));
    sum = new at::Tensor(longhaul::recorded(operation, *rows, *weights));
  };
  longhaul::guarded(compute, error, error_size);
  return sum;
}

at::Tensor *longhaul_with_gradient(const at::Tensor *x, const at::Tensor *added, char *error, size_t error_size) {
  at::Tensor *same = nullptr;
  const auto compute = [&] {
    const auto operation = c10::make_intrusive<WithGradient>(*added);
    same = new at::Tensor(longhaul::recorded(operation, *x));
  };
  longhaul::guarded(compute, error, error_size);
  return same;
}
