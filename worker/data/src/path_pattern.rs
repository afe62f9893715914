//! Path patterns in the syntax of shells and Python's `glob`.

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use glob::{MatchOptions, Pattern, PatternError};

/// A path pattern: a folder, and patterns for the names below it.
pub(super) struct PathPattern {
    pub(super) root: PathBuf,
    /// Patterns of each name below, up to the first `**`.
    names: Vec<Pattern>,
    /// Whether it has `**`, and thus matches any number of names.
    is_deep: bool,
    /// Whether a name after that has an explicit leading dot.
    has_points: bool,
    /// Pattern of the whole path below.
    pub(super) below: Pattern,
}

/// `*` and `?` match within a name, and no leading dot.
const AS_SHELLS: MatchOptions =
    MatchOptions { case_sensitive: true, require_literal_separator: true, require_literal_leading_dot: true };

const WITH_HIDDEN: MatchOptions = MatchOptions { require_literal_leading_dot: false, ..AS_SHELLS };

impl PathPattern {
    pub(super) fn new(pattern: &str) -> Result<Self, PatternError> {
        let parts = parts_of(pattern);
        let (last, before) = (parts.len() - 1, parts.iter().map_while(|part| literal(part)));
        let root: Vec<String> = before.take(last).collect();
        let below = &parts[root.len()..];
        let root = match root.join("/") {
            _ if root.is_empty() => PathBuf::from("."),
            root if root.is_empty() => PathBuf::from("/"),
            root => PathBuf::from(root),
        };
        let names = below.iter().take_while(|part| **part != "**");
        let names = names.map(|part| Pattern::new(part)).collect::<Result<Vec<_>, _>>()?;
        let is_deep = names.len() < below.len();
        let has_points = below.iter().skip(names.len()).any(|part| part.starts_with('.'));
        Ok(Self { root, names, is_deep, has_points, below: Pattern::new(&below.join("/"))? })
    }

    /// Returns the names below the root. `?` and `*` match invalid UTF-8 in them.
    fn names_of<'a>(&self, path: &'a Path) -> Cow<'a, str> {
        path.strip_prefix(&self.root).unwrap_or(path).to_string_lossy()
    }

    pub(super) fn matches(&self, path: &Path) -> bool {
        self.below.matches_with(&self.names_of(path), AS_SHELLS)
    }

    /// Whether only a leading dot keeps it from matching.
    pub(super) fn would_match(&self, path: &Path) -> bool {
        self.below.matches_with(&self.names_of(path), WITH_HIDDEN)
    }

    /// Whether something in this folder may match.
    pub(super) fn leads_to(&self, folder: &Path) -> bool {
        let names = self.names_of(folder);
        let is_hidden_below =
            || !self.has_points && names.split('/').skip(self.names.len()).any(|name| name.starts_with('.'));
        self.leads(folder, AS_SHELLS) && !is_hidden_below()
    }

    /// Whether only a leading dot keeps it from doing so.
    pub(super) fn would_lead_to(&self, folder: &Path) -> bool {
        self.leads(folder, WITH_HIDDEN)
    }

    fn leads(&self, folder: &Path, options: MatchOptions) -> bool {
        let names = self.names_of(folder);
        let mut fits = names.split('/').zip(&self.names).map(|(name, part)| part.matches_with(name, options));
        (self.is_deep || names.split('/').count() < self.names.len()) && fits.all(|fits| fits)
    }

    /// Returns the path of a found file as people write it.
    pub(super) fn shown(&self, path: &Path) -> PathBuf {
        path.strip_prefix(".").unwrap_or(path).to_owned()
    }
}

/// Splits a pattern into its names, without those that lead nowhere: `./d//*` is `d/*`. Paths are compared by names, and walks return them so. A slash at
/// the end stays: no file matches it.
fn parts_of(pattern: &str) -> Vec<&str> {
    let parts: Vec<&str> = pattern.split('/').collect();
    let last = parts.len() - 1;
    let leads = |(at, part): &(usize, &str)| match *part {
        "" => *at == 0 || *at == last,
        part => literal(part).is_none_or(|name| name != "."),
    };
    let leading: Vec<&str> = parts.iter().copied().enumerate().filter(leads).map(|(_, part)| part).collect();
    if leading.is_empty() { vec!["."] } else { leading }
}

/// Returns the message for an invalid pattern, with a remedy.
pub(super) fn told(error: &PatternError) -> String {
    let remedy = match error.msg {
        msg if msg.contains("range") => "; a bracket that is part of a name is written `[[]`",
        msg if msg.contains("recursive") => {
            ": `**` stands for any folders, and is a whole component of a path, as in `FOLDER/**/*.jsonl`; a part of a name is `*`"
        }
        _ => "",
    };
    format!("{error}{remedy}")
}

/// Returns the only name that a part of a pattern matches: special characters are in brackets. `None`: it may match several.
pub(super) fn literal(part: &str) -> Option<String> {
    let (mut name, mut rest) = (String::new(), part);
    while let Some(at) = rest.find(['*', '?', '[']) {
        let mut class = rest[at..].strip_prefix('[')?.chars();
        let character = class.next().filter(|character| *character != '!')?;
        name += &rest[..at];
        name.push(character);
        rest = class.as_str().strip_prefix(']')?;
    }
    Some(name + rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invalid_pattern_is_told_with_what_a_valid_one_is() {
        for (pattern, words) in [
            (
                "d**.jsonl",
                "`**` stands for any folders, and is a whole component of a path, as in `FOLDER/**/*",
            ),
            ("d/**.jsonl", "`**` stands for any folders"),
            ("d/***/a", "`**` stands for any folders"),
            ("d/a[", "a bracket that is part of a name is written `[[]`"),
        ] {
            let told = PathPattern::new(pattern).map(drop).map_err(|error| told(&error)).unwrap_err();
            assert!(told.contains(words), "{pattern}: {told}");
        }
    }

    #[test]
    fn a_pattern_is_the_same_in_each_spelling() {
        for (pattern, root, below) in [
            ("d/*", "d", "*"),
            ("./d/*", "d", "*"),
            ("././d//*", "d", "*"),
            ("d/./*", "d", "*"),
            ("d//./s/*", "d/s", "*"),
            ("[.]/d/*", "d", "*"),
            ("*/./a", ".", "*/a"),
            ("**//a", ".", "**/a"),
            ("./*", ".", "*"),
            (".//*", ".", "*"),
            ("*", ".", "*"),
            ("/d/./*", "/d", "*"),
            ("//d/*", "/d", "*"),
            ("/./*", "/", "*"),
            ("../d/*", "../d", "*"),
            ("./../d/./*", "../d", "*"),
            (".d/.*", ".d", ".*"),
            ("d/*/", "d", "*/"),
            ("d/.", ".", "d"),
            (".", ".", "."),
        ] {
            let found = PathPattern::new(pattern).unwrap();
            assert_eq!((found.root.to_str().unwrap(), found.below.as_str()), (root, below), "{pattern}");
        }
    }

    #[test]
    fn a_part_of_a_pattern_that_matches_one_name_is_that_name() {
        for (part, name) in [
            ("data", Some("data")),
            ("", Some("")),
            ("s[[]1[]]", Some("s[1]")),
            ("[?]a[*]é", Some("?a*é")),
            ("a]", Some("a]")),
            ("*", None),
            ("a?", None),
            ("[ab]", None),
            ("[!]", None),
            ("[!a]", None),
            ("a[", None),
            ("[[]*", None),
        ] {
            assert_eq!(literal(part).as_deref(), name, "{part}");
        }
    }
}
