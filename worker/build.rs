//! Lets every binary, test and example of this crate find libtorch without an environment variable.

use std::path::Path;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let Some(lib) = std::env::var_os("DEP_TCH_LIBTORCH_LIB") else {
        println!("cargo::error=torch-sys did not say where libtorch is");
        return;
    };
    // The folder itself, not a link to it: links move, and the working folder is not searched.
    match Path::new(&lib).canonicalize() {
        Ok(lib) => println!("cargo::rustc-link-arg=-Wl,-rpath,{}", lib.display()),
        Err(error) => println!("cargo::error=find libtorch at {}: {error}", lib.display()),
    }
    // No symbol of libtorch.so itself is used, but on a CUDA build it is what loads the GPU's kernels.
    println!("cargo::rustc-link-arg=-Wl,--no-as-needed");
    println!("cargo::rustc-link-arg=-ltorch");
}
