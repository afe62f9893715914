// Custom functions in autograd's graph. libtorch's template for them takes seconds to compile for each type, so a single instance serves all.

#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>
#include <utility>

namespace longhaul {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// The gradients of the inputs; undefined for unneeded ones.
struct InputGradients {
  at::Tensor x;
  at::Tensor weight;
  at::Tensor bias;
};

// A computation and its gradients. One instance exists per call, and belongs to the graph.
class Operation : public torch::CustomClassHolder {
public:
  // Saves the tensors for the backward pass in the context. Nothing in here is recorded.
  virtual at::Tensor forward(AutogradContext *context, const at::Tensor &x, const std::optional<at::Tensor> &weight,
                             const std::optional<at::Tensor> &bias) = 0;
  virtual InputGradients backward(AutogradContext *context, const at::Tensor &gradient) = 0;
};

struct Recorded : torch::autograd::Function<Recorded> {
  static at::Tensor forward(AutogradContext *context, const at::Tensor &x, const std::optional<at::Tensor> &weight,
                            const std::optional<at::Tensor> &bias, const c10::intrusive_ptr<Operation> &operation) {
    context->saved_data["operation"] = c10::IValue::make_capsule(operation);
    return operation->forward(context, x, weight, bias);
  }

  static variable_list backward(AutogradContext *context, variable_list gradients) {
    const auto operation = c10::static_intrusive_pointer_cast<Operation>(context->saved_data["operation"].toCapsule());
    InputGradients of = operation->backward(context, gradients[0]);
    return {std::move(of.x), std::move(of.weight), std::move(of.bias), {}};
  }
};

// The value of an operation. It is in the graph if any of these needs a gradient.
inline at::Tensor recorded(const c10::intrusive_ptr<Operation> &operation, const at::Tensor &x,
                           const std::optional<at::Tensor> &weight = std::nullopt,
                           const std::optional<at::Tensor> &bias = std::nullopt) {
  return Recorded::apply(x, weight, bias, operation);
}

} // namespace longhaul
