// glibc's allocator, told to keep what a training step frees. See ../src/allocator.rs.

#include <cstdlib>
#if defined(__GLIBC__)
#include <malloc.h>
#endif

extern "C" void longhaul_keep_freed_memory(int bytes) {
#if defined(__GLIBC__)
  // Setting a threshold also stops glibc from moving it. Where it is refused as too large, glibc's own largest serves.
  constexpr int LARGEST_THRESHOLD_OF_OLD_VERSIONS = 32 << 20;
  if (mallopt(M_MMAP_THRESHOLD, bytes) == 0) {
    mallopt(M_MMAP_THRESHOLD, LARGEST_THRESHOLD_OF_OLD_VERSIONS);
  }
  mallopt(M_TRIM_THRESHOLD, bytes);
  // Other arenas than the first end at 64 MiB and give back what is free at their end, whatever the thresholds.
  mallopt(M_ARENA_MAX, 1);
#else
  (void)bytes;
#endif
}
