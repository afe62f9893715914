//! `cargo xtask demo`: builds the programs, quickly, and has [`longhaul_demo`] train with them.

mod build;

use anyhow::Result;
use clap::{Args, ValueEnum};
use longhaul_demo::{Parts, Programs};

use crate::checkout::Checkout;
use crate::clock;
use crate::setup;

pub use self::build::PACKAGES;

/// What `cargo xtask demo` accepts.
#[derive(Args)]
pub struct Options {
    #[command(flatten)]
    demo: longhaul_demo::Options,
    /// How to build the programs.
    #[arg(long, value_enum, default_value_t = Profile::Demo)]
    profile: Profile,
}

/// A profile of cargo, with the features that go with it.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Profile {
    /// Compiles in minutes: little optimisation beside codecs, and nothing that the demo does not use.
    Demo,
    /// As for real machines.
    Release,
    /// As for tests.
    Dev,
}

/// Where a demo of this checkout keeps its files; git ignores it.
const FOLDER: &str = "longhaul-demo";

/// Runs the demo from set-up to summary.
///
/// # Errors
/// What could not be built or started, or the process that failed, with the end of its log.
pub fn run(checkout: &Checkout, options: &Options) -> Result<()> {
    let mut parts = Parts::default();
    let started = clock::now();
    setup::ensure(checkout)?;
    let built = clock::now();
    parts.add("libtorch", built - started);
    let programs = Programs::of(build::programs(checkout, options.profile)?)?;
    parts.add("build", clock::now() - built);
    let root = checkout.root();
    longhaul_demo::run(&programs, &root.join("examples"), &root.join(FOLDER), &options.demo, parts)
}
