// libtorch's fused AdamW, which the Rust bindings lack, behind a C interface. No exception leaves this file.

#include "guarded.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_fused_adamw.h>

#include <cstddef>
#include <optional>
#include <vector>

extern "C" {

// Same layout as `Call` in ../src/fused.rs. Each list has `count` tensors.
struct longhaul_fused_adamw_call {
  const at::Tensor *const *parameters;
  const at::Tensor *const *gradients;
  const at::Tensor *const *first;
  const at::Tensor *const *second;
  size_t count;
  const at::Tensor *step;
  const at::Tensor *gradient_divisor; // or null
  double learning_rate;
  double beta1;
  double beta2;
  double weight_decay;
  double epsilon;
};

// False on failure; then `error` holds the reason, cut to `error_size` bytes with the final zero.
bool longhaul_fused_adamw(const longhaul_fused_adamw_call *call, char *error, size_t error_size);
}

namespace {

std::vector<at::Tensor> list(const at::Tensor *const *tensors, size_t count) {
  std::vector<at::Tensor> all;
  all.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    all.push_back(*tensors[i]);
  }
  return all;
}

// The kernels do not check their arguments: they walk all four tensors by the length of the first.
void require_alike(const std::vector<at::Tensor> &tensors, const std::vector<at::Tensor> &parameters) {
  for (size_t i = 0; i < tensors.size(); ++i) {
    const at::Tensor &tensor = tensors[i];
    TORCH_CHECK(tensor.scalar_type() == at::kFloat, "AdamW takes 32-bit floats, not ", tensor.scalar_type());
    TORCH_CHECK(tensor.is_contiguous(), "AdamW takes contiguous tensors");
    TORCH_CHECK(tensor.sizes() == parameters[i].sizes() && tensor.device() == parameters[i].device(),
                "a tensor of sizes ", tensor.sizes(), " on ", tensor.device(), " does not belong to parameters of ",
                parameters[i].sizes(), " on ", parameters[i].device());
  }
}

void require_scalar(const at::Tensor &tensor, const at::Tensor &parameters) {
  TORCH_CHECK(tensor.scalar_type() == at::kFloat && tensor.numel() == 1 && tensor.device() == parameters.device(),
              "AdamW takes its step and its divisor as one float on the device of the parameters");
}

// Flushes subnormal numbers to zero on this thread and on libtorch's pool during its lifetime. First moments of parameters without further gradients fade to
// such numbers, and a processor takes several times as long for each of them.
class SubnormalsAreZero {
public:
  SubnormalsAreZero() { set(true); }
  ~SubnormalsAreZero() { set(false); }
  SubnormalsAreZero(const SubnormalsAreZero &) = delete;
  SubnormalsAreZero &operator=(const SubnormalsAreZero &) = delete;

private:
  static void set(bool on) {
    at::parallel_for(0, at::get_num_threads(), /*grain_size=*/1,
                     [on](int64_t, int64_t) { at::globalContext().setFlushDenormal(on); });
  }
};

void update(const longhaul_fused_adamw_call &call) {
  if (call.count == 0) {
    return;
  }
  const at::NoGradGuard no_grad;
  const auto parameters = list(call.parameters, call.count);
  const auto gradients = list(call.gradients, call.count);
  const auto first = list(call.first, call.count);
  const auto second = list(call.second, call.count);
  for (const auto *tensors : {&parameters, &gradients, &first, &second}) {
    require_alike(*tensors, parameters);
  }
  require_scalar(*call.step, parameters[0]);
  std::optional<at::Tensor> divisor;
  if (call.gradient_divisor != nullptr) {
    require_scalar(*call.gradient_divisor, parameters[0]);
    divisor = *call.gradient_divisor;
  }
  std::optional<SubnormalsAreZero> flushed;
  if (parameters[0].is_cpu()) {
    flushed.emplace();
  }
  const std::vector<at::Tensor> steps(call.count, *call.step);
  at::_fused_adamw_(parameters, gradients, first, second, /*max_exp_avg_sqs=*/{}, steps, call.learning_rate, call.beta1,
                    call.beta2, call.weight_decay, call.epsilon, /*amsgrad=*/false, /*maximize=*/false, divisor,
                    /*found_inf=*/std::nullopt);
}

} // namespace

bool longhaul_fused_adamw(const longhaul_fused_adamw_call *call, char *error, size_t error_size) {
  return longhaul::guarded([call] { update(*call); }, error, error_size);
}
