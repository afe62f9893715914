//! The folder in which a pattern found no file.

use std::collections::BTreeSet;
use std::fs::DirEntry;
use std::io;
use std::path::Path;

/// Names listed in a message.
const NAMED_MAX: usize = 5;
/// Entries of a folder to examine: a message does not wait for a folder of millions.
const ENTRIES_MAX: usize = 1 << 12;

/// Describes the pattern, its folder, and the first names there or in the nearest existing folder above.
pub(super) fn searched(folder: &Path, below: &str) -> String {
    let folder = std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned());
    let shown = folder.display();
    let there = match names_in(&folder) {
        Ok(names) => return format!("`{below}` was looked for in {shown}, which {}", has(&names)),
        Err(_) if folder.is_file() => "is no folder".to_owned(),
        Err(_) if !folder.exists() => "is not there".to_owned(),
        Err(error) => format!("cannot be read ({error})"),
    };
    let above = folder.ancestors().skip(1).find_map(|above| Some((above, names_in(above).ok()?)));
    let above = above.map(|(above, names)| format!("; {} {}", above.display(), has(&names)));
    format!("`{below}` was looked for in {shown}, which {there}{}", above.unwrap_or_default())
}

/// Names in a folder, as far as examined.
#[derive(Debug, Default, PartialEq, Eq)]
struct Names {
    /// The first names in order; those of folders end with a slash.
    first: BTreeSet<String>,
    count: usize,
    /// Whether entries were skipped.
    has_more: bool,
}

impl Names {
    fn add(&mut self, name: String) {
        self.count += 1;
        self.first.insert(name);
        if self.first.len() > NAMED_MAX {
            self.first.pop_last();
        }
    }
}

fn names_in(folder: &Path) -> io::Result<Names> {
    Ok(names_of(std::fs::read_dir(folder)?.map(|entry| entry.map(|entry| name_of(&entry)))))
}

/// Returns the readable names among the examined entries.
fn names_of(entries: impl Iterator<Item = io::Result<String>>) -> Names {
    let mut names = Names::default();
    for (index, entry) in entries.enumerate() {
        match entry {
            _ if index == ENTRIES_MAX => {
                names.has_more = true;
                break;
            }
            Ok(name) => names.add(name),
            Err(_) => names.has_more = true,
        }
    }
    names
}

/// Returns a name. A link to a folder gets no slash: links are not followed.
fn name_of(entry: &DirEntry) -> String {
    let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
    format!("{}{}", entry.file_name().to_string_lossy(), if is_folder { "/" } else { "" })
}

fn has(names: &Names) -> String {
    let first: Vec<&str> = names.first.iter().map(String::as_str).collect();
    let first = first.join(", ");
    match (names.count - names.first.len(), names.has_more) {
        (_, false) if first.is_empty() => "is empty".to_owned(),
        (_, true) if first.is_empty() => "has nothing whose name can be read".to_owned(),
        (0, false) => format!("has {first}"),
        (more, false) => format!("has {first} and {more} more"),
        (_, true) => format!("has {first} and more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_folder_and_its_first_names_are_told_or_those_of_the_nearest_that_is_there() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path();
        std::fs::create_dir_all(place.join("full/sub")).unwrap();
        std::fs::create_dir(place.join("empty")).unwrap();
        for name in ["b.txt", "a.txt", "c", "d", "e.csv", ".f"] {
            std::fs::write(place.join("full").join(name), "text").unwrap();
        }
        let shown = place.display();
        for (name, below, expected) in [
            (
                "full",
                "*.jsonl",
                format!(
                    "`*.jsonl` was looked for in {shown}/full, which has .f, a.txt, b.txt, c, d and 2 more"
                ),
            ),
            ("full/sub", "**", format!("`**` was looked for in {shown}/full/sub, which is empty")),
            (
                "none/at/all",
                "?",
                format!("in {shown}/none/at/all, which is not there; {shown} has empty/, full/"),
            ),
            ("full/c", "*", format!("in {shown}/full/c, which is no folder; {shown}/full has .f, a.txt")),
        ] {
            let told = searched(&place.join(name), below);
            assert!(told.contains(&expected), "{told}");
        }
        std::fs::remove_file(place.join("full/e.csv")).unwrap();
        std::fs::remove_file(place.join("full/.f")).unwrap();
        assert!(searched(&place.join("full"), "*").ends_with("which has a.txt, b.txt, c, d, sub/"));
    }

    #[test]
    fn as_many_entries_are_looked_at_as_a_message_needs_and_one_that_fails_hides_no_other() {
        let name = |number: usize| Ok(format!("{number:05}"));
        let all = |count: usize| has(&names_of((0..count).rev().map(name)));
        assert_eq!(all(ENTRIES_MAX), "has 00000, 00001, 00002, 00003, 00004 and 4091 more");
        assert_eq!(all(ENTRIES_MAX + 1), "has 00001, 00002, 00003, 00004, 00005 and more");
        let mut asked = 0;
        names_of((0..2 * ENTRIES_MAX).inspect(|_| asked += 1).map(name));
        assert_eq!(asked, ENTRIES_MAX + 1);
        let failed = || Err(io::Error::other("away"));
        assert_eq!(has(&names_of([name(7), failed(), name(3)].into_iter())), "has 00003, 00007 and more");
        assert_eq!(has(&names_of([failed()].into_iter())), "has nothing whose name can be read");
        assert_eq!(has(&names_of(std::iter::empty())), "is empty");
    }
}
