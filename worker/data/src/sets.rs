//! Files that say in their names of how many they are: `train-00002-of-00004.parquet`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// A file of a set.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Numbered<'p> {
    folder: &'p Path,
    before: &'p str,
    /// As it is written.
    number: &'p str,
    of: &'p str,
    after: &'p str,
}

impl<'p> Numbered<'p> {
    fn of(path: &'p Path) -> Option<Self> {
        let name = path.file_name()?.to_str()?;
        let (head, tail) = name.rsplit_once("-of-")?;
        let digits = |text: &str| text.bytes().take_while(u8::is_ascii_digit).count();
        let (of, after) = tail.split_at(digits(tail));
        let (before, number) = head.rsplit_once('-')?;
        let is_one = !number.is_empty() && digits(number) == number.len() && number.len() == of.len();
        is_one.then(|| Self { folder: path.parent().unwrap_or(Path::new("")), before, number, of, after })
    }

    /// What all of a set have in common. Behind the number may be a hash.
    fn set(&self) -> (&'p Path, &'p str, Option<&'p str>) {
        (self.folder, self.before, self.after.rsplit_once('.').map(|(_, end)| end))
    }

    /// Another one of its set.
    fn with_number(&self, number: u64) -> PathBuf {
        let Self { folder, before, of, after, .. } = self;
        folder.join(format!("{before}-{number:0width$}-of-{of}{after}", width = of.len()))
    }
}

/// More than a set has. Of one that says that it has more, nothing is said.
const FILES_MAX: u64 = 100_000;

/// Files that their sets lack and that this pattern would match; they may be counted from 0 or from 1.
///
/// # Errors
/// Two files that are of several sets of one name, of which one is left over.
pub(super) fn missing<'p>(
    files: &'p [PathBuf],
    is_wanted: impl Fn(&Path) -> bool,
) -> Result<Vec<PathBuf>, [&'p Path; 2]> {
    let mut sets = BTreeMap::<_, Vec<(Numbered<'p>, &'p Path)>>::new();
    for path in files {
        if let Some(file) = Numbered::of(path) {
            sets.entry(file.set()).or_default().push((file, path));
        }
    }
    let mut missing = Vec::new();
    for of_set in sets.values() {
        let Some(((first, path), others)) = of_set.split_first() else { continue };
        if let Some((_, other)) = others.iter().find(|(file, _)| file.of != first.of) {
            return Err([path, other]);
        }
        let numbers: BTreeSet<u64> = of_set.iter().filter_map(|(file, _)| file.number.parse().ok()).collect();
        let count = first.of.parse().unwrap_or(FILES_MAX);
        if count >= FILES_MAX {
            continue;
        }
        let from = u64::from(!numbers.contains(&0) && numbers.contains(&count));
        let lacking = (from..from + count).filter(|number| !numbers.contains(number));
        missing.extend(lacking.map(|number| first.with_number(number)).filter(|path| is_wanted(path)));
    }
    Ok(missing)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(names: &[&str]) -> Vec<PathBuf> {
        names.iter().map(PathBuf::from).collect()
    }

    #[test]
    fn what_a_set_lacks_is_known_by_the_names_of_the_others() {
        for (files, lacking) in [
            (&["d/t-00000-of-00002.parquet", "d/t-00001-of-00002.parquet"][..], &[][..]),
            (&["d/t-00001-of-00003.parquet"], &["d/t-00000-of-00003.parquet", "d/t-00002-of-00003.parquet"]),
            (&["d/t-1-of-2.bin", "d/t-2-of-2.bin"], &[]),
            (&["a-00000-of-00002-0f3c.arrow"], &["a-00001-of-00002-0f3c.arrow"]),
            // Two sets, of different names, in different folders or of different kinds.
            (&["d/t-0-of-1.csv", "d/v-0-of-2.csv"], &["d/v-1-of-2.csv"]),
            (&["d/t-0-of-1.csv", "e/t-0-of-2.csv"], &["e/t-1-of-2.csv"]),
            (&["t-0-of-1.csv", "t-0-of-2.tsv"], &["t-1-of-2.tsv"]),
            (&["one-of-many.txt", "1-of-2.txt", "a-01-of-2.txt", "t-of-2", "t-0-of-999999.csv"], &[]),
        ] {
            assert_eq!(missing(&paths(files), |_| true), Ok(paths(lacking)), "{files:?}");
            assert_eq!(missing(&paths(files), |_| false), Ok(Vec::new()), "{files:?}");
        }
    }

    #[test]
    fn sets_of_one_name_are_told_apart_by_how_many_they_are() {
        let files = paths(&["d/data-00000-of-00001.arrow", "d/data-00000-of-00005.arrow"]);
        assert_eq!(missing(&files, |_| true), Err([files[0].as_path(), files[1].as_path()]));
    }
}
