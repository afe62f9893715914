//! Locations of a libtorch of the right version.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// The libtorch version that the programs are built for.
const VERSION: &str = "2.11.0";
/// Path relative to the program, as installed by `deploy/install.sh` and the tarball.
const BESIDE: &str = "../lib/longhaul/torch/lib";

/// Returns library folders: that of `LIBTORCH`, then those that `cargo xtask setup` has assembled for this user, GPU builds first.
pub fn places() -> Vec<PathBuf> {
    let named = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let own = named("LIBTORCH").filter(|folder| !is_another_version(folder)).map(|folder| folder.join("lib"));
    let cache = named("XDG_CACHE_HOME").or_else(|| Some(named("HOME")?.join(".cache")));
    own.into_iter().chain(cache.iter().flat_map(|cache| assembled(cache))).collect()
}

/// Returns whether `build-version`, or the `version.py` of a Python package, names another version.
fn is_another_version(folder: &Path) -> bool {
    let said = ["build-version", "version.py"]
        .iter()
        .find_map(|name| std::fs::read_to_string(folder.join(name)).ok());
    said.is_some_and(|said| !said.contains(VERSION))
}

fn assembled(cache: &Path) -> Vec<PathBuf> {
    let is_ours = |folder: &PathBuf| {
        let name = folder.file_name().map(|name| name.to_string_lossy().into_owned());
        name.is_some_and(|name| name.starts_with(&format!("libtorch-{VERSION}-")))
    };
    let listed = std::fs::read_dir(cache.join("longhaul")).into_iter().flatten().flatten();
    let mut folders: Vec<PathBuf> = listed.map(|entry| entry.path()).filter(is_ours).collect();
    // `cu130` sorts after `cpu`, and also works on CPUs.
    folders.sort_unstable_by(|one, other| other.cmp(one));
    folders.into_iter().map(|folder| folder.join("torch/lib")).collect()
}

/// Returns the error for the user: the missing libraries, the searched folders and a remedy.
pub fn remedy(missing: &[String], places: &[PathBuf]) -> String {
    let is_torch =
        |name: &String| ["libtorch", "libc10", "libcaffe2"].iter().any(|own| name.starts_with(own));
    let names = missing.join(", ");
    if !missing.iter().any(is_torch) {
        return format!(
            "{names} cannot be loaded, which the system has: on Debian, apt install libstdc++6 libgomp1"
        );
    }
    let mut text = format!(
        "{names} cannot be loaded: there is no libtorch {VERSION} with all that belongs to it beside the program ({BESIDE}), nor where it was built, or this user may not read it."
    );
    if !places.is_empty() {
        let places: Vec<String> = places.iter().map(|place| place.display().to_string()).collect();
        // Writing to a string cannot fail.
        let _ = write!(text, " Also looked into {}.", places.join(", "));
    }
    text.push_str(
        "\nOne of these helps:\n  \
         cargo xtask setup                            in a checkout: fetches it for this user\n  \
         export LIBTORCH=FOLDER                       where FOLDER/lib has it; `pip install torch==2.11.0` puts it into site-packages/torch\n  \
         sudo deploy/install.sh                       installs the programs with it, for all users of this machine",
    );
    text
}
