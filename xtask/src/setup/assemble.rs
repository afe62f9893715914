//! Assembles verified wheels into a complete libtorch folder, or none.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, anyhow, bail};

use crate::setup::cache::remove_dir_if_present;
use crate::setup::fetch::VerifiedWheel;
use crate::setup::pins::{LIBTORCH_VERSION, LICENCES_DIR, Variant, Wheel};

/// The folder below an assembled one to which `LIBTORCH` points.
pub const TORCH_DIR: &str = "torch";

/// Libraries that the linker or the loader requests under these names, in both variants.
const LIBRARIES: [&str; 5] = ["libc10.so", "libgomp.so", "libgomp.so.1", "libtorch.so", "libtorch_cpu.so"];

/// The script that reads wheels.
const UNPACK: &str = include_str!("unpack.py");

/// Error messages of systems for a full disk (`ENOSPC`, `EDQUOT`).
const FULL_DISK: [&str; 2] = ["No space left on device", "Disk quota exceeded"];

/// Whether an earlier setup finished here and all its files are still present.
pub fn is_complete(assembled: &Path, variant: Variant) -> bool {
    let torch = assembled.join(TORCH_DIR);
    let single_files_present = variant
        .wheels()
        .iter()
        .flat_map(|wheel| wheel.parts)
        .filter(|part| !part.to.ends_with('/'))
        .all(|part| assembled.join(part.to).is_file());
    single_files_present
        && LIBRARIES.iter().all(|library| torch.join("lib").join(library).is_file())
        && torch.join("include/torch/csrc/api/include/torch/torch.h").is_file()
        && torch.join("build-version").is_file()
}

/// Unpacks the wheels beside `assembled` and renames the result into place.
///
/// The rename follows after the data is on disk, so `assembled` is complete or absent after a power failure.
pub fn assemble(wheels: &[VerifiedWheel], assembled: &Path, variant: Variant) -> Result<()> {
    let partial = assembled.with_extension("partial");
    remove_dir_if_present(&partial)?;
    for verified in wheels {
        unpack(&verified.path, verified.wheel, &partial)
            .with_context(|| format!("unpack {}", verified.path.display()))
            .map_err(name_a_full_disk)?;
    }
    complete(&partial, variant).map_err(name_a_full_disk)?;
    if !is_complete(&partial, variant) {
        bail!(
            "the wheels lack files of libtorch; this is a defect of the pinned list in xtask/src/setup/pins.rs"
        );
    }
    sync_file_system(&partial)?;
    remove_dir_if_present(assembled)?;
    fs::rename(&partial, assembled).with_context(|| format!("move {} into place", assembled.display()))?;
    if let Some(parent) = assembled.parent() {
        File::open(parent)
            .and_then(|dir| dir.sync_all())
            .with_context(|| format!("sync {}", parent.display()))?;
    }
    eprintln!("assembled libtorch {LIBTORCH_VERSION} ({variant}) in {}", assembled.display());
    Ok(())
}

/// Writes the kept parts of one wheel, and its licences, below `target`. Python unpacks them: pip requires it
/// anyway, and a crate would have to be compiled first.
fn unpack(path: &Path, wheel: &Wheel, target: &Path) -> Result<()> {
    eprintln!("{} {}: unpacking", wheel.name, wheel.version);
    let names = python("list", path, String::new()).context("read its table of contents")?;
    let mut kept = String::new();
    for name in names.lines() {
        if let Some(destination) = destination(name, wheel) {
            let path = target.join(destination);
            writeln!(kept, "{name}\t{}", path.to_str().context("the cache's path is not UTF-8")?)?;
        }
    }
    python("unpack", path, kept).map(drop)
}

/// Runs [`UNPACK`] with this input, and returns its output.
fn python(what: &str, wheel: &Path, input: String) -> Result<String> {
    let mut command = Command::new("python3");
    command.args(["-c", UNPACK, what]).arg(wheel);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().context("start python3")?;
    if let Some(mut stdin) = child.stdin.take() {
        // If it stops reading, its output contains the reason.
        let _ = stdin.write_all(input.as_bytes());
    }
    let output = child.wait_with_output().context("wait for python3")?;
    if !output.status.success() {
        bail!("{}", String::from_utf8_lossy(&output.stderr).trim_end());
    }
    String::from_utf8(output.stdout).context("a name is not UTF-8")
}

/// Returns the destination of an entry of the wheel, if it is kept. A name with a path out of the target or a
/// line break is not.
fn destination(entry: &str, wheel: &Wheel) -> Option<PathBuf> {
    let climbs = Path::new(entry).components().any(|part| !matches!(part, std::path::Component::Normal(_)));
    if climbs || entry.contains(char::is_control) {
        return None;
    }
    wheel
        .parts
        .iter()
        .find_map(|part| {
            if part.from.ends_with('/') {
                entry.strip_prefix(part.from).map(|rest| Path::new(part.to).join(rest))
            } else {
                (entry == part.from).then(|| PathBuf::from(part.to))
            }
        })
        .or_else(|| licence(entry, wheel))
}

/// Returns the same for a licence, which is part of the wheel's metadata (PEP 639). Distribution of the
/// libraries requires it.
fn licence(entry: &str, wheel: &Wheel) -> Option<PathBuf> {
    let (_, name) = entry.split_once(".dist-info/licenses/")?;
    Some(Path::new(LICENCES_DIR).join(wheel.name).join(name))
}

/// Adds the files missing from all wheels: the unversioned libgomp, the version file, and on the CPU an empty
/// `libtorch.so`.
fn complete(partial: &Path, variant: Variant) -> Result<()> {
    let torch = partial.join(TORCH_DIR);
    let lib = torch.join("lib");
    symlink("libgomp.so.1", lib.join("libgomp.so")).context("link libgomp.so")?;
    if variant == Variant::Cpu {
        empty_library(&lib.join("libtorch.so"))?;
    }
    fs::write(torch.join("build-version"), LIBTORCH_VERSION).context("write build-version")
}

/// torch's own `libtorch.so` contains only a dependency on the CUDA library, absent from the CPU set, but
/// `tch` links against the name.
fn empty_library(path: &Path) -> Result<()> {
    let output = Command::new("cc")
        .args(["-shared", "-nostdlib", "-Wl,-soname,libtorch.so", "-x", "c", "/dev/null", "-o"])
        .arg(path)
        .output();
    match output {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => {
            bail!("cc could not make an empty libtorch.so:\n{}", String::from_utf8_lossy(&output.stderr))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            bail!(
                "there is no C compiler (cc); building needs one anyway (Debian: apt install build-essential)"
            )
        }
        Err(error) => Err(error).context("run cc"),
    }
}

/// One `syncfs` for ten thousand small headers; an `fsync` for each would take minutes.
fn sync_file_system(dir: &Path) -> Result<()> {
    let status = Command::new("sync").arg("-f").arg(dir).status().context("run sync -f")?;
    if !status.success() {
        bail!("sync -f {} failed: {status}", dir.display());
    }
    Ok(())
}

fn name_a_full_disk(error: anyhow::Error) -> anyhow::Error {
    let is_of_kind = |cause: &(dyn std::error::Error + 'static)| {
        let kind = cause.downcast_ref::<io::Error>().map(io::Error::kind);
        matches!(kind, Some(io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded))
    };
    let is_in_words = |words: String| FULL_DISK.iter().any(|full| words.contains(full));
    if error.chain().any(|cause| is_of_kind(cause) || is_in_words(cause.to_string())) {
        anyhow!(
            "{error:#}: the disk is full; free 1 GB, or set XDG_CACHE_HOME to another disk, and run setup again"
        )
    } else {
        error
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::setup::pins::Part;

    static PARTS: [Part; 2] = [
        Part { from: "torch/include/", to: "torch/include/" },
        Part { from: "nvidia/lib/libcudart.so.13", to: "torch/lib/libcudart.so.13" },
    ];

    static WHEEL: Wheel =
        Wheel { name: "a", version: "1", platform: "any", file: "a.whl", sha256: "", parts: &PARTS };

    fn wheel_with(path: &Path, entries: &[(&str, &str)]) {
        let script = "import sys, zipfile\nwith zipfile.ZipFile(sys.argv[1], 'w', zipfile.ZIP_DEFLATED) as wheel:\n  \
                      for name, text in zip(sys.argv[2::2], sys.argv[3::2]): wheel.writestr(name, text)";
        let mut command = Command::new("python3");
        command.args(["-c", script]).arg(path);
        command.args(entries.iter().flat_map(|(name, contents)| [name, contents]));
        assert!(command.status().unwrap().success());
    }

    #[test]
    fn only_the_listed_parts_of_a_wheel_are_unpacked() {
        let dir = tempfile::tempdir().unwrap();
        let wheel = dir.path().join("a.whl");
        wheel_with(
            &wheel,
            &[
                ("torch/include/c10/a.h", "header"),
                ("torch/__init__.py", "python"),
                ("a-1.dist-info/licenses/LICENSE", "terms"),
                ("a-1.dist-info/METADATA", "who"),
                ("nvidia/lib/libcudart.so.13", "runtime"),
            ],
        );
        let target = dir.path().join("target");
        unpack(&wheel, &WHEEL, &target).unwrap();
        assert_eq!(fs::read_to_string(target.join("torch/include/c10/a.h")).unwrap(), "header");
        assert_eq!(fs::read_to_string(target.join("torch/lib/libcudart.so.13")).unwrap(), "runtime");
        assert_eq!(fs::read_to_string(target.join("licences/a/LICENSE")).unwrap(), "terms");
        assert!(!target.join("torch/__init__.py").exists() && !target.join("a-1.dist-info").exists());
    }

    #[test]
    fn a_file_that_is_no_wheel_is_refused_in_the_words_of_its_reader() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.whl");
        fs::write(&path, "no archive").unwrap();
        let error = unpack(&path, &WHEEL, dir.path()).unwrap_err();
        assert!(format!("{error:#}").contains("not a zip file"), "{error:#}");
    }

    #[test]
    fn an_entry_that_climbs_out_of_the_target_is_not_unpacked() {
        assert_eq!(destination("torch/include/../../../etc/passwd", &WHEEL), None);
        assert_eq!(destination("/torch/include/a.h", &WHEEL), None);
        assert_eq!(destination("torch/include/a.h", &WHEEL), Some("torch/include/a.h".into()));
    }

    #[test]
    fn wheels_without_the_libraries_never_become_a_libtorch_and_leave_the_one_before() {
        let dir = tempfile::tempdir().unwrap();
        let assembled = dir.path().join("libtorch");
        fs::create_dir(&assembled).unwrap();
        fs::write(assembled.join("before"), "kept").unwrap();
        let path = dir.path().join("a.whl");
        wheel_with(&path, &[("nvidia/lib/libcudart.so.13", "runtime")]);
        let error = assemble(&[VerifiedWheel { wheel: &WHEEL, path }], &assembled, Variant::Cpu).unwrap_err();
        assert!(error.to_string().contains("the wheels lack files of libtorch"), "{error:#}");
        assert_eq!(fs::read_to_string(assembled.join("before")).unwrap(), "kept");
    }

    #[test]
    fn a_full_disk_is_named_with_its_remedy() {
        for error in [
            anyhow::Error::new(io::Error::from(io::ErrorKind::StorageFull)),
            anyhow!("[Errno 28] No space left on device"),
        ] {
            assert!(name_a_full_disk(error.context("write x")).to_string().contains("the disk is full"));
        }
    }
}
