// Counts multiplications in matrix products, behind a C interface. No exception leaves this file. See ../src/multiplications.rs.

#include "guarded.h"

#include <ATen/core/Tensor.h>
#include <ATen/record_function.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>

extern "C" {

// Begins counting this thread's multiplications, including backward passes on a CPU, until this thread ends the count. Null on failure: then `error` holds
// the reason, cut to `error_size` bytes with the final zero.
struct longhaul_count;
longhaul_count *longhaul_begin_count(char *error, size_t error_size);
// Returns the multiplications since then in `multiplications`; false on failure. Frees the count either way.
bool longhaul_end_count(longhaul_count *count, uint64_t *multiplications, char *error, size_t error_size);
}

namespace {

thread_local uint64_t multiplied = 0;

// [.., n, k] times [.., k, m]: all products of libtorch end in these kernels. In those that also add, the factors come second and third.
std::unique_ptr<at::ObserverContext> count_product(const at::RecordFunction &call) {
  const char *name = call.name();
  const bool adds = std::strcmp(name, "aten::addmm") == 0 || std::strcmp(name, "aten::baddbmm") == 0;
  if (!adds && std::strcmp(name, "aten::mm") != 0 && std::strcmp(name, "aten::bmm") != 0) {
    return nullptr;
  }
  const size_t first = adds ? 1 : 0;
  const auto inputs = call.inputs();
  if (inputs.size() > first + 1 && inputs[first].isTensor() && inputs[first + 1].isTensor()) {
    const at::Tensor &right = inputs[first + 1].toTensor();
    multiplied += static_cast<uint64_t>(inputs[first].toTensor().numel()) * static_cast<uint64_t>(right.size(-1));
  }
  return nullptr;
}

} // namespace

struct longhaul_count {
  at::CallbackHandle handle;
  uint64_t before;
};

longhaul_count *longhaul_begin_count(char *error, size_t error_size) {
  longhaul_count *count = nullptr;
  const auto begin = [&] {
    const auto callback = at::RecordFunctionCallback(count_product).needsInputs(true).scopes({at::RecordScope::FUNCTION});
    count = new longhaul_count{at::addThreadLocalCallback(callback), multiplied};
  };
  longhaul::guarded(begin, error, error_size);
  return count;
}

bool longhaul_end_count(longhaul_count *count, uint64_t *multiplications, char *error, size_t error_size) {
  const longhaul_count ended = *count;
  delete count;
  *multiplications = multiplied - ended.before;
  return longhaul::guarded([&] { at::removeCallback(ended.handle); }, error, error_size);
}
