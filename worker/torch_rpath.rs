//! Lets every binary, test and example of a crate find libtorch without an environment variable: the build script of those that link it.
#![allow(clippy::print_stdout, reason = "cargo reads it")]

use std::path::PathBuf;

/// Set by `cargo xtask dist`: libtorch is looked for beside the program, and nowhere else.
const RELOCATABLE: &str = "LONGHAUL_RELOCATABLE";

/// Of the engine's C++, a function that nothing calls here: libtorch looks for it, in the executable first.
const FOR_LIBTORCH: &str = "DEP_LONGHAUL_NATIVE_FOR_LIBTORCH";

/// The script: what links the crate finds libtorch.
pub fn main() {
    println!("cargo::rerun-if-env-changed={RELOCATABLE}");
    if libtorch().is_some()
        && let Ok(name) = std::env::var(FOR_LIBTORCH)
    {
        keep_for_libtorch(&name);
    }
}

/// Links libtorch, and returns where it is. None: it is nowhere, which ends the build.
pub fn libtorch() -> Option<PathBuf> {
    let Some(lib) = std::env::var_os("DEP_TCH_LIBTORCH_LIB") else {
        println!("cargo::error=torch-sys did not say where libtorch is");
        return None;
    };
    // The folder itself, not a link to it: links move, and the working folder is not searched.
    let lib = PathBuf::from(lib);
    let lib = match lib.canonicalize() {
        Ok(lib) => lib,
        Err(error) => {
            println!("cargo::error=find libtorch at {}: {error}", lib.display());
            return None;
        }
    };
    // First what deploy/install.sh lays beside the program, on a machine that has nothing else of libtorch.
    println!("cargo::rustc-link-arg=-Wl,-rpath,$ORIGIN/../lib/longhaul/torch/lib");
    // What is given out names no folder of the machine that built it: somebody else may own it elsewhere.
    if std::env::var_os(RELOCATABLE).is_none() {
        println!("cargo::rustc-link-arg=-Wl,-rpath,{}", lib.display());
    }
    // No symbol of libtorch.so itself is used, but on a CUDA build it is what loads the GPU's kernels.
    println!("cargo::rustc-link-arg=-Wl,--no-as-needed");
    println!("cargo::rustc-link-arg=-ltorch");
    Some(lib)
}

/// Keeps a function in the executable, where libtorch finds it.
pub fn keep_for_libtorch(name: &str) {
    println!("cargo::rustc-link-arg=-Wl,--undefined={name},--export-dynamic-symbol={name}");
}
