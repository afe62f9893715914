//! Images and their classes in a WebDataset tar archive: `key.jpg` and `key.cls`, or `key.json`, side by side.

use std::io::{self, Read};
use std::path::PathBuf;

use super::class_field::ClassField;
use super::input::{Input, MARK, Position};
use super::seen::Seen;
use super::tar::{Tar, TarFile};
use super::torn::{Half, Part, Torn};
use super::{Record, Records};
use crate::bounds::RECORD_BYTES_MAX;
use crate::image::{Pixels, RawImage};
use crate::notes::{Note, Notes};
use crate::{DataError, Recipe};

/// Upper bound in bytes of a file with an image's class.
const LABEL_BYTES_MAX: u64 = 1 << 20;

/// Message for a repeated name: `webdataset` would yield both, but unpacking keeps only the last file of a name.
const AGAIN: &str = "its name comes again, behind other samples, and stands for a whole sample further ahead (`tar -r` appends files so): unpack the archive, which keeps the last file of each name, and pack it anew (`tar --sort=name`); or take one out (`tar --delete --occurrence=2 -f ARCHIVE FILE`, the second of this name)";

const CUT_OFF: &str = "it is cut off there: fetch it again, or pack it anew";

/// Message for a file such as `__info__.json`, as other programs name what is no sample.
const ABOUT: &str = "it has no image, and a name that begins with `__`, as a file about the archive: take it out (`tar --delete -f ARCHIVE FILE`), or pack the archive anew without it";

/// Files of a sample named in a message.
const OTHERS_MAX: usize = 8;

/// The samples of an archive.
pub(super) struct WebDataset {
    path: PathBuf,
    position: Position,
    tar: Tar<Box<dyn Read>>,
    field: ClassField,
    /// The first file of the next sample.
    next: Option<TarFile>,
    /// The key of the last sample read.
    last: Option<String>,
    /// The first resource fork since then, and their number.
    forks: Option<(String, u64)>,
    torn: Torn,
    seen: Seen,
    notes: Notes,
}

/// Files of one key.
#[derive(Default)]
struct Parts {
    image: Option<TarFile>,
    class: Option<TarFile>,
    json: Option<TarFile>,
    /// Extensions of the first other files.
    others: Vec<String>,
    /// A name that occurs twice.
    twice: Option<String>,
}

impl WebDataset {
    pub(super) fn new(input: Input, recipe: &Recipe) -> Self {
        let Input { path, reader, position, .. } = input;
        let field = ClassField { name: recipe.field.clone(), is_said: recipe.has_field };
        let tar = Tar::new(reader);
        let (torn, seen, notes) = (Torn::default(), Seen::default(), Notes::default());
        Self { path, position, tar, field, next: None, last: None, forks: None, torn, seen, notes }
    }

    fn next_file(&mut self) -> Result<Option<TarFile>, DataError> {
        if let Some(file) = self.next.take() {
            return Ok(Some(file));
        }
        self.tar.next_file(bytes_max).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => self.malformed(CUT_OFF.to_owned()),
            io::ErrorKind::InvalidData => self.malformed(error.to_string()),
            _ => DataError::io("read", &self.path)(error),
        })
    }

    fn malformed(&self, reason: String) -> DataError {
        let behind = self.last.as_ref().map(|key| format!("behind sample {key}"));
        let place = behind.unwrap_or_else(|| "its beginning".to_owned());
        DataError::Malformed { path: self.path.clone(), format: "webdataset", place, reason }
    }

    /// Returns the key and the consecutive files of the next sample; `None` at the end.
    fn next_sample(&mut self) -> Result<Option<(String, Parts)>, DataError> {
        let (mut key, mut parts) = (None, Parts::default());
        while let Some(file) = self.next_file()? {
            if is_resource_fork(&file.name) {
                self.forks.get_or_insert((file.name, 0)).1 += 1;
                continue;
            }
            if has_no_key(&file.name) {
                self.notes.note(Note::NoKey, 1, || format!("{} of {}", file.name, self.path.display()));
                continue;
            }
            let (its_key, end) = split(&file.name);
            if key.as_deref().is_some_and(|key| key != its_key) {
                self.next = Some(file);
                break;
            }
            key = Some(its_key.to_owned());
            let end = end.to_ascii_lowercase();
            match end.as_str() {
                "jpg" | "jpeg" | "png" => parts.put(file, |parts| &mut parts.image),
                "cls" => parts.put(file, |parts| &mut parts.class),
                "json" => parts.put(file, |parts| &mut parts.json),
                // Other attributes of the sample.
                _ if parts.others.len() < OTHERS_MAX => parts.others.push(end),
                _ => {}
            }
        }
        Ok(key.map(|key| (key, parts)))
    }

    /// Takes the resource forks found between the parts of samples: each is a bad record.
    fn take_forks(&mut self) -> Option<Record> {
        let (first, count) = self.forks.take()?;
        let more = if count > 1 { format!(" and {} more", count - 1) } else { String::new() };
        let reason = format!(
            "{}, {first}{more}: what macOS packs beside a file (a resource fork), and no part of a sample: pack it anew with `COPYFILE_DISABLE=1 tar ...`, or without `._*`",
            self.path.display()
        );
        Some(Record::Bad { reason, count })
    }
}

impl Records for WebDataset {
    fn next_record(&mut self) -> Result<Option<Record>, DataError> {
        loop {
            if let Some(bad) = self.take_forks().or_else(|| self.torn.poll_bad()) {
                return Ok(Some(bad));
            }
            let Some((key, parts)) = self.next_sample()? else {
                self.torn.handle_end();
                return Ok(self.take_forks().or_else(|| self.torn.poll_bad()));
            };
            let (place, part) = (format!("{}, sample {key}", self.path.display()), parts.alone());
            // An incomplete last sample of an archive without an end is a cut.
            if part.is_some() && self.next.is_none() && self.tar.is_open() {
                return Err(self.malformed(CUT_OFF.to_owned()));
            }
            self.last = Some(key.clone());
            if parts.image.is_none() && is_about_archive(&key) {
                return Ok(Some(Record::bad(format!("{place}: {ABOUT}"))));
            }
            if self.seen.has(&key) {
                return Ok(Some(Record::bad(format!("{place}: {AGAIN}"))));
            }
            match (parts.image(&self.field, place.clone(), &mut self.seen), part) {
                (Ok(image), _) => {
                    self.torn.handle_whole();
                    self.seen.handle_sample(&key);
                    return Ok(Some(Record::Image(image)));
                }
                (Err(reason), Some(part)) => {
                    self.torn.handle_part(key, part, &place, format!("{place}: {reason}"));
                }
                (Err(reason), None) => return Ok(Some(Record::bad(format!("{place}: {reason}")))),
            }
        }
    }

    fn read_bytes(&self) -> u64 {
        self.position.bytes()
    }

    fn content_bytes(&self) -> u64 {
        self.position.content_bytes()
    }

    fn take_notes(&mut self) -> Notes {
        let mut notes = std::mem::take(&mut self.notes);
        if self.tar.take_open() {
            notes.note(Note::NoEnd, 1, || self.path.display().to_string());
        }
        notes
    }
}

impl Parts {
    /// Finds another image and class of the same name in the sample: `2` and `png` of `a.2.png` and `a.2.cls`.
    fn another_pair(&self) -> Option<(&str, &str)> {
        let has =
            |before: &str, end: &str| self.others.iter().any(|other| *other == format!("{before}.{end}"));
        let images = self.others.iter().filter_map(|other| other.rsplit_once('.'));
        let mut images = images.filter(|(_, end)| matches!(*end, "jpg" | "jpeg" | "png"));
        images.find(|(before, _)| has(before, "cls") || has(before, "json"))
    }

    fn put(&mut self, file: TarFile, place: impl Fn(&mut Self) -> &mut Option<TarFile>) {
        let slot = place(self);
        match slot {
            None => *slot = Some(file),
            Some(known) if say_the_same(known, &file) => {}
            Some(_) => {
                self.twice.get_or_insert(file.name);
            }
        }
    }

    /// Returns the image or class of a sample that lacks the other.
    fn alone(&self) -> Option<Part> {
        let part = |file: &TarFile, half| Part { name: file.name.clone(), half };
        match (&self.image, self.class.as_ref().or(self.json.as_ref())) {
            _ if self.twice.is_some() => None,
            (Some(image), None) => Some(part(image, Half::Image)),
            (None, Some(class)) => Some(part(class, Half::Class)),
            _ => None,
        }
    }

    fn image(self, field: &ClassField, place: String, seen: &mut Seen) -> Result<RawImage, String> {
        if let Some(name) = self.twice {
            return Err(format!(
                "{name} is there twice, or is one of two images or classes of this sample: each sample has a name of its own"
            ));
        }
        if let Some((before, end)) = self.another_pair().filter(|_| self.image.is_some()) {
            return Err(format!(
                "it has .{before}.{end} with a class beside it, too: a name ends at its first point here, so these belong to the same sample, and would be lost: pack them under names with no other point (`-{before}.{end}`)"
            ));
        }
        let others = || match self.others.as_slice() {
            [] => String::new(),
            others => format!(
                ": it has {}, as what follows the first point of a name says what a file is",
                others.iter().map(|end| format!(".{end}")).collect::<Vec<_>>().join(", ")
            ),
        };
        let image = self.image.ok_or_else(|| format!("it has no .jpg, .jpeg or .png{}", others()))?;
        let bytes = image.content.ok_or(format!("its image has more than {RECORD_BYTES_MAX} bytes"))?;
        let text = |file: TarFile, end: &str| {
            let refused = || format!("its {end} has more than {LABEL_BYTES_MAX} bytes");
            let text = |bytes: Vec<u8>| {
                let text = String::from_utf8_lossy(&bytes);
                text.strip_prefix(MARK).unwrap_or(&text).to_owned()
            };
            file.content.map(text).ok_or_else(refused)
        };
        let class = self.class.map(|file| text(file, ".cls"));
        let json = self.json.map(|file| text(file, ".json"));
        let class = match field.class(class, json, seen)? {
            Some(class) => class,
            None => return Err(format!("it has neither .cls nor .json{}", others())),
        };
        Ok(RawImage { place, class, content: Pixels::Encoded(bytes) })
    }
}

/// Whether two files have different names and the same content, such as `a.jpg` and `a.jpeg`.
fn say_the_same(one: &TarFile, other: &TarFile) -> bool {
    one.name != other.name && one.content.is_some() && one.content == other.content
}

/// Whether it is a resource fork: `._a.jpg`, which macOS packs beside `a.jpg`.
fn is_resource_fork(name: &str) -> bool {
    name.rsplit('/').next().is_some_and(|name| name.starts_with("._"))
}

/// Whether a key begins with two underscores, as those of `webdataset` that are no attribute of a sample.
fn is_about_archive(key: &str) -> bool {
    key.rsplit('/').next().is_some_and(|name| name.starts_with("__"))
}

fn bytes_max(name: &str) -> u64 {
    if is_resource_fork(name) || has_no_key(name) {
        return 0;
    }
    let is_label = ["cls", "json"].iter().any(|end| split(name).1.eq_ignore_ascii_case(end));
    if is_label { LABEL_BYTES_MAX } else { RECORD_BYTES_MAX }
}

/// Whether `webdataset` finds no key in a name, and passes the file over: nothing is before its first point but a folder, whose name has a point, too. It
/// takes the names of other folders for keys.
fn has_no_key(name: &str) -> bool {
    let (folder, file) = name.rsplit_once('/').map_or((None, name), |(folder, file)| (Some(folder), file));
    let has_point = |folder: &str| folder.rsplit('/').next().is_some_and(|folder| folder.contains('.'));
    file.starts_with('.') && folder.is_none_or(has_point)
}

/// Splits a name into its key and the extension, at the first point of the file name.
fn split(name: &str) -> (&str, &str) {
    let folder = name.rfind('/').map_or(0, |at| at + 1);
    match name[folder..].find('.') {
        Some(at) => (&name[..folder + at], &name[folder + at + 1..]),
        None => (name, ""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compared with the `base_plus_ext` of webdataset 1.0.
    #[test]
    fn a_name_has_no_key_where_webdataset_finds_none() {
        for name in [".png", ".cls", "./.png", "a/b.c/.png", "..png", ".a.png", "b.c/..png"] {
            assert!(has_no_key(name), "{name}");
        }
        for (name, key) in [
            ("a/.png", "a/"),
            ("a.b/c/.cls", "a.b/c/"),
            ("a/..png", "a/"),
            ("/.png", "/"),
            ("a.png", "a"),
            ("./a.x.png", "./a"),
        ] {
            assert!(!has_no_key(name) && split(name).0 == key, "{name}");
        }
    }
}
