// The two functions at the ends of a tensor group's divided products, one of which sums over its members in the forward pass and the other in the backward
// pass, behind a C interface. No exception leaves this file. See ../src/models/tensor_group.rs.

#include "guarded.h"
#include "operation.h"

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <optional>
#include <utility>

extern "C" {

// Replaces `count` values on the host by their sum over all members; false on failure. Called from any computing thread.
typedef bool (*longhaul_sum)(void *context, float *values, size_t count);
// Called once, when neither the group nor a graph needs the context any more.
typedef void (*longhaul_release)(void *context);

struct longhaul_group;

// Null on failure: then the context is not released, and, as everywhere here, `error` holds the reason, cut to `error_size` bytes with the final zero.
longhaul_group *longhaul_new_group(void *context, longhaul_sum sum, longhaul_release release, char *error,
                                   size_t error_size);
// Remaining graphs own everything they need.
void longhaul_free_group(longhaul_group *group);

// x (f32) unchanged, whose gradient becomes the sum over all members. Null on failure.
at::Tensor *longhaul_enter_group(const longhaul_group *group, const at::Tensor *x, char *error, size_t error_size);
// The sum over all members of x (f32), whose gradient is passed back unchanged. Null on failure.
at::Tensor *longhaul_leave_group(const longhaul_group *group, const at::Tensor *x, char *error, size_t error_size);
}

namespace longhaul {

struct Members : torch::CustomClassHolder {
  void *context = nullptr;
  longhaul_sum sum = nullptr;
  longhaul_release release = nullptr;

  ~Members() override {
    if (release != nullptr) {
      release(context);
    }
  }
};

using MembersPointer = c10::intrusive_ptr<Members>;

// In its own memory: the summed tensor may be used elsewhere.
at::Tensor summed(const Members &members, const at::Tensor &x) {
  TORCH_CHECK(x.scalar_type() == at::kFloat, "a tensor group sums 32-bit floats, not ", x.scalar_type());
  const at::Tensor rows = x.detach().contiguous();
  const at::Tensor values = rows.is_cpu() ? rows.clone() : rows.cpu();
  const bool is_summed = members.sum(members.context, values.mutable_data_ptr<float>(), static_cast<size_t>(values.numel()));
  TORCH_CHECK(is_summed, "the tensor group could not sum");
  return values.to(x.device());
}

// "f" in Shoeybi et al. 2019.
class Enter final : public Operation {
public:
  explicit Enter(MembersPointer members) : members(std::move(members)) {}

  at::Tensor forward(AutogradContext *, const at::Tensor &x, const std::optional<at::Tensor> &,
                     const std::optional<at::Tensor> &) override {
    return x.view_as(x);
  }

  InputGradients backward(AutogradContext *, const at::Tensor &gradient) override {
    return {summed(*members, gradient), {}, {}};
  }

private:
  const MembersPointer members;
};

// "g" there.
class Leave final : public Operation {
public:
  explicit Leave(MembersPointer members) : members(std::move(members)) {}

  at::Tensor forward(AutogradContext *, const at::Tensor &x, const std::optional<at::Tensor> &,
                     const std::optional<at::Tensor> &) override {
    return summed(*members, x);
  }

  InputGradients backward(AutogradContext *, const at::Tensor &gradient) override { return {gradient, {}, {}}; }

private:
  const MembersPointer members;
};

} // namespace longhaul

struct longhaul_group {
  longhaul::MembersPointer members;
};

longhaul_group *longhaul_new_group(void *context, longhaul_sum sum, longhaul_release release, char *error,
                                   size_t error_size) {
  longhaul_group *group = nullptr;
  const auto make = [&] {
    group = new longhaul_group{c10::make_intrusive<longhaul::Members>()};
    group->members->context = context;
    group->members->sum = sum;
    group->members->release = release;
  };
  longhaul::guarded(make, error, error_size);
  return group;
}

void longhaul_free_group(longhaul_group *group) { delete group; }

at::Tensor *longhaul_enter_group(const longhaul_group *group, const at::Tensor *x, char *error, size_t error_size) {
  at::Tensor *entered = nullptr;
  const auto compute = [&] {
    entered = new at::Tensor(longhaul::recorded(c10::make_intrusive<longhaul::Enter>(group->members), *x));
  };
  longhaul::guarded(compute, error, error_size);
  return entered;
}

at::Tensor *longhaul_leave_group(const longhaul_group *group, const at::Tensor *x, char *error, size_t error_size) {
  at::Tensor *left = nullptr;
  const auto compute = [&] {
    left = new at::Tensor(longhaul::recorded(c10::make_intrusive<longhaul::Leave>(group->members), *x));
  };
  longhaul::guarded(compute, error, error_size);
  return left;
}
