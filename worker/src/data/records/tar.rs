//! Files of a tar archive, one after the other: POSIX ustar, with the long names of pax and of GNU tar.

use std::io::{self, Read};

/// Bytes of a header, and what contents are filled up to a multiple of.
const BLOCK_BYTES: usize = 512;
/// Bytes of a long name's entry, at most: systems allow names of four thousand.
const NAME_BYTES_MAX: u64 = 1 << 16;

/// An archive that is being read.
pub(super) struct Tar<R> {
    reader: R,
    /// Whether what was read last says that nothing follows: else more is to come.
    has_end: bool,
}

/// A file in it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TarFile {
    pub(super) name: String,
    /// None: it is longer than was wanted, and was passed over.
    pub(super) content: Option<Vec<u8>>,
}

impl<R: Read> Tar<R> {
    pub(super) fn new(reader: R) -> Self {
        Self { reader, has_end: false }
    }

    /// The next file, none at the end; contents of more than `bytes_max` are not taken into memory.
    pub(super) fn next_file(&mut self, bytes_max: u64) -> io::Result<Option<TarFile>> {
        let mut long_name = None;
        loop {
            let Some(header) = self.header()? else { return Ok(None) };
            let size = size_of(&header)?;
            match header[156] {
                // A name for the entry that follows: GNU tar's, and pax's among other things.
                b'L' => long_name = Some(self.text(size)?.trim_end_matches('\0').to_owned()),
                b'x' => long_name = path_of(&self.text(size)?).or(long_name),
                0 | b'0' | b'7' => {
                    let name = long_name.take().unwrap_or_else(|| name_of(&header));
                    let content = match size <= bytes_max {
                        true => Some(self.content(size)?),
                        false => self.pass(size).map(|()| None)?,
                    };
                    return Ok(Some(TarFile { name, content }));
                }
                // Folders, links, and what is said of the archive as a whole.
                _ => {
                    long_name = None;
                    self.pass(size)?;
                }
            }
        }
    }

    /// None at the end, which is blocks of zeros. Behind these there may be another archive.
    fn header(&mut self) -> io::Result<Option<[u8; BLOCK_BYTES]>> {
        let mut header = [0; BLOCK_BYTES];
        loop {
            let first = self.reader.read(&mut header)?;
            if first == 0 {
                return if self.has_end { Ok(None) } else { Err(io::ErrorKind::UnexpectedEof.into()) };
            }
            self.reader.read_exact(&mut header[first..])?;
            self.has_end = header.iter().all(|&byte| byte == 0);
            if !self.has_end {
                break;
            }
        }
        // The sum of all bytes, of its own place as if that were blank.
        let sum: u64 = header.iter().map(|&byte| u64::from(byte)).sum();
        let own: u64 = header[148..156].iter().map(|&byte| u64::from(byte)).sum();
        if octal(&header[148..156]) != Some(sum - own + 8 * u64::from(b' ')) {
            return Err(damaged("an entry's header is damaged, or it is no tar archive"));
        }
        Ok(Some(header))
    }

    fn text(&mut self, size: u64) -> io::Result<String> {
        if size > NAME_BYTES_MAX {
            return Err(damaged("an entry's long name is too long"));
        }
        String::from_utf8(self.content(size)?).map_err(|_| damaged("an entry's long name is not UTF-8"))
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

fn padding(size: u64) -> u64 {
    let block = BLOCK_BYTES as u64;
    (block - size % block) % block
}

fn size_of(header: &[u8; BLOCK_BYTES]) -> io::Result<u64> {
    // GNU tar writes sizes that eight gigabytes do not hold in binary, with the first bit set.
    octal(&header[124..136]).ok_or_else(|| damaged("an entry has no size that can be read"))
}

fn octal(field: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(field).ok()?;
    u64::from_str_radix(text.trim_matches(['\0', ' ']), 8).ok()
}

fn name_of(header: &[u8; BLOCK_BYTES]) -> String {
    let field = |bytes: &[u8]| {
        let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
        String::from_utf8_lossy(&bytes[..end]).into_owned()
    };
    let (name, prefix) = (field(&header[..100]), field(&header[345..500]));
    let has_prefix = &header[257..263] == b"ustar\0" && !prefix.is_empty();
    if has_prefix { format!("{prefix}/{name}") } else { name }
}

/// The name in pax's records, of which each is its length, a key and a value: `30 path=some/name\n`.
fn path_of(records: &str) -> Option<String> {
    let mut rest = records;
    while let Some((length, _)) = rest.split_once(' ') {
        let length: usize = length.parse().ok()?;
        let record = rest.get(..length)?;
        if let Some(path) = record.split_once(' ')?.1.strip_prefix("path=") {
            return Some(path.trim_end_matches('\n').to_owned());
        }
        rest = &rest[length..];
    }
    None
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
        std::iter::from_fn(|| tar.next_file(1 << 20).transpose()).collect()
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

    #[test]
    fn archives_may_be_put_one_behind_the_other() {
        let names: Vec<_> = read(&[archive(&["a"]), archive(&["b"])].concat()).unwrap();
        assert_eq!(names.iter().map(|file| file.name.as_str()).collect::<Vec<_>>(), ["a", "b"]);
    }

    #[test]
    fn what_is_too_long_is_passed_over_and_what_follows_is_read() {
        let bytes = archive(&["a long one", "b"]);
        let mut tar = Tar::new(bytes.as_slice());
        let first = tar.next_file(5).unwrap().unwrap();
        assert_eq!(first, TarFile { name: "a long one".to_owned(), content: None });
        assert_eq!(tar.next_file(5).unwrap().unwrap().content, Some(b"b".to_vec()));
        assert_eq!(tar.next_file(5).unwrap(), None);
    }

    #[test]
    fn damage_and_cuts_are_errors_and_never_a_panic() {
        let bytes = archive(&["a", "b"]);
        for at in [0, 1, 511, 512, 513, 600, 1023, 1024, 1025, 2048] {
            assert!(read(&bytes[..at]).is_err(), "cut to {at} bytes");
        }
        for at in 0..512 {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x10;
            assert!(read(&damaged).is_err(), "byte {at}");
        }
    }
}
