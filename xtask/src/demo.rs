//! `cargo xtask demo`: builds the programs quickly and trains with them in [`longhaul_demo`].

mod build;

use anyhow::Result;
use clap::{Args, ValueEnum};
use longhaul_demo::{Parts, Programs};

use crate::checkout::Checkout;
use crate::clock;
use crate::setup;

pub use self::build::PACKAGES;

/// Options of `cargo xtask demo`.
#[derive(Args)]
pub struct Options {
    #[command(flatten)]
    demo: longhaul_demo::Options,
    /// Build profile of the programs.
    #[arg(long, value_enum, default_value_t = Profile::Demo)]
    profile: Profile,
}

/// A cargo profile with its features.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Profile {
    /// Compiles in minutes: little optimisation except for codecs, and no features that the demo does not
    /// use.
    Demo,
    /// For real machines.
    Release,
    /// For tests.
    Dev,
}

/// Folder of a demo of this checkout; git ignores it.
const FOLDER: &str = "longhaul-demo";

/// Runs the demo from setup to summary.
///
/// # Errors
/// Names a program that did not build or start, or the process that failed, with the end of its log.
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
