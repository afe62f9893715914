// Products with frozen weights in a narrow format, which are decoded anew in each pass, behind a C interface. No exception leaves this file. See
// ../src/models/frozen.rs.

#include "guarded.h"
#include "operation.h"

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

extern "C" {

// A frozen matrix [rows, columns]. Without scales, the codes are its values in some format. With one scale for each row, they are int8. Otherwise they are
// pairs of NF4 values, the first in the high bits, with one scale for each 64.
struct LonghaulFrozen {
  const at::Tensor *codes;
  const at::Tensor *scales;
  int64_t rows;
  int64_t columns;
};

// x [.., in] times the matrix, which is [in, out] with `in_first` and [out, in] otherwise, plus the bias [out] unless null; x and bias in one format. The
// backward pass decodes the matrix again. Null on failure: then `error` holds the reason, cut to `error_size` bytes with the final zero.
at::Tensor *longhaul_frozen_product(const at::Tensor *x, LonghaulFrozen matrix, const at::Tensor *bias, bool in_first,
                                    char *error, size_t error_size);

// The matrix in f32. Null on failure, as above.
at::Tensor *longhaul_frozen_values(LonghaulFrozen matrix, char *error, size_t error_size);
}

namespace {

using longhaul::AutogradContext;
using longhaul::InputGradients;

constexpr int64_t BLOCK = 64;

// Quantiles of a normal distribution, with an exact zero (Dettmers et al. 2023, "QLoRA", appendix E).
constexpr std::array<float, 16> NF4 = {-1.0f,
                                       -0.6961928009986877f,
                                       -0.5250730514526367f,
                                       -0.39491748809814453f,
                                       -0.28444138169288635f,
                                       -0.18477343022823334f,
                                       -0.09105003625154495f,
                                       0.0f,
                                       0.07958029955625534f,
                                       0.16093020141124725f,
                                       0.24611230194568634f,
                                       0.33791524171829224f,
                                       0.44070982933044434f,
                                       0.5626170039176941f,
                                       0.7229568362236023f,
                                       1.0f};

struct Frozen {
  at::Tensor codes;
  std::optional<at::Tensor> scales;
  int64_t rows;
  int64_t columns;

  explicit Frozen(const LonghaulFrozen &matrix)
      : codes(*matrix.codes), scales(matrix.scales == nullptr ? std::nullopt : std::optional<at::Tensor>(*matrix.scales)),
        rows(matrix.rows), columns(matrix.columns) {}

  at::Tensor values(at::ScalarType type) const {
    if (!scales) {
      return codes.to(type);
    }
    if (codes.scalar_type() == at::kChar) {
      return codes.to(at::kFloat).mul_(scales->unsqueeze(1)).to(type);
    }
    return codes.is_cpu() ? decoded_here(type) : decoded_there(type);
  }

private:
  at::Tensor decoded_here(at::ScalarType type) const {
    const at::Tensor all = at::empty({rows, columns}, codes.options().dtype(type));
    const uint8_t *pairs = codes.const_data_ptr<uint8_t>();
    const float *scale = scales->const_data_ptr<float>();
    const int64_t count = rows * columns;
    AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, type, "longhaul_nf4", [&] {
      scalar_t *out = all.mutable_data_ptr<scalar_t>();
      at::parallel_for(0, (count + BLOCK - 1) / BLOCK, 256, [&](int64_t begin, int64_t end) {
        for (int64_t block = begin; block < end; ++block) {
          const int64_t stop = std::min(count, (block + 1) * BLOCK);
          for (int64_t at = block * BLOCK; at < stop; ++at) {
            const uint8_t pair = pairs[at / 2];
            out[at] = static_cast<scalar_t>(NF4[at % 2 == 0 ? pair >> 4 : pair & 15] * scale[block]);
          }
        }
      });
    });
    return all;
  }

  at::Tensor decoded_there(at::ScalarType type) const {
    const at::Tensor table = at::tensor(at::ArrayRef<float>(NF4.data(), NF4.size())).to(codes.device());
    const at::Tensor wide = codes.to(at::kInt);
    const at::Tensor each = at::stack({wide.bitwise_right_shift(4), wide.bitwise_and(15)}, 1).flatten();
    const at::Tensor factors = scales->repeat_interleave(BLOCK).slice(0, 0, each.size(0));
    const at::Tensor all = table.index_select(0, each).slice(0, 0, factors.size(0)).mul(factors);
    return all.slice(0, 0, rows * columns).view({rows, columns}).to(type);
  }
};

class FrozenProduct final : public longhaul::Operation {
public:
  FrozenProduct(Frozen frozen, bool in_first) : frozen(std::move(frozen)), in_first(in_first) {}

  at::Tensor forward(AutogradContext *, const at::Tensor &x, const std::optional<at::Tensor> &,
                     const std::optional<at::Tensor> &bias) override {
    biased = bias.has_value();
    const at::Tensor matrix = matrix_of(x.scalar_type()); // [in, out]
    const at::Tensor rows = x.reshape({-1, matrix.size(0)});
    const at::Tensor y = biased ? at::addmm(*bias, rows, matrix) : at::mm(rows, matrix);
    std::vector<int64_t> sizes = x.sizes().vec();
    sizes.back() = matrix.size(1);
    return y.view(sizes);
  }

  InputGradients backward(AutogradContext *context, const at::Tensor &of_product) override {
    const at::Tensor matrix = matrix_of(of_product.scalar_type());
    const at::Tensor gradient = of_product.reshape({-1, matrix.size(1)}); // [N, out]
    InputGradients of;
    if (context->needs_input_grad(0)) {
      std::vector<int64_t> sizes = of_product.sizes().vec();
      sizes.back() = matrix.size(0);
      of.x = at::mm(gradient, matrix.t()).view(sizes);
    }
    // Without a bias only x may need a gradient.
    if (biased && context->needs_input_grad(1)) {
      of.bias = gradient.sum(0);
    }
    return of;
  }

private:
  at::Tensor matrix_of(at::ScalarType type) const {
    const at::Tensor values = frozen.values(type);
    return in_first ? values : values.t();
  }

  const Frozen frozen;
  const bool in_first;
  bool biased = false;
};

} // namespace

at::Tensor *longhaul_frozen_product(const at::Tensor *x, LonghaulFrozen matrix, const at::Tensor *bias, bool in_first,
                                    char *error, size_t error_size) {
  at::Tensor *product = nullptr;
  const auto compute = [&] {
    TORCH_CHECK(x->dim() >= 1 && x->size(-1) == (in_first ? matrix.rows : matrix.columns), "rows of ", x->sizes(),
                " do not fit a frozen matrix of ", matrix.rows, " rows and ", matrix.columns, " columns");
    const auto added = bias != nullptr ? std::optional<at::Tensor>(*bias) : std::nullopt;
    const auto operation = c10::make_intrusive<FrozenProduct>(Frozen(matrix), in_first);
    product = new at::Tensor(longhaul::recorded(operation, *x, std::nullopt, added));
  };
  longhaul::guarded(compute, error, error_size);
  return product;
}

at::Tensor *longhaul_frozen_values(LonghaulFrozen matrix, char *error, size_t error_size) {
  at::Tensor *values = nullptr;
  longhaul::guarded([&] { values = new at::Tensor(Frozen(matrix).values(at::kFloat)); }, error, error_size);
  return values;
}
