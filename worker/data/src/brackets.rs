//! Diagnosis of patterns meant as names, and of names meant as patterns.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::DataError;
use super::path_pattern::literal;

/// Returns the message for a pattern whose prefix exists literally, with the brackets as part of a name.
pub(super) fn literally(pattern: &str) -> Option<String> {
    let mut place = PathBuf::from(if pattern.starts_with('/') { "/" } else { "." });
    for part in pattern.split('/').filter(|part| !part.is_empty()) {
        let name = Path::new(part);
        if part.contains('[') && place.join(name).exists() {
            let (place, written) = (place.join(name), part.replace('[', "[[]"));
            let shown = place.strip_prefix(".").unwrap_or(&place).display();
            return Some(format!(
                "{shown} is there, but brackets in a pattern stand for one of the characters in them: write `{written}` for its name"
            ));
        }
        place.push(literal(part)?);
    }
    None
}

/// Refuses a path that does not exist and looks like a pattern.
///
/// # Errors
/// It does.
pub(super) fn check_path(path: &Path) -> Result<(), DataError> {
    let pattern = path.to_string_lossy();
    let is_gone = || path.symlink_metadata().is_err_and(|error| error.kind() == ErrorKind::NotFound);
    let reason = match of_a_shell(&pattern) {
        Some(reason) => reason,
        None if pattern.contains(['*', '?']) => {
            "a path names one file, and none is called so: for all that match it say glob in place of path, as in sources = [{ glob = \"*.txt\" }]"
        }
        None => return Ok(()),
    };
    if !is_gone() {
        return Ok(());
    }
    Err(DataError::Pattern { pattern: pattern.into_owned(), reason: reason.to_owned() })
}

/// Returns a message for shell syntax in a path.
pub(super) fn of_a_shell(path: &str) -> Option<&'static str> {
    let braces = path.split_once('{').and_then(|(_, rest)| rest.split_once('}'));
    match () {
        () if path == "~" || path.starts_with("~/") || path.contains("/~/") => {
            Some("`~` is not expanded here: write the full path of that folder")
        }
        () if braces.is_some_and(|(within, _)| within.contains([',', '.'])) => {
            Some("braces are not expanded here: give each file or pattern its own source")
        }
        () if path.starts_with('$') || path.contains("/$") => {
            Some("variables are not expanded here: write the full path")
        }
        () => None,
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{create_dir, write};

    use super::*;

    #[test]
    fn a_name_with_brackets_that_is_there_is_told_with_how_it_is_written() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path();
        create_dir(place.join("run[1]")).unwrap();
        for name in ["a[1].txt", "run[1]/b[x].txt", "run[1]/c.txt"] {
            write(place.join(name), "text").unwrap();
        }
        let shown = place.display();
        for (pattern, expected) in [
            ("a[1].txt", Some(("a[1].txt", "`a[[]1].txt`"))),
            ("run[1]/*.txt", Some(("run[1]", "`run[[]1]`"))),
            ("run[1]/b[x].txt", Some(("run[1]", "`run[[]1]`"))),
            ("run[[]1]/b[x].txt", Some(("run[1]/b[x].txt", "`b[[]x].txt`"))),
            ("run[[]1[]]/b[x].txt", Some(("run[1]/b[x].txt", "`b[[]x].txt`"))),
            ("run[[]1]/b[[]x].txt", None),
            ("run[[]1]/none.txt", None),
            ("a[2].txt", None),
            ("*/b[x].txt", None),
            ("none/a[1].txt", None),
        ] {
            let told = literally(&format!("{shown}/{pattern}"));
            let words = expected.map(|(name, written)| {
                format!("{shown}/{name} is there, but brackets in a pattern stand for one of the characters in them: write {written} for its name")
            });
            assert_eq!(told, words, "{pattern}");
        }
    }

    #[test]
    fn what_a_shell_would_have_replaced_is_told() {
        for (path, words) in [
            ("~/a.txt", "`~` is not expanded"),
            ("/place/~/a.txt", "`~` is not expanded"),
            ("{a,b}.txt", "braces are not expanded"),
            ("a-{00..07}.txt", "braces are not expanded"),
            ("$HOME/a.txt", "variables are not expanded"),
        ] {
            let message = check_path(Path::new(path)).unwrap_err().to_string();
            assert!(message.contains(words), "{message}");
        }
        for path in ["a~.txt", "{a}.txt", "a$b.txt", "none.txt"] {
            check_path(Path::new(path)).unwrap();
        }
    }

    #[test]
    fn a_path_that_is_there_is_no_pattern_and_one_that_is_not_may_be_one() {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path().join("what?.txt"), "text").unwrap();
        for name in ["what?.txt", "none.txt", "a[1].txt"] {
            check_path(&folder.path().join(name)).unwrap();
        }
        for name in ["*.txt", "none?.txt", "none/*"] {
            let message = check_path(&folder.path().join(name)).unwrap_err().to_string();
            assert!(message.contains(name) && message.contains("say glob in place of path"), "{message}");
        }
    }
}
