//! Turning verified wheels into a libtorch folder, all or nothing.

use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, Write as _};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, anyhow, bail};
use indicatif::{ProgressBar, ProgressStyle};
use zip::ZipArchive;

use crate::setup::cache::remove_dir_if_present;
use crate::setup::fetch::VerifiedWheel;
use crate::setup::pins::{LIBTORCH_VERSION, LICENCES_DIR, Variant, Wheel};

/// The folder below an assembled one that `LIBTORCH` has to name.
pub const TORCH_DIR: &str = "torch";

/// Libraries that the linker or the loader asks for by these names, whatever the variant.
const LIBRARIES: [&str; 5] = ["libc10.so", "libgomp.so", "libgomp.so.1", "libtorch.so", "libtorch_cpu.so"];

/// Whether an earlier setup finished here and nobody took files away since.
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
/// The rename comes after the data is on disk, so that `assembled` is whole or absent whenever power fails.
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

/// Writes the kept parts of one wheel, and its licences, below `target`.
fn unpack(path: &Path, wheel: &Wheel, target: &Path) -> Result<()> {
    let file = File::open(path).context("open it")?;
    let mut archive = ZipArchive::new(BufReader::new(file)).context("read its table of contents")?;
    let mut kept = Vec::new();
    let mut total_bytes = 0;
    for index in 0..archive.len() {
        let entry = archive.by_index_raw(index).context("read its table of contents")?;
        let name = entry.name().context("read a name in its table of contents")?;
        if let Some(destination) = destination(&name, wheel)
            && entry.is_file()
        {
            total_bytes += entry.size();
            kept.push((index, target.join(destination)));
        }
    }
    let progress = ProgressBar::new(total_bytes);
    progress.set_style(ProgressStyle::with_template(
        "unpacking {msg} {wide_bar} {binary_bytes}/{binary_total_bytes}",
    )?);
    progress.set_message(path.file_name().unwrap_or_default().to_string_lossy().into_owned());
    for (index, path) in kept {
        let mut entry = archive.by_index(index).context("open an entry")?;
        write_file(&path, &mut progress.wrap_read(&mut entry))?;
    }
    progress.finish_and_clear();
    Ok(())
}

fn write_file(path: &Path, contents: &mut impl io::Read) -> Result<()> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).with_context(|| format!("create {}", parent.display()))?;
    }
    let mut file = BufWriter::new(File::create(path).with_context(|| format!("create {}", path.display()))?);
    io::copy(contents, &mut file)
        .and_then(|_| file.flush())
        .with_context(|| format!("write {}", path.display()))
}

/// Where an entry of the wheel goes, if it is kept. A name that would climb out of the target is not.
fn destination(entry: &str, wheel: &Wheel) -> Option<PathBuf> {
    let climbs = Path::new(entry).components().any(|part| !matches!(part, std::path::Component::Normal(_)));
    if climbs {
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

/// Likewise for a licence, which lies among what the wheel says of itself (PEP 639). Whoever gives the libraries out needs it.
fn licence(entry: &str, wheel: &Wheel) -> Option<PathBuf> {
    let (_, name) = entry.split_once(".dist-info/licenses/")?;
    Some(Path::new(LICENCES_DIR).join(wheel.name).join(name))
}

/// Adds what no wheel has: the unversioned libgomp, the version file, and on the CPU an empty `libtorch.so`.
fn complete(partial: &Path, variant: Variant) -> Result<()> {
    let torch = partial.join(TORCH_DIR);
    let lib = torch.join("lib");
    symlink("libgomp.so.1", lib.join("libgomp.so")).context("link libgomp.so")?;
    if variant == Variant::Cpu {
        empty_library(&lib.join("libtorch.so"))?;
    }
    fs::write(torch.join("build-version"), LIBTORCH_VERSION).context("write build-version")
}

/// torch's own `libtorch.so` holds nothing but a dependency on the CUDA library, which the CPU set leaves out;
/// `tch` links against the name all the same.
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

/// One `syncfs` for ten thousand small headers, where an `fsync` each would take minutes.
fn sync_file_system(dir: &Path) -> Result<()> {
    let status = Command::new("sync").arg("-f").arg(dir).status().context("run sync -f")?;
    if !status.success() {
        bail!("sync -f {} failed: {status}", dir.display());
    }
    Ok(())
}

fn name_a_full_disk(error: anyhow::Error) -> anyhow::Error {
    let full = error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<io::Error>())
        .any(|cause| matches!(cause.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded));
    if full {
        anyhow!(
            "{error:#}: the disk is full; free 1 GB, or set XDG_CACHE_HOME to another disk, and run setup again"
        )
    } else {
        error
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use zip::ZipWriter;
    use zip::write::SimpleFileOptions;

    use super::*;
    use crate::setup::pins::Part;

    static PARTS: [Part; 2] = [
        Part { from: "torch/include/", to: "torch/include/" },
        Part { from: "nvidia/lib/libcudart.so.13", to: "torch/lib/libcudart.so.13" },
    ];

    static WHEEL: Wheel =
        Wheel { name: "a", version: "1", platform: "any", file: "a.whl", sha256: "", parts: &PARTS };

    fn wheel_with(path: &Path, entries: &[(&str, &str)]) {
        let mut writer = ZipWriter::new(File::create(path).unwrap());
        for (name, contents) in entries {
            writer.start_file(*name, SimpleFileOptions::default()).unwrap();
            writer.write_all(contents.as_bytes()).unwrap();
        }
        writer.finish().unwrap();
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
        let error = anyhow::Error::new(io::Error::from(io::ErrorKind::StorageFull)).context("write x");
        assert!(name_a_full_disk(error).to_string().contains("the disk is full"));
    }
}
