//! Files of a tar archive in order: POSIX ustar, with the long names of pax and GNU tar.

use std::io::{self, Read};

/// Bytes of a header; contents are padded to a multiple of it.
const BLOCK_BYTES: usize = 512;
/// Upper bound in bytes of an extension entry, which describes the next entry: systems allow names of 4,000 bytes and attributes of some 10,000.
const SAID_BYTES_MAX: u64 = 1 << 20;

/// An archive being read.
pub(super) struct Tar<R> {
    reader: R,
    /// Whether the last block read marks the end; otherwise more must follow.
    has_end: bool,
    /// Consecutive blocks of zeros read last.
    zeros: u64,
    /// Whether a file was read, so that an end may follow.
    has_file: bool,
    /// Whether it ended without its end mark.
    is_open: bool,
}

/// Upper bound of zero blocks after an archive: 64 KiB. Tools pad to 10 KiB by default; an incomplete download in a preallocated file has more.
const ZEROS_MAX: u64 = 1 << 7;

const SPARSE: &str =
    "a file is stored without its zeros (`tar -S`), which is not read: pack it anew without -S";

/// A file in it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TarFile {
    pub(super) name: String,
    /// `None`: longer than the limit, and skipped.
    pub(super) content: Option<Vec<u8>>,
}

impl<R: Read> Tar<R> {
    pub(super) fn new(reader: R) -> Self {
        Self { reader, has_end: false, zeros: 0, has_file: false, is_open: false }
    }

    /// Returns the next file, `None` at the end. Contents above `bytes_max` for its name are not read into memory.
    pub(super) fn next_file(&mut self, bytes_max: impl Fn(&str) -> u64) -> io::Result<Option<TarFile>> {
        let mut long_name = None;
        loop {
            let Some(header) = self.header()? else {
                // An extension entry without a file after it.
                return if long_name.is_none() { Ok(None) } else { Err(io::ErrorKind::UnexpectedEof.into()) };
            };
            let size = size_of(&header)?;
            match header[156] {
                // The name of the next entry, in GNU tar's form or among pax's records.
                b'L' => long_name = Some(text(until_zero(&self.said(size)?))?),
                b'x' => long_name = path_of(&self.said(size)?)?.or(long_name),
                0 | b'0' | b'7' => {
                    let name = long_name.take().unwrap_or_else(|| name_of(&header));
                    let content = match size <= bytes_max(&name) {
                        true => Some(self.content(size)?),
                        false => self.pass(size).map(|()| None)?,
                    };
                    self.has_file = true;
                    return Ok(Some(TarFile { name, content }));
                }
                // The content of a link is that of another file, which may be far away or outside the archive.
                b'1' | b'2' => {
                    let name = long_name.take().unwrap_or_else(|| name_of(&header));
                    return Err(damaged(&format!(
                        "{name} is a link: pack it anew with what links lead to (`tar --dereference --hard-dereference`)"
                    )));
                }
                b'S' => return Err(damaged(SPARSE)),
                // Folders, and entries about the archive as a whole.
                _ => {
                    long_name = None;
                    self.pass(size)?;
                }
            }
        }
    }

    /// Whether it ended after a whole file, without the zeros that mark the end.
    pub(super) fn is_open(&self) -> bool {
        self.is_open
    }

    /// The same, and clears the flag.
    pub(super) fn take_open(&mut self) -> bool {
        std::mem::take(&mut self.is_open)
    }

    /// Reads a header; `None` at the end, which is blocks of zeros or the end of input after a whole file.
    ///
    /// Readers stop at the first block of zeros (Python's `tarfile`, and so `webdataset`; GNU tar). Further content is refused.
    fn header(&mut self) -> io::Result<Option<[u8; BLOCK_BYTES]>> {
        let mut header = [0; BLOCK_BYTES];
        loop {
            let first = self.reader.read(&mut header)?;
            if first == 0 {
                if !self.has_end && !self.has_file {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                self.is_open |= !self.has_end;
                self.has_end = true;
                return Ok(None);
            }
            self.reader.read_exact(&mut header[first..])?;
            self.has_end = header.iter().all(|&byte| byte == 0);
            if !self.has_end {
                break;
            }
            self.zeros += 1;
            if self.zeros > ZEROS_MAX {
                return Err(damaged(
                    "more than 64 KiB of zeros follow its files, as in an incomplete download: fetch it again, or pack it anew (`tar` with its usual blocking factor)",
                ));
            }
        }
        let is_header = is_header(&header);
        if self.zeros > 0 && (self.has_file || is_header) {
            return Err(damaged(&behind_end(is_header.then(|| name_of(&header)))));
        }
        if !is_header {
            return Err(damaged("an entry's header is damaged, or it is no tar archive"));
        }
        Ok(Some(header))
    }

    fn said(&mut self, size: u64) -> io::Result<Vec<u8>> {
        if size > SAID_BYTES_MAX {
            return Err(damaged(
                "it says more than a MiB of a file: pack it anew without extended attributes",
            ));
        }
        self.content(size)
    }

    fn content(&mut self, size: u64) -> io::Result<Vec<u8>> {
        let mut content = Vec::new();
        if self.reader.by_ref().take(size).read_to_end(&mut content)? as u64 != size {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.pass_exactly(padding(size))?;
        Ok(content)
    }

    fn pass(&mut self, size: u64) -> io::Result<()> {
        self.pass_exactly(size)?;
        self.pass_exactly(padding(size))
    }

    fn pass_exactly(&mut self, bytes: u64) -> io::Result<()> {
        let passed = io::copy(&mut self.reader.by_ref().take(bytes), &mut io::sink())?;
        if passed == bytes { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
    }
}

/// Whether the checksum fits, which adds all bytes, with blanks in its own field.
fn is_header(header: &[u8; BLOCK_BYTES]) -> bool {
    let sum: u64 = header.iter().map(|&byte| u64::from(byte)).sum();
    let own: u64 = header[148..156].iter().map(|&byte| u64::from(byte)).sum();
    octal(&header[148..156]) == Some(sum - own + 8 * u64::from(b' '))
}

/// Returns the message for content after an archive's end, with the name of its first file.
fn behind_end(name: Option<String>) -> String {
    let more = name.map_or_else(|| "other content follows".to_owned(), |name| format!("{name} follows"));
    format!(
        "its end is marked there, and {more}: a longer archive that was overwritten, or several joined with `cat`. Others stop at the mark. Pack it anew, with what `tar -xf` unpacks (up to the mark) or `tar -xif` (all), or join archives with `tar -Af FIRST NEXT`"
    )
}

fn padding(size: u64) -> u64 {
    let block = BLOCK_BYTES as u64;
    (block - size % block) % block
}

fn size_of(header: &[u8; BLOCK_BYTES]) -> io::Result<u64> {
    // GNU tar writes sizes above 8 GiB in binary, with the first bit set.
    octal(&header[124..136]).ok_or_else(|| damaged("an entry has no size that can be read"))
}

fn octal(field: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(field).ok()?;
    u64::from_str_radix(text.trim_matches(['\0', ' ']), 8).ok()
}

fn until_zero(bytes: &[u8]) -> &[u8] {
    &bytes[..bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len())]
}

fn name_of(header: &[u8; BLOCK_BYTES]) -> String {
    let field = |bytes: &[u8]| String::from_utf8_lossy(until_zero(bytes)).into_owned();
    let (name, prefix) = (field(&header[..100]), field(&header[345..500]));
    let has_prefix = &header[257..263] == b"ustar\0" && !prefix.is_empty();
    if has_prefix { format!("{prefix}/{name}") } else { name }
}

fn text(bytes: &[u8]) -> io::Result<String> {
    let is_no_text = |_| damaged("a file's long name is not UTF-8: pack it anew under another name");
    std::str::from_utf8(bytes).map(str::to_owned).map_err(is_no_text)
}

/// Returns the name in pax records, each with a length, a key and a value: `30 path=some/name\n`. Values of other keys may be any bytes.
fn path_of(records: &[u8]) -> io::Result<Option<String>> {
    let (mut rest, mut path) = (records, None);
    while !rest.is_empty() {
        let (record, behind) =
            first_record(rest).ok_or_else(|| damaged("what pax says of a file is damaged"))?;
        if let Some(name) = record.strip_prefix(b"path=") {
            path = Some(text(name)?);
        }
        if record.starts_with(b"GNU.sparse.") {
            return Err(damaged(SPARSE));
        }
        if record.starts_with(b"size=") {
            return Err(damaged(
                "a file's size is told in pax's own way, which is not read: pack it anew in GNU's format",
            ));
        }
        rest = behind;
    }
    Ok(path)
}

/// Splits the first record, as key and value, from the rest.
fn first_record(records: &[u8]) -> Option<(&[u8], &[u8])> {
    let blank = records.iter().position(|&byte| byte == b' ')?;
    let length: usize = std::str::from_utf8(&records[..blank]).ok()?.parse().ok()?;
    let (record, behind) = records.split_at_checked(length)?;
    Some((record.get(blank + 1..)?.strip_suffix(b"\n")?, behind))
}

fn damaged(reason: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn archive(names: &[&str]) -> Vec<u8> {
        let mut builder = tar::Builder::new(Vec::new());
        for name in names {
            let mut header = tar::Header::new_gnu();
            header.set_size(name.len() as u64);
            header.set_mode(0o644);
            builder.append_data(&mut header, name, name.as_bytes()).unwrap();
        }
        builder.into_inner().unwrap()
    }

    fn read(bytes: &[u8]) -> io::Result<Vec<TarFile>> {
        let mut tar = Tar::new(bytes);
        std::iter::from_fn(|| tar.next_file(|_| 1 << 20).transpose()).collect()
    }

    #[test]
    fn zeros_without_end_are_no_end() {
        let whole = archive(&["a", "b"]);
        let files =
            whole.iter().rposition(|byte| *byte != 0).unwrap() / BLOCK_BYTES * BLOCK_BYTES + BLOCK_BYTES;
        let with_zeros = |bytes: usize| [&whole[..files], &vec![0; bytes]].concat();
        for bytes in [1024, 10_240, 65_536] {
            assert_eq!(read(&with_zeros(bytes)).map(|files| files.len()).ok(), Some(2), "{bytes}");
        }
        let error = read(&with_zeros(71_680)).unwrap_err().to_string();
        assert!(error.contains("64 KiB of zeros"), "{error}");
    }

    #[test]
    fn files_come_as_another_writer_packed_them_with_long_names_too() {
        let long = "folder/".repeat(40) + "name";
        let full = "a".repeat(512);
        let names = ["a", long.as_str(), "b/c.jpg", full.as_str()];
        let files = read(&archive(&names)).unwrap();
        let found: Vec<_> = files.iter().map(|file| (file.name.as_str(), file.content.as_deref())).collect();
        assert_eq!(found, names.map(|name| (name, Some(name.as_bytes()))));
    }

    /// Extended attributes, as tar programs pack them.
    #[test]
    fn attributes_of_any_bytes_are_passed_over_and_what_would_be_read_wrongly_is_refused() {
        let record = |content: &[u8]| {
            // The length counts itself, and has two digits here.
            [format!("{} ", content.len() + 4).as_bytes(), content, b"\n"].concat()
        };
        let packed = |records: &[u8]| {
            let mut builder = tar::Builder::new(Vec::new());
            let mut header = tar::Header::new_ustar();
            header.set_entry_type(tar::EntryType::XHeader);
            header.set_size(records.len() as u64);
            builder.append_data(&mut header, "said", records).unwrap();
            header.set_entry_type(tar::EntryType::Regular);
            header.set_size(1);
            builder.append_data(&mut header, "short", b"a".as_slice()).unwrap();
            builder.into_inner().unwrap()
        };
        let attribute = record(b"SCHILY.xattr.some=\xff\0\x01\n");
        let named = [attribute.clone(), record(b"path=a/long one"), attribute.clone()].concat();
        let name = |bytes: &[u8]| read(bytes).unwrap()[0].name.clone();
        assert_eq!((name(&packed(&named)), name(&packed(&attribute))), ("a/long one".into(), "short".into()));
        let refused = |records: &[u8]| read(&packed(records)).unwrap_err().to_string();
        assert!(refused(&record(b"path=name \xff in no text")).contains("not UTF-8"));
        assert!(refused(&record(b"size=123456789")).contains("GNU's format"));
        for sparse in [b"GNU.sparse.major=1".as_slice(), b"GNU.sparse.size=900000"] {
            assert!(refused(&record(sparse)).contains("without -S"));
        }
        assert!(refused(b"99 path=a\n").contains("is damaged"));
        assert!(refused(&vec![b' '; 2 << 20]).contains("without extended attributes"));
    }

    /// GNU tar packs a file with two names as a file and a hard link to it.
    #[test]
    fn a_link_is_named_and_not_left_out() {
        for kind in [tar::EntryType::Link, tar::EntryType::Symlink] {
            let mut builder = tar::Builder::new(Vec::new());
            let mut header = tar::Header::new_gnu();
            header.set_size(1);
            header.set_mode(0o644);
            builder.append_data(&mut header, "a.png", b"a".as_slice()).unwrap();
            header.set_entry_type(kind);
            header.set_size(0);
            builder.append_link(&mut header, "b.png", "a.png").unwrap();
            let refused = read(&builder.into_inner().unwrap()).unwrap_err().to_string();
            assert!(refused.contains("b.png is a link: pack it anew"), "{kind:?}: {refused}");
        }
    }

    /// Python's `tarfile` and GNU tar read the first archive only.
    #[test]
    fn what_stands_behind_the_end_is_refused_by_name() {
        let (one, two, many) = (archive(&["a"]), archive(&["b"]), archive(&["c", "d", "e", "f"]));
        let zeros = [0; BLOCK_BYTES];
        let overwritten = [one.as_slice(), &many[one.len()..]].concat();
        // The end of the short one is within a file's content of the long one.
        let long = archive(&["x".repeat(90).as_str(), &"y".repeat(90)]);
        let within = [&one[..one.len()], &long[100..]].concat();
        for (bytes, words) in [
            ([one.as_slice(), &two].concat(), "and b follows"),
            ([one.as_slice(), &two, &many].concat(), "and b follows"),
            ([&one[..1024], &zeros, &two].concat(), "and b follows"),
            ([&one[..1024], &zeros, &zeros, &zeros, &many].concat(), "and c follows"),
            ([&zeros, one.as_slice()].concat(), "and a follows"),
            (overwritten, "follows"),
            (within, "and other content follows"),
            ([&one[..1536], b"and a line of a log\n".as_slice(), &[b' '; 492]].concat(), "other content"),
            ([one.as_slice(), &[b'-'; 512]].concat(), "other content"),
            ([&one[..1024], &zeros, &[b'-'; 512]].concat(), "other content"),
        ] {
            let refused = read(&bytes).unwrap_err().to_string();
            assert!(refused.contains(words) && refused.contains("`tar -xif`"), "{words}: {refused}");
        }
    }

    #[test]
    fn what_is_too_long_is_passed_over_and_what_follows_is_read() {
        let bytes = archive(&["a long one", "b"]);
        let mut tar = Tar::new(bytes.as_slice());
        let first = tar.next_file(|_| 5).unwrap().unwrap();
        assert_eq!(first, TarFile { name: "a long one".to_owned(), content: None });
        assert_eq!(tar.next_file(|_| 5).unwrap().unwrap().content, Some(b"b".to_vec()));
        assert_eq!(tar.next_file(|_| 5).unwrap(), None);
    }

    /// Archives left unclosed by their writer.
    #[test]
    fn whole_files_without_an_end_behind_them_are_read_and_that_is_known() {
        let long = "folder/".repeat(40) + "name";
        for (names, files) in [
            (&["a"][..], 1),
            (&["a", "b"], 2),
            (&["a", &long], 2),
            (&[&long], 1),
            (&["a", "b/c.jpg", "d"], 3),
        ] {
            let bytes = archive(names);
            let last =
                bytes.iter().rposition(|byte| *byte != 0).unwrap() / BLOCK_BYTES * BLOCK_BYTES + BLOCK_BYTES;
            for (end, is_open) in
                [(last, true), (last + 512, false), (last + 1024, false), (bytes.len(), false)]
            {
                let mut tar = Tar::new(&bytes[..end]);
                let read: Vec<TarFile> = std::iter::from_fn(|| tar.next_file(|_| 1 << 20).unwrap()).collect();
                assert_eq!((read.len(), tar.take_open()), (files, is_open), "{names:?}, {end}");
            }
        }
    }

    #[test]
    fn damage_and_cuts_are_errors_and_never_a_panic() {
        let bytes = archive(&["a", "b"]);
        for at in [0, 1, 511, 512, 513, 600, 1023, 1025, 1536, 2047] {
            assert!(read(&bytes[..at]).is_err(), "cut to {at} bytes");
        }
        let long = "folder/".repeat(40) + "name";
        let bytes_of_long = archive(&["a", &long]);
        for at in [1536, 2048, 2560] {
            assert!(read(&bytes_of_long[..at]).is_err(), "cut to {at} bytes");
        }
        for at in 0..512 {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            assert!(read(&damaged).is_err(), "byte {at}");
        }
    }
}
