//! Files of other programs beside their data, which patterns skip.

use std::path::Path;

/// Folders of unfinished jobs of Spark and Hadoop, and of Spark's streams. Their files are incomplete, duplicates, or no data.
const FOLDERS: [&str; 2] = ["_temporary", "_spark_metadata"];
/// Prefix of files that Hugging Face's `datasets` derives from a data set (`map`, `filter`), beside it: `cache-0123456789abcdef.arrow`.
pub(super) const CACHE: &str = "cache-";

/// Whether such a program keeps this folder, and the pattern does not name it.
pub(super) fn is_folder(path: &Path, pattern: &str) -> bool {
    let known = FOLDERS.iter().find(|known| path.file_name().is_some_and(|name| name == **known));
    known.is_some_and(|known| !pattern.contains(known))
}

/// Whether a file is Spark's mark of a finished job, or its metadata on the columns of other files.
pub(super) fn is_mark(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let job = name.strip_prefix("_committed_").or_else(|| name.strip_prefix("_started_"));
    matches!(name, "_SUCCESS" | "_metadata" | "_common_metadata")
        || job.is_some_and(|job| !job.is_empty() && job.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Whether a file is a data set derived from the others beside it.
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
    fn marks_are_known_by_their_whole_names_and_folders_unless_a_pattern_names_them() {
        for (name, is_one) in [
            ("_SUCCESS", true),
            ("d/_common_metadata", true),
            ("_started_4711", true),
            ("_started_at_noon.txt", false),
            ("_committed_", false),
            ("SUCCESS", false),
        ] {
            assert_eq!(is_mark(Path::new(name)), is_one, "{name}");
        }
        assert!(is_folder(Path::new("d/_temporary"), "**/*") && is_folder(Path::new("_spark_metadata"), "*"));
        assert!(
            !is_folder(Path::new("d/_temporary"), "_temporary/**") && !is_folder(Path::new("d/data"), "*")
        );
    }

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
