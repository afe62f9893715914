//! Pointer files: placeholders for data that git LFS, git-annex or DataLad has not fetched.

/// Maximum length of a pointer.
const BYTES_MAX: usize = 4096;
const LFS: &[u8] = b"version https://git-lfs.github.com/spec/v";
/// The second line of a pointer.
const LFS_HASH: &[u8] = b"\noid sha256:";
/// git-annex and DataLad: the place of the content, and its key.
const ANNEX: [&[u8]; 2] = [b"/annex/objects/", b"../.git/annex/objects/"];
const XET: &[u8] = b"# xet version ";

/// Describes the target of a pointer and the command that fetches it, given the bytes of a whole file; `None`: no pointer.
pub(super) fn pointer(file: &[u8]) -> Option<&'static str> {
    if file.len() >= BYTES_MAX {
        return None;
    }
    let has_hash = || memchr::memmem::find(file, LFS_HASH).is_some();
    if file.starts_with(LFS) && has_hash() {
        return Some("a pointer of git-lfs and not the file: `git lfs pull` brings that");
    }
    let is_one_line = || !file.trim_ascii_end().contains(&b'\n');
    if ANNEX.iter().any(|begins| file.starts_with(begins)) && is_one_line() {
        return Some(
            "a pointer of git-annex and not the file: `git annex get` (or `datalad get`) brings that",
        );
    }
    file.starts_with(XET).then_some("a pointer of git-xet and not the file: `git xet checkout` brings that")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pointers_are_told_with_what_brings_the_file() {
        for (file, words) in [
            (&b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12\n"[..], "git lfs pull"),
            (b"/annex/objects/SHA256E-s12--00.txt\n", "git annex get"),
            (b"../.git/annex/objects/a/b/MD5-s1--0", "git annex get"),
            (b"# xet version 0\nfilesize = 3\n", "git xet checkout"),
        ] {
            assert!(pointer(file).is_some_and(|told| told.contains(words)), "{file:?}");
        }
        let long = [LFS, b"1", LFS_HASH, &[b'0'; BYTES_MAX]].concat();
        for file in [
            &b"version https://git-lfs.github.com/spec/v1 is a line"[..],
            b"/annex/objects/ is a folder\nof git-annex\n",
            b"# xet is a tool\n",
            b"",
            &long,
        ] {
            assert_eq!(pointer(file), None, "{file:?}");
        }
    }
}
