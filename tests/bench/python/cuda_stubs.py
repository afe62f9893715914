"""Makes stand-ins for the CUDA libraries, so that PyTorch's CUDA wheel imports on a machine that only has a CPU.

PyPI's wheel links 2.7 GB of NVIDIA libraries that a CPU run never calls; the loader only wants their names and
symbols. Each stand-in here defines the symbols that PyTorch refers to, and each of them aborts when called.
libcudart and libcupti are called on import and must be the real ones (`nvidia-cuda-runtime`, `nvidia-cuda-cupti`).

    python cuda_stubs.py SITE_PACKAGES/torch/lib OUTPUT_FOLDER     # needs nm, readelf and gcc
    LD_LIBRARY_PATH=OUTPUT_FOLDER python -c 'import torch'
"""

import argparse
import collections
import pathlib
import re
import subprocess

# What these libraries export has no symbol version that names the library, so the prefix has to.
PREFIXES = {
    "cudnn": "libcudnn",
    "cuFile": "libcufile",
    "cusparseLt": "libcusparseLt",
    "nccl": "libnccl",
    "pnccl": "libnccl",
    "nvshmem": "libnvshmem_host",
}
REAL = re.compile(r"lib(cudart|cupti|gomp|stdc\+\+|gcc_s|c|m|dl|rt|pthread|torch\w*|c10\w*|shm|cuda)\.so|ld-linux")


def output_of(*command: object) -> list[str]:
    return subprocess.run(list(map(str, command)), check=True, capture_output=True, text=True).stdout.splitlines()


def needed(library: pathlib.Path) -> set[str]:
    """Names of the libraries that `library` is linked to and that need a stand-in."""
    names = (re.search(r"Shared library: \[(.+)\]", line) for line in output_of("readelf", "-d", library))
    return {name[1] for name in names if name and not REAL.match(name[1])}


def undefined(library: pathlib.Path) -> set[tuple[str, str]]:
    """(symbol, version) of what `library` expects from others; the version is empty where it has none."""
    symbols = set()
    for line in output_of("nm", "-D", "--undefined-only", library):
        symbol, _, version = line.split()[-1].partition("@")
        symbols.add((symbol, version.lstrip("@")))
    return symbols


def stand_in_of(symbol: str, version: str, names: set[str]) -> str | None:
    """Which of `names` exports the symbol; None if a real library does."""
    if version in names:
        return version
    # The longest prefix first: cusparseLt is not cusparse.
    for prefix in sorted(PREFIXES, key=len, reverse=True):
        if symbol.startswith(prefix):
            return next((name for name in names if name.startswith(PREFIXES[prefix] + ".so")), None)
    return None


def build(name: str, symbols: set[tuple[str, str]], folder: pathlib.Path) -> None:
    source = "".join(f"void {symbol}(void) {{ __builtin_trap(); }}\n" for symbol, _ in sorted(symbols))
    versions = {version for _, version in symbols if version}
    script = folder / f"{name}.map"
    script.write_text("".join(f"{version} {{ global: *; }};\n" for version in sorted(versions)))
    options = [f"-Wl,--version-script={script}"] if versions else []
    command = ["gcc", "-shared", "-w", "-x", "c", "-", "-o", folder / name, f"-Wl,-soname,{name}", *options]
    subprocess.run(list(map(str, command)), input=source, text=True, check=True)
    script.unlink()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("torch_lib", type=pathlib.Path, help="the folder with libtorch_cuda.so")
    parser.add_argument("folder", type=pathlib.Path, help="where the stand-ins go")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    libraries = sorted(arguments.torch_lib.glob("*.so"))
    names = set().union(*map(needed, libraries))
    exports = collections.defaultdict(set)
    for symbol, version in set().union(*map(undefined, libraries)):
        if name := stand_in_of(symbol, version, names):
            exports[name].add((symbol, version))
    for name in sorted(names):
        build(name, exports[name], arguments.folder)
        print(f"{name}: {len(exports[name])} symbols")


if __name__ == "__main__":
    main()
