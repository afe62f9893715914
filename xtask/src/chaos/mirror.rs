//! A copy of the working tree that may be changed.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::checkout::Checkout;

/// The only files in the copy that git does not know and a mirroring keeps: cargo's output.
const TARGET: &str = "target";

/// Mirrors the working tree into `copy`: files that git knows or would add, and the link to libtorch.
/// Unchanged files are not touched, so cargo builds only the differences. Files that are not in the tree are
/// removed.
///
/// # Errors
/// Returns an error if the tree is no git checkout, or if a file cannot be copied.
pub fn mirror(checkout: &Checkout, copy: &Path) -> Result<()> {
    let files = files(checkout.root())?;
    for file in &files {
        let (from, to) = (checkout.root().join(file), copy.join(file));
        refresh(&from, &to).with_context(|| format!("copy {} to {}", from.display(), to.display()))?;
    }
    remove_others(copy, Path::new(""), &files)?;
    let (link, target) = (copy.join(".libtorch"), checkout.libtorch_link());
    if checkout.own_libtorch().is_none() && fs::symlink_metadata(&link).is_err() {
        let target = fs::canonicalize(&target).with_context(|| format!("follow {}", target.display()))?;
        std::os::unix::fs::symlink(target, link).context("link libtorch")?;
    }
    Ok(())
}

/// Returns the files of the tree, relative to its root, without deleted ones that are not committed.
fn files(root: &Path) -> Result<BTreeSet<PathBuf>> {
    let listed = ["ls-files", "-z", "--cached", "--others", "--exclude-standard"];
    let output = Command::new("git").current_dir(root).args(listed).output().context("start git")?;
    ensure!(output.status.success(), "`git ls-files` failed: {}", String::from_utf8_lossy(&output.stderr));
    let names = output.stdout.split(|&byte| byte == 0).filter(|name| !name.is_empty());
    let names = names.map(|name| PathBuf::from(String::from_utf8_lossy(name).into_owned()));
    Ok(names.filter(|name| root.join(name).is_file()).collect())
}

fn refresh(from: &Path, to: &Path) -> io::Result<()> {
    let wanted = fs::read(from)?;
    if fs::read(to).is_ok_and(|present| present == wanted) {
        return Ok(());
    }
    if let Some(folder) = to.parent() {
        fs::create_dir_all(folder)?;
    }
    fs::write(to, wanted)?;
    fs::set_permissions(to, fs::metadata(from)?.permissions())
}

fn remove_others(copy: &Path, folder: &Path, wanted: &BTreeSet<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(copy.join(folder)).with_context(|| format!("read {}", copy.display()))? {
        let entry = entry?;
        let name = folder.join(entry.file_name());
        let kind = entry.file_type()?;
        if kind.is_dir() && name != Path::new(TARGET) {
            remove_others(copy, &name, wanted)?;
        } else if kind.is_file() && !wanted.contains(&name) {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn git(root: &Path, arguments: &[&str]) {
        assert!(Command::new("git").current_dir(root).args(arguments).status().unwrap().success());
    }

    #[test]
    fn a_copy_follows_its_tree_and_what_is_the_same_is_not_touched() {
        let (tree, copy) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        git(tree.path(), &["init", "--quiet"]);
        fs::create_dir(tree.path().join("src")).unwrap();
        fs::write(tree.path().join("src/a.rs"), "a").unwrap();
        fs::write(tree.path().join("b.rs"), "b").unwrap();
        fs::create_dir(tree.path().join(".libtorch")).unwrap();
        let checkout = Checkout::copy(tree.path().to_owned());
        mirror(&checkout, copy.path()).unwrap();
        assert_eq!(fs::read_to_string(copy.path().join("src/a.rs")).unwrap(), "a");
        let built = copy.path().join("target");
        fs::create_dir(&built).unwrap();
        fs::write(built.join("worker"), "binary").unwrap();
        let written = || fs::metadata(copy.path().join("b.rs")).unwrap().modified().unwrap();
        let before = written();

        fs::write(copy.path().join("src/a.rs"), "a bug").unwrap();
        fs::write(tree.path().join("src/c.rs"), "c").unwrap();
        mirror(&checkout, copy.path()).unwrap();
        fs::remove_file(tree.path().join("src/c.rs")).unwrap();
        mirror(&checkout, copy.path()).unwrap();
        assert_eq!(fs::read_to_string(copy.path().join("src/a.rs")).unwrap(), "a");
        assert!(!copy.path().join("src/c.rs").exists(), "it is not in the tree any more");
        assert_eq!(written(), before, "it was the same");
        assert!(built.join("worker").exists());
    }
}
