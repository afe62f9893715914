//! Builds the C++ in `native`.

use std::path::{Path, PathBuf};

#[allow(dead_code, reason = "it is a build script as well")]
#[path = "../torch_rpath.rs"]
mod torch_rpath;

const NATIVE: [&str; 3] = ["native/allocator.cpp", "native/mkl.cpp", "native/shim.cpp"];

/// A symbol without callers here: libtorch looks for it in the executable first.
const FOR_LIBTORCH: &str = "mkl_serv_intel_cpu_true";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=../torch_rpath.rs");
    println!("cargo::rerun-if-changed=native");
    println!("cargo::rerun-if-env-changed=LIBTORCH_INCLUDE");
    println!("cargo::rerun-if-env-changed=LIBTORCH_CXX11_ABI");
    println!("cargo::rerun-if-env-changed=LONGHAUL_RELOCATABLE");
    let Some(lib) = torch_rpath::libtorch() else { return };
    build_native(&lib);
    torch_rpath::keep_for_libtorch(FOR_LIBTORCH);
    // Executables of other crates have to keep it as well.
    println!("cargo::metadata=for_libtorch={FOR_LIBTORCH}");
}

/// Uses the headers and the ABI of torch-sys.
fn build_native(lib: &Path) {
    let beside = || lib.parent().unwrap_or(lib).to_owned();
    let include = std::env::var_os("LIBTORCH_INCLUDE").map_or_else(beside, PathBuf::from).join("include");
    let abi = std::env::var("LIBTORCH_CXX11_ABI").unwrap_or_else(|_| "1".to_owned());
    cc::Build::new()
        .cpp(true)
        .std("c++17")
        // Suppresses the headers' warnings.
        .flag("-isystem")
        .flag(&include)
        .define("_GLIBCXX_USE_CXX11_ABI", abi.as_str())
        // As libtorch was built: some of its classes have another layout without it.
        .define("NDEBUG", None)
        .files(NATIVE)
        .compile("longhaul_native");
}
