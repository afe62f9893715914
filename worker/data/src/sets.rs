//! Files whose names give the size of their set: `train-00002-of-00004.parquet`, `part_2_of_4.jsonl`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

const BETWEEN: [&str; 3] = ["-of-", "_of_", ".of."];

/// A file of a set.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Numbered<'p> {
    folder: &'p Path,
    /// Text before the number, including the sign.
    before: &'p str,
    /// The number as written.
    number: &'p str,
    /// Text between the two numbers.
    between: &'p str,
    of: &'p str,
    after: &'p str,
}

impl<'p> Numbered<'p> {
    fn of(path: &'p Path) -> Option<Self> {
        let name = path.file_name()?.to_str()?;
        let (between, (head, tail)) =
            BETWEEN.iter().find_map(|between| Some((*between, name.rsplit_once(between)?)))?;
        let (of, after) = tail.split_at(tail.bytes().take_while(u8::is_ascii_digit).count());
        let (before, number) = head.split_at(head.trim_end_matches(|c: char| c.is_ascii_digit()).len());
        let is_one = !number.is_empty() && number.len() <= of.len() && before.ends_with(['-', '.', '_']);
        is_one.then(|| Self {
            folder: path.parent().unwrap_or(Path::new("")),
            before,
            number,
            between,
            of,
            after,
        })
    }

    /// Returns the common parts of a set. A hash may follow the number.
    fn set(&self) -> (&'p Path, &'p str, Option<&'p str>) {
        (self.folder, self.before, self.after.rsplit_once('.').map(|(_, end)| end))
    }

    /// Returns another file of its set, with as many digits if this one's number has leading zeros.
    fn with_number(&self, number: u64) -> PathBuf {
        let Self { folder, before, between, of, after, .. } = self;
        let width = if self.number.starts_with('0') && self.number.len() > 1 { self.number.len() } else { 0 };
        let width = if self.number.len() == of.len() { of.len() } else { width };
        folder.join(format!("{before}{number:0width$}{between}{of}{after}"))
    }
}

/// Upper bound of files in a set. Sets that claim more are ignored.
const FILES_MAX: u64 = 100_000;

/// A defect of the sets among files.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Wrong<'p> {
    /// Files of several sets of one name, one of them a leftover.
    Several([&'p Path; 2]),
    /// Files with the same number.
    Twice([&'p Path; 2]),
}

impl Wrong<'_> {
    /// Describes it in words.
    pub fn told(&self) -> String {
        let (Self::Several([one, other]) | Self::Twice([one, other])) = self;
        let what = match self {
            Self::Several(_) => "of two sets of one name, of which one is left over from another time",
            Self::Twice(_) => "that are one part of a set, in two versions",
        };
        format!(
            "it matches {} and {}, files {what}: remove those that do not belong there, or name the others alone",
            one.display(),
            other.display()
        )
    }
}

/// Returns the files missing from their sets that this pattern would match; numbers start at 0 or 1.
///
/// # Errors
/// [`Wrong`]
pub(super) fn missing<'p>(
    files: &'p [PathBuf],
    is_wanted: impl Fn(&Path) -> bool,
) -> Result<Vec<PathBuf>, Wrong<'p>> {
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
            return Err(Wrong::Several([path, other]));
        }
        let mut numbers = BTreeMap::<u64, &Path>::new();
        for (file, path) in of_set {
            if let Ok(number) = file.number.parse()
                && let Some(other) = numbers.insert(number, path)
            {
                return Err(Wrong::Twice([other, path]));
            }
        }
        let count = first.of.parse().unwrap_or(FILES_MAX);
        if count >= FILES_MAX {
            continue;
        }
        if let (Some(first), Some(last)) = (numbers.get(&0), numbers.get(&count)) {
            return Err(Wrong::Several([first, last]));
        }
        let from = u64::from(!numbers.contains_key(&0) && numbers.contains_key(&count));
        let lacking = (from..from + count).filter(|number| !numbers.contains_key(number));
        missing.extend(lacking.map(|number| first.with_number(number)).filter(|path| is_wanted(path)));
    }
    Ok(missing)
}

/// Numbers are told as skipped up to this part of all: more are a selection.
const SKIPPED_PART: u64 = 4;

/// Splits the name of a file that counts without saying up to where: `part-3.txt`. Returns folder, text before and after the number, and this as written.
fn counted(path: &Path) -> Option<((&Path, &str, &str), &str)> {
    let name = path.file_name()?.to_str()?;
    let (stem, after) = name.split_at(name.find('.').unwrap_or(name.len()));
    let (before, number) = stem.split_at(stem.trim_end_matches(|c: char| c.is_ascii_digit()).len());
    let is_one = !number.is_empty() && Numbered::of(path).is_none();
    is_one.then(|| ((path.parent().unwrap_or(Path::new("")), before, after), number))
}

/// Returns the files that names of this pattern skip: `part-2` beside `part-0`, `part-1` and `part-3`. Numbers start at 0 or 1.
pub(super) fn skipped(files: &[PathBuf], is_wanted: impl Fn(&Path) -> bool) -> Vec<PathBuf> {
    let mut sets = BTreeMap::<_, (BTreeSet<u64>, usize)>::new();
    for (set, number) in files.iter().filter_map(|path| counted(path)) {
        if let Ok(parsed) = number.parse() {
            let (numbers, digits) = sets.entry(set).or_insert((BTreeSet::new(), number.len()));
            numbers.insert(parsed);
            *digits = number.len().min(*digits);
        }
    }
    let mut skipped = Vec::new();
    for ((folder, before, after), (numbers, digits)) in sets {
        let (Some(first), Some(last)) = (numbers.first(), numbers.last()) else { continue };
        let all = (last - first).saturating_add(1);
        let lacking = all - numbers.len() as u64;
        if *first > 1 || lacking > all / SKIPPED_PART {
            continue;
        }
        let names = (*first..*last).filter(|number| !numbers.contains(number));
        let names = names.map(|number| folder.join(format!("{before}{number:0digits$}{after}")));
        skipped.extend(names.filter(|path| is_wanted(path) && path.symlink_metadata().is_err()));
    }
    skipped
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
            (
                &[
                    "day-1-of-10.txt",
                    "day-10-of-10.txt",
                    "day-2-of-10.txt",
                    "day-4-of-10.txt",
                    "day-5-of-10.txt",
                    "day-6-of-10.txt",
                    "day-7-of-10.txt",
                    "day-8-of-10.txt",
                    "day-9-of-10.txt",
                ],
                &["day-3-of-10.txt"],
            ),
            (&["c4-train.00000-of-00002.json.gz"], &["c4-train.00001-of-00002.json.gz"]),
            (&["text_0-of-2"], &["text_1-of-2"]),
            (&["part_0_of_3.jsonl", "part_2_of_3.jsonl"], &["part_1_of_3.jsonl"]),
            (&["a.2.of.2.txt"], &["a.1.of.2.txt"]),
            (&["log_1_of_many.txt", "end_of_2.txt"], &[]),
            (&["a-00000-of-00002-0f3c.arrow"], &["a-00001-of-00002-0f3c.arrow"]),
            // Two sets, of different names, in different folders or of different kinds.
            (&["d/t-0-of-1.csv", "d/v-0-of-2.csv"], &["d/v-1-of-2.csv"]),
            (&["d/t-0-of-1.csv", "e/t-0-of-2.csv"], &["e/t-1-of-2.csv"]),
            (&["t-0-of-1.csv", "t-0-of-2.tsv"], &["t-1-of-2.tsv"]),
            (&["one-of-many.txt", "1-of-2.txt", "a-001-of-2.txt", "t-of-2", "t-0-of-999999.csv"], &[]),
        ] {
            assert_eq!(missing(&paths(files), |_| true), Ok(paths(lacking)), "{files:?}");
            assert_eq!(missing(&paths(files), |_| false), Ok(Vec::new()), "{files:?}");
        }
    }

    #[test]
    fn sets_of_one_name_are_told_apart_by_how_many_they_are() {
        let told = |names: [&str; 3]| {
            let files = paths(&names);
            missing(&files, |_| true).map_err(|wrong| match wrong {
                Wrong::Several([one, other]) => ("several", one.to_owned(), other.to_owned()),
                Wrong::Twice([one, other]) => ("twice", one.to_owned(), other.to_owned()),
            })
        };
        for (names, what) in [
            (["d/a-00000-of-00001.arrow", "d/a-00000-of-00005.arrow", "d/b.arrow"], "several"),
            (["d/a-0-of-1-0f3c.jsonl", "d/a-0-of-1-77aa.jsonl", "d/b.arrow"], "twice"),
            (["d/a-0-of-2.csv", "d/a-2-of-2.csv", "d/b.arrow"], "several"),
        ] {
            let (found, one, other) = told(names).unwrap_err();
            assert_eq!((found, one, other), (what, names[0].into(), names[1].into()));
        }
    }

    #[test]
    fn numbers_that_names_skip_are_found_where_they_are_few() {
        for (files, lacking) in [
            (&["d/part-0", "d/part-1", "d/part-3"][..], &["d/part-2"][..]),
            (&["a1.txt", "a2.txt", "a4.txt", "a5.txt"], &["a3.txt"]),
            (
                &[
                    "c-08.csv.gz",
                    "c-00.csv.gz",
                    "c-01.csv.gz",
                    "c-02.csv.gz",
                    "c-03.csv.gz",
                    "c-04.csv.gz",
                    "c-06.csv.gz",
                    "c-07.csv.gz",
                ],
                &["c-05.csv.gz"],
            ),
            (&["0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "11"], &["10"]),
            (&["a-0.txt", "a-1.txt", "b-0.txt", "b-1.txt", "b-3.txt", "e/a-3.txt", "a-3.csv"], &["b-2.txt"]),
            // Whole, a selection, from another number on, one alone, and names that say how many there are.
            (&["p-0", "p-1", "p-2"], &[]),
            (&["p-0", "p-2"], &[]),
            (&["p-0", "p-1", "p-4"], &[]),
            (&["p-2", "p-3", "p-4", "p-5", "p-7"], &[]),
            (&["p-0"], &[]),
            (&["p-0", "p-1", "p-18446744073709551615", "p-99999999999999999999"], &[]),
            (&["p-0-of-4", "p-1-of-4", "p-3-of-4"], &[]),
        ] {
            assert_eq!(skipped(&paths(files), |_| true), paths(lacking), "{files:?}");
            assert_eq!(skipped(&paths(files), |_| false), Vec::<PathBuf>::new(), "{files:?}");
        }
    }
}
