//! The `.libtorch` link of a checkout.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process;

use anyhow::{Context, Result, bail};

use crate::setup::assemble::TORCH_DIR;

/// Points the link at an assembled libtorch, and replaces a link to another one.
pub fn point(link: &Path, assembled: &Path) -> Result<()> {
    let target = assembled.join(TORCH_DIR);
    match fs::read_link(link) {
        Ok(current) if current == target => return Ok(()),
        Ok(current) => announce_switch(&current, &target),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
            bail!("{} is not a link; move it away, or set LIBTORCH to use it", link.display())
        }
        Err(error) => return Err(error).with_context(|| format!("read the link {}", link.display())),
    }
    // A new link renamed over the old one: every build finds the name.
    let fresh = link.with_extension(format!("new-{}", process::id()));
    symlink(&target, &fresh).with_context(|| format!("create the link {}", fresh.display()))?;
    fs::rename(&fresh, link).with_context(|| format!("put the link {} in place", link.display()))?;
    eprintln!("{} -> {}", link.display(), target.display());
    Ok(())
}

/// torch-sys chooses its libraries when it is built, and its path is the same before and after.
fn announce_switch(from: &Path, to: &Path) {
    eprintln!(
        "switching from {} to {}; if one has CUDA and the other has not, run `cargo clean -p torch-sys` before the next build",
        from.display(),
        to.display()
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_made_moved_and_left_alone_when_it_is_right() {
        let dir = tempfile::tempdir().unwrap();
        let link = dir.path().join(".libtorch");
        for assembled in ["one", "one", "two"] {
            let assembled = dir.path().join(assembled);
            point(&link, &assembled).unwrap();
            assert_eq!(fs::read_link(&link).unwrap(), assembled.join(TORCH_DIR));
        }
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "no temporary link stays behind");
    }

    #[test]
    fn a_folder_of_the_users_own_is_never_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let link = dir.path().join(".libtorch");
        fs::create_dir(&link).unwrap();
        assert!(point(&link, dir.path()).is_err());
        assert!(link.is_dir());
    }
}
