//! Layout of the tarball.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::checkout::Checkout;
use crate::dist::libtorch::Libtorch;
use crate::dist::requirements::Requirements;
use crate::dist::sums;

/// The released programs.
pub const PROGRAMS: [&str; 5] = ["coordinator", "worker", "worker-torch", "wan-emulator", "longhaul-demo"];
/// Programs of the tarball for experiments: `install.sh` does not install them.
const TO_TRY: [&str; 2] = [PROGRAMS[3], PROGRAMS[4]];
/// Files of the checkout placed beside the programs.
const FILES: [&str; 3] = ["LICENSE-APACHE", "LICENSE-MIT", "examples"];

/// Fills `root` with all files that are copied rather than generated.
///
/// # Errors
/// Returns an error if a program is missing or does not run here.
pub fn lay_out(checkout: &Checkout, libtorch: &Libtorch, programs: &Path, root: &Path) -> Result<()> {
    for program in PROGRAMS {
        if !programs.join(program).is_file() {
            bail!(
                "there is no {program} in {}; cargo build --workspace --bins makes all that is packed",
                programs.display()
            );
        }
    }
    let installed = root.join("installed");
    let output = Command::new(checkout.root().join("deploy/install.sh"))
        .arg("--from")
        .arg(programs)
        .arg("--root")
        .arg(&installed)
        // A released worker finds only a libtorch beside itself, not yet present.
        .env("LD_LIBRARY_PATH", libtorch.lib())
        .stdin(Stdio::null())
        .output()
        .context("run deploy/install.sh")?;
    if !output.status.success() {
        bail!("deploy/install.sh failed: {}", String::from_utf8_lossy(&output.stderr));
    }
    // The installation goes into /usr/local below its root; its contents belong directly in this folder.
    let local = installed.join("usr/local");
    for entry in fs::read_dir(&local).with_context(|| format!("list {}", local.display()))? {
        let entry = entry.context("list what was installed")?;
        fs::rename(entry.path(), root.join(entry.file_name())).context("move what was installed")?;
    }
    fs::remove_dir_all(&installed).context("remove the folder of the installation")?;
    for program in TO_TRY {
        copy(&programs.join(program), &root.join("bin").join(program))?;
    }
    for name in FILES {
        copy(&checkout.root().join(name), &root.join(name))?;
    }
    Ok(())
}

/// Copies a file, or a folder with its contents.
fn copy(from: &Path, to: &Path) -> Result<()> {
    let files: Vec<(PathBuf, PathBuf)> = match from.is_dir() {
        true => sums::files_below(from)?.iter().map(|path| (from.join(path), to.join(path))).collect(),
        false => vec![(from.to_owned(), to.to_owned())],
    };
    for (from, to) in files {
        let folder = to.parent().unwrap_or(&to);
        fs::create_dir_all(folder).with_context(|| format!("create {}", folder.display()))?;
        fs::copy(&from, &to).with_context(|| format!("copy {} to {}", from.display(), to.display()))?;
    }
    Ok(())
}

/// Writes the tarball's README from `deploy/dist/README.md`.
///
/// # Errors
/// Returns an error if it cannot be read or written.
pub fn write_readme(checkout: &Checkout, name: &str, requirements: &Requirements, root: &Path) -> Result<()> {
    let text = fs::read_to_string(checkout.root().join("deploy/dist/README.md"))
        .context("read deploy/dist/README.md")?;
    let text = text.replace("{name}", name).replace("{requirements}", requirements.table().trim_end());
    fs::write(root.join("README.md"), text).context("write README.md")
}

/// Checks that every program starts from its place.
///
/// # Errors
/// Contains the output of the program or the loader.
pub fn prove(root: &Path) -> Result<()> {
    for program in PROGRAMS {
        let path = root.join("bin").join(program);
        let mut command = Command::new(&path);
        command.arg("--help").env_remove("LD_LIBRARY_PATH").stdin(Stdio::null());
        let output = command.output().with_context(|| format!("start {}", path.display()))?;
        if !output.status.success() {
            bail!("{program} does not start: {}", String::from_utf8_lossy(&output.stderr));
        }
    }
    Ok(())
}
