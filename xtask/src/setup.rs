//! `cargo xtask setup`: a libtorch of the pinned version, assembled once per user and linked into the checkout.
//!
//! PyPI is the source because most networks mirror it. The wheels are pinned by version and SHA-256
//! ([`pins`]), downloaded by `pip download` ([`fetch`]), unpacked beside the final folder and moved into
//! place by one rename ([`assemble`]), all under a lock in the user's cache folder ([`cache`]).

mod assemble;
pub mod cache;
mod fetch;
mod link;
pub mod pins;

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use clap::Args;

use crate::checkout::Checkout;
use crate::setup::cache::Cache;
use crate::setup::pins::{LIBTORCH_VERSION, Variant};

/// Options of `cargo xtask setup`.
#[derive(Args)]
pub struct Options {
    /// Use the CUDA build with its NVIDIA libraries (a 2.7 GB download) instead of the CPU one.
    #[arg(long)]
    cuda: bool,
}

/// Files that every usable libtorch contains: one library and the header that all code includes.
const ESSENTIAL_FILES: [&str; 2] = ["lib/libtorch_cpu.so", "include/torch/csrc/api/include/torch/torch.h"];

/// Assembles the wanted libtorch unless it is present, and links the checkout to it.
pub fn run(checkout: &Checkout, options: &Options) -> Result<()> {
    if let Some(own) = checkout.own_libtorch() {
        return accept_own(&own);
    }
    install(checkout, if options.cuda { Variant::Cuda } else { Variant::Cpu })
}

/// Prepares the checkout for building: keeps a usable libtorch, or installs the CPU one.
pub fn ensure(checkout: &Checkout) -> Result<()> {
    if let Some(own) = checkout.own_libtorch() {
        return accept_own(&own);
    }
    if missing_essential(&checkout.libtorch_link()).is_none() {
        return Ok(());
    }
    install(checkout, Variant::Cpu)
}

fn install(checkout: &Checkout, variant: Variant) -> Result<()> {
    ensure!(
        cfg!(all(target_os = "linux", target_arch = "x86_64")),
        "setup assembles libtorch for Linux on x86-64 only; elsewhere, install libtorch {LIBTORCH_VERSION} and set LIBTORCH to its folder"
    );
    let cache = Cache::open()?;
    let assembled = cache.libtorch(variant);
    if assemble::is_complete(&assembled, variant) {
        eprintln!("libtorch {LIBTORCH_VERSION} ({variant}) is in {}", assembled.display());
    } else {
        let _lock = cache.lock()?;
        // Another setup may have finished during the wait.
        if !assemble::is_complete(&assembled, variant) {
            let wheels = fetch::fetch_all(&cache, variant.wheels())?;
            assemble::assemble(&wheels, &assembled, variant)?;
            cache.remove_wheels()?;
        }
    }
    link::point(&checkout.libtorch_link(), &assembled)
}

/// Checks the user's own libtorch; nothing is downloaded or linked in this case.
fn accept_own(libtorch: &Path) -> Result<()> {
    if let Some(missing) = missing_essential(libtorch) {
        anyhow::bail!(
            "LIBTORCH is set to {:?}, which has no {missing}; set it to a libtorch {LIBTORCH_VERSION}, or unset it and run setup again",
            libtorch
        );
    }
    let version_file = libtorch.join("build-version");
    let version = fs::read_to_string(&version_file)
        .with_context(|| format!("read the version of your libtorch from {}", version_file.display()));
    match version {
        Ok(version) if version.trim().split('+').next() == Some(LIBTORCH_VERSION) => {
            eprintln!("using your own LIBTORCH, {}", libtorch.display());
        }
        Ok(version) => eprintln!(
            "warning: your LIBTORCH {} is version {}; this workspace is built and tested with {LIBTORCH_VERSION}",
            libtorch.display(),
            version.trim()
        ),
        Err(error) => eprintln!("warning: {error:#}; this workspace needs {LIBTORCH_VERSION}"),
    }
    Ok(())
}

fn missing_essential(libtorch: &Path) -> Option<&'static str> {
    ESSENTIAL_FILES.into_iter().find(|file| !libtorch.join(file).is_file())
}
