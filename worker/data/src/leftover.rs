//! What other programs keep beside their data, and that no pattern means.

use std::path::Path;

/// Where Spark and Hadoop write until a job is done. What is there is not complete, or comes a second time.
pub(super) const FOLDER: &str = "_temporary";
/// As names begin of what `datasets` of Hugging Face has made of a data set (`map`, `filter`), beside it: `cache-0123456789abcdef.arrow`.
pub(super) const CACHE: &str = "cache-";

/// Whether a folder is that of a job that runs or has failed.
pub(super) fn is_folder(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name == FOLDER)
}

/// Whether a file is a mark without content that a job of Spark has left when it was done.
pub(super) fn is_mark(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    name == "_SUCCESS" || name.starts_with("_committed_") || name.starts_with("_started_")
}

/// Whether a file is a data set made of the others beside it.
pub(super) fn is_cache(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).and_then(|name| name.strip_prefix(CACHE));
    let Some((fingerprint, rest)) = name.and_then(|name| name.split_at_checked(FINGERPRINT)) else {
        return false;
    };
    let is_part = rest
        .strip_suffix(".arrow")
        .is_some_and(|part| part.is_empty() || part.starts_with('_') && part.contains("_of_"));
    is_part && fingerprint.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Hexadecimal digits in such a name.
const FINGERPRINT: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn caches_are_known_by_their_whole_names() {
        for (name, is_one) in [
            ("cache-0123456789abcdef.arrow", true),
            ("ds/cache-00deadbeef001122_00001_of_00004.arrow", true),
            ("cache-0123456789abcdef.parquet", false),
            ("cache-0123456789abcdeg.arrow", false),
            ("cache-0123.arrow", false),
            ("cache-0123456789abcdef_2.arrow", false),
            ("cache-00ü345678abcdef.arrow", false),
            ("data-00000-of-00001.arrow", false),
            ("cache-", false),
            ("", false),
        ] {
            assert_eq!(is_cache(Path::new(name)), is_one, "{name}");
        }
    }
}
