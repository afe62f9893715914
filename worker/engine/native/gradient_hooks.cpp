// Reports each parameter's gradient as soon as back-propagation has it, behind a C interface. No exception leaves this file.

#include "guarded.h"

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>

extern "C" {

// Called from within back-propagation: the gradient of the parameter `index`, `count` values on the host, valid during the call.
typedef void (*longhaul_gradient_arrived)(void *context, size_t index, const float *values, size_t count);

struct longhaul_gradient_hooks;

// Hooks for these parameters, for their lifetime; null on failure. Then `error` holds the reason, cut to `error_size` bytes with the final zero. They do
// nothing before a callback is set.
longhaul_gradient_hooks *longhaul_hook_gradients(const at::Tensor *const *parameters, size_t count, char *error,
                                                 size_t error_size);

// Sets the callback; null: none. Must not be called while gradients are computed.
void longhaul_listen_to_gradients(longhaul_gradient_hooks *hooks, longhaul_gradient_arrived arrived, void *context);

// The hooks stay with the parameters, without a callback.
void longhaul_free_gradient_hooks(longhaul_gradient_hooks *hooks);
}

namespace longhaul {

struct Listener {
  longhaul_gradient_arrived arrived = nullptr;
  void *context = nullptr;
};

} // namespace longhaul

struct longhaul_gradient_hooks {
  std::shared_ptr<longhaul::Listener> listener;
};

longhaul_gradient_hooks *longhaul_hook_gradients(const at::Tensor *const *parameters, size_t count, char *error,
                                                 size_t error_size) {
  longhaul_gradient_hooks *hooks = nullptr;
  const auto hook = [&] {
    auto listener = std::make_shared<longhaul::Listener>();
    for (size_t index = 0; index < count; ++index) {
      TORCH_CHECK(parameters[index]->is_cpu(), "gradients are watched on the host only");
      parameters[index]->register_hook([listener, index](const at::Tensor &gradient) {
        if (listener->arrived != nullptr) {
          const at::Tensor values = gradient.contiguous();
          listener->arrived(listener->context, index, values.const_data_ptr<float>(), static_cast<size_t>(values.numel()));
        }
      });
    }
    hooks = new longhaul_gradient_hooks{listener};
  };
  longhaul::guarded(hook, error, error_size);
  return hooks;
}

void longhaul_listen_to_gradients(longhaul_gradient_hooks *hooks, longhaul_gradient_arrived arrived, void *context) {
  *hooks->listener = longhaul::Listener{arrived, context};
}

void longhaul_free_gradient_hooks(longhaul_gradient_hooks *hooks) {
  if (hooks != nullptr) {
    *hooks->listener = longhaul::Listener{};
    delete hooks;
  }
}
