//! `cargo xtask dist`: a tarball of the programs that runs without Rust, Python or an installed libtorch.
//!
//! `deploy/install.sh` installs the programs, libraries, units, completions and manual into a folder
//! ([`stage`]). Examples, licences ([`licences`]), the machine's requirements ([`requirements`]), the bill of
//! materials ([`bom`]) and checksums of all files are added. [`archive`] packs the same files into the same
//! bytes.

mod archive;
mod bom;
mod libtorch;
mod licences;
mod packages;
mod requirements;
mod stage;
mod sums;
mod wheel;

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;

use crate::checkout::Checkout;
use crate::dist::libtorch::Libtorch;
use crate::dist::packages::Packages;
use crate::dist::requirements::Requirements;
use crate::setup;
use crate::setup::cache::remove_dir_if_present;

/// The profile of released programs: `[profile.dist]` in Cargo.toml. It has its own target folder, as its
/// worker searches libtorch only beside itself.
const PROFILE: &str = "dist";
/// The variable that `worker/torch_rpath.rs` reads.
const RELOCATABLE: &str = "LONGHAUL_RELOCATABLE";

/// Options of `cargo xtask dist`.
#[derive(Args)]
pub struct Options {
    /// Folder of the tarball, its bill of materials and their checksums. Default: `dist` below the target
    /// folder.
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
    /// Pack the coordinator, the worker, the WAN emulator and `longhaul-demo` of this folder, instead of building them.
    #[arg(long, value_name = "FOLDER")]
    programs: Option<PathBuf>,
    /// Also build a wheel: the Python package with the programs, for `pip install`.
    #[arg(long)]
    wheel: bool,
}

/// Builds and packs the programs.
///
/// # Errors
/// Returns an error if a program does not build or does not start from its new folder, or if libtorch's
/// licences are missing.
pub fn run(checkout: &Checkout, options: &Options) -> Result<()> {
    setup::ensure(checkout)?;
    let libtorch = Libtorch::of(checkout)?;
    let programs = match &options.programs {
        Some(folder) => std::path::absolute(folder).context("find the programs")?,
        None => build(checkout)?,
    };
    let out = match &options.out {
        Some(out) => std::path::absolute(out).context("find the folder for the tarball")?,
        None => checkout.target_directory()?.join("dist/packages"),
    };
    let host = host(checkout)?;
    let packages = Packages::shipped(checkout, &host)?;
    let name = format!("longhaul-{}-{host}{}", packages.version()?, libtorch.suffix());

    let staging = out.join(format!("{name}.partial"));
    remove_dir_if_present(&staging)?;
    let root = staging.join(&name);
    fs::create_dir_all(&root).with_context(|| format!("create {}", root.display()))?;
    stage::lay_out(checkout, &libtorch, &programs, &root)?;
    licences::collect(&packages, &libtorch, &root.join("licences"))?;
    let requirements = Requirements::of(&root)?;
    stage::write_readme(checkout, &name, &requirements, &root)?;
    let time_s = time_s(checkout)?;
    let bom = bom::document(&packages, &libtorch, &root, time_s)?;
    fs::write(root.join(bom::FILE), &bom).context("write the bill of materials")?;
    stage::prove(&root)?;
    sums::write(&root)?;

    let tarball = format!("{name}.tar.gz");
    archive::pack(&root, &out.join(&tarball), time_s)?;
    let beside = format!("{name}.{}", bom::FILE);
    fs::write(out.join(&beside), &bom).context("write the bill of materials")?;
    let mut made = vec![beside, tarball.clone()];
    if options.wheel {
        let wheel = wheel::pack(checkout, &root, packages.version()?, &requirements, &out)?;
        println!("{}", wheel.display());
        let name = wheel.file_name().context("the wheel has no name")?;
        made.push(sums::as_text(Path::new(name))?);
    }
    sums::write_of(&out, &made)?;
    remove_dir_if_present(&staging)?;
    println!("{}", out.join(tarball).display());
    Ok(())
}

/// Builds the released programs and returns their folder.
fn build(checkout: &Checkout) -> Result<PathBuf> {
    // All at once: for some packages alone, cargo would select other features of shared dependencies.
    let mut command = checkout.cargo();
    command.args(["build", "--workspace", "--locked", "--profile", PROFILE]).env(RELOCATABLE, "1");
    for program in stage::PROGRAMS {
        command.args(["--bin", program]);
    }
    let status = command.status().context("start cargo build")?;
    ensure!(status.success(), "the programs do not build");
    Ok(checkout.target_directory()?.join(PROFILE))
}

/// Returns the target platform, as rustc calls it.
fn host(checkout: &Checkout) -> Result<String> {
    let output = checkout.cargo().args(["--version", "--verbose"]).output().context("run cargo --version")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    let host = host.context("cargo --version --verbose names no host")?;
    ensure!(host.contains("-linux-"), "tarballs are for Linux, and this is {host}");
    Ok(host.to_owned())
}

/// Returns the time of all files in the tarball: `SOURCE_DATE_EPOCH` (reproducible-builds.org), or the time
/// of the commit.
fn time_s(checkout: &Checkout) -> Result<u64> {
    let (what, text) = match env::var("SOURCE_DATE_EPOCH") {
        Ok(text) => ("SOURCE_DATE_EPOCH", text),
        Err(_) => {
            let mut git = Command::new("git");
            git.current_dir(checkout.root()).args(["log", "-1", "--format=%ct"]);
            let output = git.output().context("run git; without it, set SOURCE_DATE_EPOCH")?;
            if !output.status.success() {
                bail!(
                    "git knows no commit here; set SOURCE_DATE_EPOCH to the seconds that files are dated with"
                );
            }
            ("git's time of the commit", String::from_utf8_lossy(&output.stdout).into_owned())
        }
    };
    text.trim()
        .parse()
        .with_context(|| format!("{what} is {:?}, which is not a number of seconds", text.trim()))
}
