//! Files of a source with equal content.

use std::collections::HashMap;
use std::fmt;
use std::path::Path;

use super::counted::counted;

/// Limit of named files.
const NAMED_MAX: usize = 5;

/// The number of files with the same items as an earlier one, and the first of them with their originals.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SameContent {
    count: u64,
    first: Vec<(String, String)>,
}

impl SameContent {
    /// Compares files by their results, in order.
    pub(super) fn of<'f, T: Eq + std::hash::Hash>(files: impl Iterator<Item = (&'f Path, T)>) -> Self {
        let (mut same, mut seen) = (Self::default(), HashMap::new());
        for (path, became) in files {
            let first = *seen.entry(became).or_insert(path);
            if first == path {
                continue;
            }
            same.add(path, first);
        }
        same
    }

    /// Compares the files of sources with those of others, in order. Copies within a source are left to [`Self::of`].
    pub(super) fn across<'f, T: Eq + std::hash::Hash>(
        sources: impl Iterator<Item = impl Iterator<Item = (&'f Path, T)>>,
    ) -> Self {
        let (mut same, mut seen) = (Self::default(), HashMap::<T, &Path>::new());
        for source in sources {
            let mut own = HashMap::new();
            for (path, became) in source {
                own.entry(became).or_insert(path);
            }
            let mut own: Vec<(T, &Path)> = own.into_iter().collect();
            own.sort_unstable_by_key(|(_, path)| *path);
            for (became, path) in own {
                match seen.get(&became) {
                    Some(first) if *first != path => same.add(path, first),
                    Some(_) => {}
                    None => _ = seen.insert(became, path),
                }
            }
        }
        same
    }

    fn add(&mut self, copy: &Path, of: &Path) {
        self.count += 1;
        if self.first.len() < NAMED_MAX {
            self.first.push((copy.display().to_string(), of.display().to_string()));
        }
    }

    /// Returns the number.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }
}

/// `2 files are copies of others, and read all the same (b.txt of a.txt, d.txt of a.txt)`
impl fmt::Display for SameContent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let are = if self.count == 1 { "is a copy of another" } else { "are copies of others" };
        let named: Vec<String> = self.first.iter().map(|(copy, of)| format!("{copy} of {of}")).collect();
        let more = self.count - self.first.len() as u64;
        write!(f, "{} {are}, and read all the same ({}", counted(self.count, "file"), named.join(", "))?;
        if more > 0 {
            write!(f, " and {more} more")?;
        }
        f.write_str(")")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_are_counted_and_the_first_are_named() {
        let of = |files: &[(&str, u32)]| {
            SameContent::of(files.iter().map(|(name, became)| (Path::new(*name), *became)))
        };
        assert_eq!(of(&[("a", 1), ("b", 2)]).count(), 0);
        let one = of(&[("a", 1), ("b", 2), ("c", 1)]);
        assert_eq!(one.to_string(), "1 file is a copy of another, and read all the same (c of a)");
        let many = of(&[("a", 1), ("b", 1), ("c", 1), ("d", 1), ("e", 1), ("f", 1), ("g", 1), ("h", 1)]);
        assert_eq!(many.count(), 7);
        assert!(many.to_string().starts_with("7 files are copies of others, "), "{many}");
        assert!(many.to_string().ends_with("f of a and 2 more)"), "{many}");
    }

    #[test]
    fn copies_in_several_sources_are_counted_once() {
        let across = |sources: &[&[(&str, u32)]]| {
            SameContent::across(
                sources.iter().map(|files| files.iter().map(|(name, became)| (Path::new(*name), *became))),
            )
        };
        for (sources, told) in [
            (&[&[("a", 1), ("b", 1)][..], &[("c", 2)]][..], None),
            (&[&[("a", 1)], &[("a", 1), ("b", 2)]], None),
            (
                &[&[("a", 1)], &[("b", 1)]],
                Some("1 file is a copy of another, and read all the same (b of a)"),
            ),
            (
                &[&[("a", 1)], &[("c", 1), ("d", 1)], &[("e", 1)]],
                Some("2 files are copies of others, and read all the same (c of a, e of a)"),
            ),
        ] {
            let same = across(sources);
            assert_eq!((same.count() > 0).then(|| same.to_string()).as_deref(), told, "{sources:?}");
        }
    }
}
