#include "selection.h"

#include <ATen/OpMathType.h>
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <tuple>
#include <vector>

namespace longhaul {

namespace {

Kept keep_values(const at::Tensor &gradient, int64_t count) {
  const at::Tensor places = std::get<1>(gradient.abs().topk(count, 1, /*largest=*/true, /*sorted=*/false)); // [N, k]
  return Kept{at::zeros_like(gradient).scatter_(1, places, gradient.gather(1, places)), std::nullopt};
}

Kept keep_columns(const at::Tensor &gradient, int64_t count) {
  // Sums of half-precision values are made in f32: in their own format, small ones would be lost beside large ones.
  const at::Tensor sums = gradient.abs().sum(0, /*keepdim=*/false, at::toOpMathType(gradient.scalar_type())); // [out]
  at::Tensor columns = std::get<1>(sums.topk(count, 0, /*largest=*/true, /*sorted=*/false)); // [k]
  if (columns.is_cpu()) {
    int64_t *const first = columns.mutable_data_ptr<int64_t>();
    std::sort(first, first + count);
  } else {
    columns = std::get<0>(columns.sort());
  }
  return Kept{gradient.index_select(1, columns), columns};
}

// Least values written by a thread.
constexpr int64_t GRAIN = 1 << 15;

int64_t rows_per_thread(int64_t width) { return std::max<int64_t>(1, GRAIN / std::max<int64_t>(1, width)); }

// The rows [k, in] of a matrix [out, in] that is zero elsewhere: each value is written once.
at::Tensor rows_among_zeros(const at::Tensor &columns, const at::Tensor &rows, int64_t out) {
  at::Tensor whole = at::empty({out, rows.size(1)}, rows.options());
  std::vector<const char *> sources(out, nullptr);
  const size_t bytes = rows.size(1) * rows.element_size();
  const char *source = static_cast<const char *>(rows.const_data_ptr());
  for (int64_t at = 0; at < columns.numel(); ++at) {
    sources[columns.const_data_ptr<int64_t>()[at]] = source + at * bytes;
  }
  char *const to = static_cast<char *>(whole.mutable_data_ptr());
  at::parallel_for(0, out, rows_per_thread(rows.size(1)), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      if (sources[row] != nullptr) {
        std::memcpy(to + row * bytes, sources[row], bytes);
      } else {
        std::memset(to + row * bytes, 0, bytes);
      }
    }
  });
  return whole;
}

// The columns [in, k] of a matrix [in, out] that is zero elsewhere, of values of the size of a `Value`.
template <typename Value>
at::Tensor columns_among_zeros(const at::Tensor &columns, const at::Tensor &product, int64_t out) {
  const int64_t in = product.size(0), count = product.size(1);
  at::Tensor whole = at::empty({in, out}, product.options());
  const int64_t *const places = columns.const_data_ptr<int64_t>();
  const Value *const from = static_cast<const Value *>(product.const_data_ptr());
  Value *const to = static_cast<Value *>(whole.mutable_data_ptr());
  at::parallel_for(0, in, rows_per_thread(out), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      std::memset(to + row * out, 0, out * sizeof(Value));
      for (int64_t at = 0; at < count; ++at) {
        to[row * out + places[at]] = from[row * count + at];
      }
    }
  });
  return whole;
}

// The columns of the gradient of a weight, [k, in] or, with `in_first`, [in, k], among zeros.
at::Tensor among_zeros(const at::Tensor &columns, const at::Tensor &product, int64_t out, bool in_first) {
  if (product.is_cpu() && product.is_contiguous()) {
    // On a CPU libtorch's `zeros` and `index_copy_` take two to three times as long.
    if (!in_first) {
      return rows_among_zeros(columns, product, out);
    }
    switch (product.element_size()) {
    case 2:
      return columns_among_zeros<uint16_t>(columns, product, out);
    case 4:
      return columns_among_zeros<uint32_t>(columns, product, out);
    case 8:
      return columns_among_zeros<uint64_t>(columns, product, out);
    default:
      break;
    }
  }
  const int64_t in = product.size(in_first ? 0 : 1);
  at::Tensor whole = in_first ? at::zeros({in, out}, product.options()) : at::zeros({out, in}, product.options());
  return whole.index_copy_(in_first ? 1 : 0, columns, product);
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
  return kept.columns.has_value() ? among_zeros(*kept.columns, product, out, in_first) : product;
}

} // namespace longhaul
