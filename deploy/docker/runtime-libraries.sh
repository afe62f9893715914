#!/bin/sh
# Lists the shared libraries that a worker loads and its system does not have: those of libtorch, and on a GPU NVIDIA's.
# For the image; what it leaves out is headers, static libraries and what only Python needs.
#
#   runtime-libraries.sh WORKER
set -eu
worker=$1

# What the loader finds below the folder that libtorch_cpu.so is in.
loaded=$(ldd "$worker" | awk '$2 == "=>" { print $3 }')
torch=$(printf '%s\n' "$loaded" | grep '/libtorch_cpu\.so$') || {
  echo "$worker does not load libtorch, or it is not where the worker looks for it: cargo xtask setup" >&2
  exit 1
}
lib=$(cd "$(dirname "$torch")" && pwd -P)
assembled=$(cd "$lib/../.." && pwd -P)

{
  printf '%s\n' "$loaded" | while IFS= read -r library; do
    folder=$(cd "$(dirname "$library")" && pwd -P)
    case "$folder/" in "$assembled"/*) printf '%s/%s\n' "$folder" "$(basename "$library")" ;; esac
  done
  # Opened by name while it runs: parts of cuDNN, the compiler of kernels, NCCL.
  if [ -d "$assembled/nvidia" ]; then
    find "$assembled/nvidia" -name '*.so*' ! -type d
    find "$lib" -name 'libcaffe2_nvrtc*.so*'
  fi
} | sort -u
