//! Builds the C++ shim, and lets every binary, test and example of this crate find libtorch without an environment variable.

use std::path::{Path, PathBuf};

const SHIM: [&str; 3] = ["native/allocator.cpp", "native/mkl.cpp", "native/shim.cpp"];

/// Of the shim, what nothing here calls: it is for libtorch, which looks for it in the executable first.
const FOR_LIBTORCH: &str = "mkl_serv_intel_cpu_true";

/// Set by `cargo xtask dist`: libtorch is looked for beside the program, and nowhere else.
const RELOCATABLE: &str = "LONGHAUL_RELOCATABLE";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=native");
    println!("cargo::rerun-if-env-changed=LIBTORCH_INCLUDE");
    println!("cargo::rerun-if-env-changed=LIBTORCH_CXX11_ABI");
    println!("cargo::rerun-if-env-changed={RELOCATABLE}");
    let Some(lib) = std::env::var_os("DEP_TCH_LIBTORCH_LIB") else {
        println!("cargo::error=torch-sys did not say where libtorch is");
        return;
    };
    // The folder itself, not a link to it: links move, and the working folder is not searched.
    let lib = match Path::new(&lib).canonicalize() {
        Ok(lib) => lib,
        Err(error) => {
            println!("cargo::error=find libtorch at {}: {error}", lib.display());
            return;
        }
    };
    build_shim(&lib);
    // First what deploy/install.sh lays beside the program, on a machine that has nothing else of libtorch.
    println!("cargo::rustc-link-arg=-Wl,-rpath,$ORIGIN/../lib/longhaul/torch/lib");
    // What is given out names no folder of the machine that built it: somebody else may own it elsewhere.
    if std::env::var_os(RELOCATABLE).is_none() {
        println!("cargo::rustc-link-arg=-Wl,-rpath,{}", lib.display());
    }
    // No symbol of libtorch.so itself is used, but on a CUDA build it is what loads the GPU's kernels.
    println!("cargo::rustc-link-arg=-Wl,--no-as-needed");
    println!("cargo::rustc-link-arg=-ltorch");
    println!("cargo::rustc-link-arg=-Wl,--undefined={FOR_LIBTORCH},--export-dynamic-symbol={FOR_LIBTORCH}");
}

/// With the headers and the ABI that torch-sys takes.
fn build_shim(lib: &Path) {
    let beside = || lib.parent().unwrap_or(lib).to_owned();
    let include = std::env::var_os("LIBTORCH_INCLUDE").map_or_else(beside, PathBuf::from).join("include");
    let abi = std::env::var("LIBTORCH_CXX11_ABI").unwrap_or_else(|_| "1".to_owned());
    cc::Build::new()
        .cpp(true)
        .std("c++17")
        // The headers' warnings are not ours.
        .flag("-isystem")
        .flag(&include)
        .define("_GLIBCXX_USE_CXX11_ABI", abi.as_str())
        // As libtorch was built: some of its classes have another layout without it.
        .define("NDEBUG", None)
        .files(SHIM)
        .compile("longhaul_native");
}
