//! Files of several formats under one pattern, by their names.

use std::collections::HashMap;
use std::path::Path;

use longhaul_common::config::DataFormat;

use super::counted::counted;
use super::files::name_of;
use super::records::is_packed_by_name;

/// The files of one format.
struct Kind<'p> {
    format: DataFormat,
    first: &'p Path,
    count: u64,
}

/// Returns the reason for refusing a pattern that matches files of several formats; `None`: their names are of one.
pub(super) fn told<'p>(paths: impl Iterator<Item = &'p Path>) -> Option<String> {
    let (mut kinds, mut places) = (Vec::<Kind<'p>>::new(), HashMap::new());
    for path in paths {
        let format = DataFormat::of(path);
        let place = *places.entry(format).or_insert(kinds.len());
        match kinds.get_mut(place) {
            Some(kind) => kind.count += 1,
            None => kinds.push(Kind { format, first: path, count: 1 }),
        }
    }
    if kinds.len() < 2 {
        return None;
    }
    // The first of equals.
    kinds.sort_by_key(|kind| u64::MAX - kind.count);
    let found: Vec<String> = kinds.iter().map(Kind::shown).collect();
    let end = kinds.iter().find_map(Kind::end).map(|end| format!(", as `*.{end}`")).unwrap_or_default();
    Some(format!(
        "it matches files of several kinds: {}: narrow the pattern to the names of one kind{end}, and name each other kind that belongs to the data in a source of its own; or say with format what they all are",
        found.join(", ")
    ))
}

impl Kind<'_> {
    fn shown(&self) -> String {
        let more = if self.count == 1 { String::new() } else { format!(" and {} more", self.count - 1) };
        format!(
            "{} of {} ({}{more})",
            counted(self.count, "file"),
            name_of(self.format),
            self.first.display()
        )
    }

    /// Returns the end of names that gives the format; `None`: it is plain text, or another part of a name gives it.
    fn end(&self) -> Option<String> {
        let end = |path: &Path| path.extension().and_then(|end| end.to_str()).map(str::to_owned);
        let last = end(self.first)?;
        let whole = match is_packed_by_name(self.first) {
            true => format!("{}.{last}", end(&self.first.with_extension(""))?),
            false => last,
        };
        let is_given_by_it = DataFormat::of(Path::new(&format!("a.{whole}"))) == self.format;
        (self.format != DataFormat::Text && is_given_by_it).then_some(whole)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kinds_of_files_are_told_by_their_number_and_how_to_narrow_the_pattern() {
        let of = |names: &[&str]| told(names.iter().map(Path::new));
        for (names, words) in [
            (
                &["d/README", "d/a.csv", "d/b.jsonl", "d/c.jsonl"][..],
                "it matches files of several kinds: 2 files of \"jsonl\" (d/b.jsonl and 1 more), 1 file of \"text\" (d/README), 1 file of \"csv\" (d/a.csv): narrow the pattern to the names of one kind, as `*.jsonl`, and name",
            ),
            (&["a.txt", "b.txt", "c.csv.gz"], "2 files of \"text\" (a.txt and 1 more), 1 file of \"csv\""),
            (&["a.txt", "c.csv.gz"], "one kind, as `*.csv.gz`, and"),
            (&["a.txt", "train-idx3-ubyte.gz"], "the names of one kind, and name"),
        ] {
            let told = of(names).unwrap();
            assert!(told.contains(words), "{told}");
        }
        for names in [&["a.csv", "b.csv.zst"][..], &["README", "a.txt"], &[]] {
            assert_eq!(of(names), None, "{names:?}");
        }
    }
}
