//! Images and their classes in a WebDataset tar archive: `key.jpg` and `key.cls`, or `key.json`, side by side.

use std::io::{self, Read};
use std::path::PathBuf;

use serde_json::Value;

use super::input::{Input, MARK, Position};
use super::json_lines::{Object, TOO_DEEP, is_too_deep, parse};
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

/// Characters of a text in place of a class shown in a message.
const TEXT_CHARS_MAX: usize = 40;

/// Files of a sample named in a message.
const OTHERS_MAX: usize = 8;

/// The samples of an archive.
pub(super) struct WebDataset {
    path: PathBuf,
    position: Position,
    tar: Tar<Box<dyn Read>>,
    /// For JSON: the field of the class, and whether the configuration sets it.
    field: String,
    is_said: bool,
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
        let (tar, field, is_said) = (Tar::new(reader), recipe.field.clone(), recipe.has_field);
        let (torn, seen, notes) = (Torn::default(), Seen::default(), Notes::default());
        Self { path, position, tar, field, is_said, next: None, last: None, forks: None, torn, seen, notes }
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
            match (parts.image((&self.field, self.is_said), place.clone(), &mut self.seen), part) {
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

    fn image(
        self,
        (field, is_said): (&str, bool),
        place: String,
        seen: &mut Seen,
    ) -> Result<RawImage, String> {
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
        let class = match (self.class, self.json) {
            (Some(class), json) => {
                let json = json.and_then(|json| text(json, ".json").ok());
                let class = || text(class, ".cls");
                match json.as_deref().filter(|json| is_said && has_number(json, field)) {
                    Some(json) => class_in(json, field)?,
                    None => class_of(&class()?, json.as_deref(), field, seen)?,
                }
            }
            (None, Some(json)) => class_in(&text(json, ".json")?, field)?,
            (None, None) => return Err(format!("it has neither .cls nor .json{}", others())),
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

/// Returns the class of a `.cls`, which a `.json` beside it must not contradict.
fn class_of(class: &str, json: Option<&str>, field: &str, seen: &mut Seen) -> Result<u32, String> {
    let refused = || format!("its .cls is no number of a class: {:.20}", class.trim());
    let class = class.trim().parse().map_err(|_| refused())?;
    json.map_or(Ok(()), |json| check_same(class, json, field, seen))?;
    Ok(class)
}

/// Whether JSON has a number in a field; if the configuration names the field, the number is the class.
fn has_number(json: &str, field: &str) -> bool {
    let value = parse(json.as_bytes()).ok().and_then(|json: Object| json.values.get(field).cloned());
    matches!(value, Some(Value::Number(_)))
}

fn class_in(json: &str, field: &str) -> Result<u32, String> {
    let value = match parse(json.as_bytes()) {
        Ok(json) => value_of(json, field)?,
        Err(error) if error.is_data() => None,
        Err(error) if is_too_deep(&error) => return Err(format!("its .json {TOO_DEEP}")),
        Err(error) => return Err(format!("its .json is none: {error}")),
    };
    let class = value.as_ref().and_then(Value::as_u64).and_then(|class| class.try_into().ok());
    class.ok_or(format!("its .json has no number of a class in `{field}`, and there is no .cls"))
}

/// Refuses JSON whose field contradicts the class: another number, or a text that stood beside another class in an earlier sample. JSON without
/// the field is accepted.
fn check_same(class: u32, json: &str, field: &str, seen: &mut Seen) -> Result<(), String> {
    let Ok(json) = parse(json.as_bytes()) else { return Ok(()) };
    let (value, before) = match value_of(json, field)? {
        Some(Value::Number(other)) if other.as_f64() != Some(class.into()) => {
            (other.to_string(), String::new())
        }
        Some(Value::String(text)) if !text.trim().is_empty() => match seen.handle_class(&text, class) {
            Some(first) => {
                let text: String = text.chars().take(TEXT_CHARS_MAX).collect();
                (format!("{text:?}"), format!(", which stood beside class {first} further ahead"))
            }
            None => return Ok(()),
        },
        _ => return Ok(()),
    };
    Err(format!(
        "its .cls says class {class}, and its .json has {value} in `{field}`{before}: mend one of the two, or leave it out, or say with `field` which counts: the name of a field of .json with a number, here or in another one, or \"cls\" for the .cls"
    ))
}

/// Returns the value of a field, which may occur only once.
fn value_of(mut json: Object, field: &str) -> Result<Option<Value>, String> {
    match json.twice.contains(field) {
        true => Err(format!("its .json has two fields `{field}`")),
        false => Ok(json.values.remove(field)),
    }
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
