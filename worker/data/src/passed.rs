//! Files at a source's place that are left out.

use std::collections::BTreeMap;
use std::fmt;
use std::io::ErrorKind;
use std::path::Path;

use walkdir::DirEntry;

/// Names listed per reason.
const NAMED_MAX: usize = 5;

/// The reason for leaving a file out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// A link that leads nowhere.
    DanglingLink,
    /// Access is denied.
    Unreadable,
    /// A folder in place of a file.
    Folder,
    /// A link to a folder above the one searched.
    FolderAbove,
    /// A link to a folder that contains it, and whose files are found without it.
    Circle,
    /// A pipe, a socket, a device.
    NoFile,
    /// An image of an unsupported format.
    OtherImage,
    /// An image outside the classes' folders.
    NoClass,
    /// An empty file among others with content.
    Empty,
    /// A compressed file with empty content, among others with content.
    EmptyPacked,
    /// A file of this program: prepared data, or a run's state.
    Own,
    /// A missing part, as the names of others show: `-of-00004`.
    MissingPart,
    /// A file of another program beside its data: unfinished or derived.
    Leftover,
    /// A name with a leading dot, which patterns and classes match only explicitly.
    Hidden,
    /// A file beside images that is no image.
    NoImage,
    /// An empty plain text among others with content.
    EmptyText,
    /// A table beside images, which may have their classes: `metadata.csv`.
    ImageTable,
    /// A number that the names of others skip.
    Gap,
}

impl Reason {
    /// Whether intended data may be missing as a result.
    fn is_loss(self) -> bool {
        use Reason::{Circle, EmptyText, Gap, Hidden, ImageTable, Leftover, NoImage, Own};
        !matches!(self, Circle | EmptyText | Gap | Hidden | ImageTable | Leftover | NoImage | Own)
    }

    /// Returns the words for a count.
    fn words(self, count: u64) -> &'static str {
        let [one, several] = match self {
            Self::DanglingLink => ["link that leads nowhere", "links that lead nowhere"],
            Self::Unreadable => ["unreadable (permissions)"; 2],
            Self::Folder => [
                "folder (`**` in a pattern takes what is in it)",
                "folders (`**` in a pattern takes what is in them)",
            ],
            Self::FolderAbove => [
                "link to a folder above, which is not followed (take it away)",
                "links to folders above, which are not followed (take them away)",
            ],
            Self::Circle => ["link to a folder that it is in", "links to folders that they are in"],
            Self::NoFile => ["neither file nor folder", "neither files nor folders"],
            Self::OtherImage => [
                "image that is not read, by its name or its format (JPEG: rename it to .jpg; others: convert it to JPEG or PNG)",
                "images that are not read, by their names or formats (JPEG: rename them to .jpg; others: convert them to JPEG or PNG)",
            ],
            Self::NoClass => ["image in no folder of a class", "images in no folder of a class"],
            Self::Empty => [
                "empty file of 0 bytes (fetch it again, or take it away)",
                "empty files of 0 bytes (fetch them again, or take them away)",
            ],
            Self::EmptyPacked => [
                "packed file of nothing (pack it anew, or take it away)",
                "packed files of nothing (pack them anew, or take them away)",
            ],
            Self::Own => [
                "kept by this program (a worker's cache, or a coordinator's state)",
                "kept by this program (workers' caches, or coordinators' states)",
            ],
            Self::MissingPart => [
                "not there, by the names of the others (fetch it, or name those that there are)",
                "not there, by the names of the others (fetch them, or name those that there are)",
            ],
            Self::Leftover => [
                "kept by another program beside its data (of Spark, or a cache of `datasets`, which a pattern takes that names it)",
                "kept by other programs beside their data (of Spark, or caches of `datasets`, which a pattern takes that names them)",
            ],
            Self::Hidden => ["hidden"; 2],
            Self::NoImage => ["no image", "no images"],
            Self::EmptyText => ["empty text", "empty texts"],
            Self::ImageTable => [
                "table beside images, of which nothing is used: the class of an image is its folder",
                "tables beside images, of which nothing is used: the class of an image is its folder",
            ],
            Self::Gap => [
                "number that the names of the others skip (fetch the file, if there is one)",
                "numbers that the names of the others skip (fetch the files, if there are any)",
            ],
        };
        if count == 1 { one } else { several }
    }
}

/// Whether an entry of a walk is a link to a folder above the walk's root: its content is that of other classes, or of other sources.
pub(super) fn is_folder_above(entry: &DirEntry, root: &Path) -> bool {
    entry.path_is_symlink()
        && entry.file_type().is_dir()
        && std::fs::canonicalize(root).is_ok_and(|root| {
            std::fs::canonicalize(entry.path()).is_ok_and(|to| root != to && root.starts_with(to))
        })
}

/// Returns the reason of an error in a folder walk; `None`: the file has vanished.
pub(super) fn reason_of(error: &walkdir::Error) -> Option<Reason> {
    const NOT_A_FOLDER: i32 = 20;
    const TOO_MANY_LINKS: i32 = 40;
    if error.loop_ancestor().is_some() {
        return Some(Reason::Circle);
    }
    let reason = error.io_error()?;
    let is_link = error.path().is_some_and(Path::is_symlink);
    match (reason.kind(), reason.raw_os_error()) {
        (ErrorKind::NotFound, _) | (_, Some(NOT_A_FOLDER)) => is_link.then_some(Reason::DanglingLink),
        (_, Some(TOO_MANY_LINKS)) => Some(Reason::DanglingLink),
        _ => Some(Reason::Unreadable),
    }
}

/// Files left out: the count and the first names per reason.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PassedOver(BTreeMap<Reason, (u64, Vec<String>)>);

impl PassedOver {
    /// Adds a file.
    pub(super) fn add(&mut self, reason: Reason, path: &Path) {
        let (count, names) = self.0.entry(reason).or_default();
        *count += 1;
        if names.len() < NAMED_MAX {
            names.push(path.display().to_string());
        }
    }

    /// Returns the number of files.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.0.values().map(|(count, _)| count).sum()
    }

    /// Returns those that may be intended data.
    pub(super) fn lost(&self) -> Self {
        Self(
            self.0
                .iter()
                .filter(|(reason, _)| reason.is_loss())
                .map(|(reason, of)| (*reason, of.clone()))
                .collect(),
        )
    }
}

/// `3 passed over: 2 links that lead nowhere (a, b); 1 hidden (.c)`.
impl fmt::Display for PassedOver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed over", self.count())?;
        for (index, (reason, (count, names))) in self.0.iter().enumerate() {
            let (before, more) = (if index == 0 { ": " } else { "; " }, count - names.len() as u64);
            write!(f, "{before}{count} {} ({}", reason.words(*count), names.join(", "))?;
            if more > 0 {
                write!(f, " and {more} more")?;
            }
            write!(f, ")")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_names_of_each_reason_are_told_and_the_rest_is_counted() {
        let mut passed = PassedOver::default();
        assert_eq!(passed.to_string(), "0 passed over");
        for name in ["a", "b", "c", "d", "e", "f", "g"] {
            passed.add(Reason::NoImage, Path::new(name));
        }
        assert_eq!(passed.lost(), PassedOver::default());
        passed.add(Reason::DanglingLink, Path::new("x"));
        assert_eq!(
            passed.to_string(),
            "8 passed over: 1 link that leads nowhere (x); 7 no images (a, b, c, d, e and 2 more)"
        );
        assert_eq!(passed.lost().to_string(), "1 passed over: 1 link that leads nowhere (x)");
        passed.add(Reason::DanglingLink, Path::new("y"));
        assert_eq!(passed.lost().to_string(), "2 passed over: 2 links that lead nowhere (x, y)");
    }
}
