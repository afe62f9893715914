//! Links the benchmarks that compute to libtorch; the others are built without it.

#[path = "../../worker/torch_rpath.rs"]
mod torch_rpath;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=../../worker/torch_rpath.rs");
    if std::env::var_os("CARGO_FEATURE_TORCH").is_some() {
        torch_rpath::main();
    }
}
