// Makes glibc's allocator keep the memory released by a training step. See ../src/allocator.rs.

#include <cstdlib>
#if defined(__GLIBC__)
#include <malloc.h>
#endif

extern "C" void longhaul_keep_freed_memory(int bytes) {
#if defined(__GLIBC__)
  // Setting a threshold also stops glibc from moving it. If it is refused as too large, glibc's own maximum applies.
  constexpr int LARGEST_THRESHOLD_OF_OLD_VERSIONS = 32 << 20;
  if (mallopt(M_MMAP_THRESHOLD, bytes) == 0) {
    mallopt(M_MMAP_THRESHOLD, LARGEST_THRESHOLD_OF_OLD_VERSIONS);
  }
  mallopt(M_TRIM_THRESHOLD, bytes);
  // Arenas other than the first end at 64 MiB and return free memory at their end, regardless of the thresholds.
  mallopt(M_ARENA_MAX, 1);
#else
  (void)bytes;
#endif
}
