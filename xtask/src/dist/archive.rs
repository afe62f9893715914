//! The tarball: the same files give the same bytes, independent of user and time.

use std::fs::{self, File};
use std::io::{BufWriter, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use anyhow::{Context, Result};
use flate2::{Compression, GzBuilder};
use tar::{Builder, EntryType, Header};

use crate::dist::sums;

/// Packs `root` under its own name, as a gzip of a tar in the order of the names.
///
/// All files belong to user and group 0, have the time `time_s` (Unix) and are readable by all. Files
/// executable by their owner are executable by all.
///
/// # Errors
/// Returns an error if a file cannot be read or the tarball cannot be written.
pub fn pack(root: &Path, tarball: &Path, time_s: u64) -> Result<()> {
    let name = root.file_name().context("the folder to pack has no name")?;
    let file = File::create(tarball).with_context(|| format!("create {}", tarball.display()))?;
    // Without a file name and a time.
    let gzip = GzBuilder::new().write(BufWriter::new(file), Compression::default());
    let mut builder = Builder::new(gzip);
    for path in sums::files_below(root)? {
        let of_this = || format!("pack {}", path.display());
        let metadata = fs::metadata(root.join(&path)).with_context(of_this)?;
        let mut header = Header::new_gnu();
        header.set_entry_type(EntryType::Regular);
        header.set_size(metadata.len());
        header.set_mode(if metadata.permissions().mode() & 0o100 == 0 { 0o644 } else { 0o755 });
        header.set_mtime(time_s);
        header.set_uid(0);
        header.set_gid(0);
        let contents = File::open(root.join(&path)).with_context(of_this)?;
        builder.append_data(&mut header, Path::new(name).join(&path), contents).with_context(of_this)?;
    }
    let gzip = builder.into_inner().context("end the tarball")?;
    gzip.finish().and_then(|mut file| file.flush()).with_context(|| format!("write {}", tarball.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_files_are_the_same_bytes_whenever_and_whoever_packs_them() {
        let folder = tempfile::tempdir().unwrap();
        let packed = |attempt: &str, mode: u32| {
            let root = folder.path().join(attempt).join("longhaul");
            fs::create_dir_all(root.join("bin")).unwrap();
            // In another order than that of their names.
            for name in ["bin/worker", "README.md", "bin/coordinator"] {
                fs::write(root.join(name), name).unwrap();
                fs::set_permissions(root.join(name), fs::Permissions::from_mode(mode)).unwrap();
            }
            let tarball = folder.path().join(attempt).join("longhaul.tar.gz");
            pack(&root, &tarball, 1_700_000_000).unwrap();
            fs::read(tarball).unwrap()
        };
        assert_eq!(packed("one", 0o700), packed("two", 0o755));
        assert_ne!(packed("three", 0o600), packed("four", 0o755), "what is started stays so");
    }
}
