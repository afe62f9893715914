// Conversion of exceptions at the C interface.

#pragma once

#include <c10/util/Exception.h>

#include <cstddef>
#include <cstring>
#include <exception>

namespace longhaul {

// Runs `work`; false on failure. Then `error` holds the reason, cut to `error_size` bytes with the final zero.
template <typename Work> bool guarded(Work &&work, char *error, size_t error_size) {
  try {
    work();
    return true;
  } catch (const c10::Error &caught) {
    // Without the backtrace.
    std::strncpy(error, caught.what_without_backtrace(), error_size - 1);
  } catch (const std::exception &caught) {
    std::strncpy(error, caught.what(), error_size - 1);
  } catch (...) {
    std::strncpy(error, "an exception of an unknown kind", error_size - 1);
  }
  error[error_size - 1] = '\0';
  return false;
}

} // namespace longhaul
