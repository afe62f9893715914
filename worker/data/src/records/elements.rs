//! A JSON array as lines: one for each element.

use std::io::{self, Read};

/// Reads a JSON array (RFC 8259) and gives its elements, each on a line. Line breaks between tokens become blanks; in strings there are none. Text behind the
/// array becomes one more line.
pub(super) struct Elements<R> {
    inner: R,
    depth: u64,
    is_quoted: bool,
    is_escaped: bool,
    has_ended: bool,
}

impl<R: Read> Elements<R> {
    /// Reads from behind the bracket that opens the array.
    pub(super) fn new(inner: R) -> Self {
        Self { inner, depth: 0, is_quoted: false, is_escaped: false, has_ended: false }
    }

    fn line_of(&mut self, byte: u8) -> u8 {
        if self.is_quoted {
            match byte {
                _ if self.is_escaped => self.is_escaped = false,
                b'\\' => self.is_escaped = true,
                b'"' => self.is_quoted = false,
                _ => {}
            }
            return byte;
        }
        match byte {
            b'"' => self.is_quoted = true,
            b'[' | b'{' => self.depth += 1,
            b']' if self.depth == 0 && !self.has_ended => {
                self.has_ended = true;
                return b'\n';
            }
            b']' | b'}' => self.depth = self.depth.saturating_sub(1),
            b',' if self.depth == 0 => return b'\n',
            b'\n' | b'\r' => return b' ',
            _ => {}
        }
        byte
    }
}

impl<R: Read> Read for Elements<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(into)?;
        if read == 0 && !into.is_empty() && !self.has_ended {
            let reason = "the array is not closed, as if the file was cut off: fetch it again";
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, reason));
        }
        into[..read].iter_mut().for_each(|byte| *byte = self.line_of(*byte));
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In reads of any size.
    #[test]
    fn elements_become_lines() {
        for (array, lines) in [
            ("]", "\n"),
            (
                " {\"a\": [1, 2],\n \"b\": \"],\\\"}\"},\n{} ] \n",
                " {\"a\": [1, 2],  \"b\": \"],\\\"}\"}\n {} \n  ",
            ),
            ("\"a,\\\\\",[[]]]x", "\"a,\\\\\"\n[[]]\nx"),
        ] {
            for size in [1, 2, 3, 1000] {
                let (mut reader, mut out) = (Elements::new(array.as_bytes()), Vec::new());
                let mut part = vec![0; size];
                loop {
                    match reader.read(&mut part).unwrap() {
                        0 => break,
                        read => out.extend_from_slice(&part[..read]),
                    }
                }
                assert_eq!(String::from_utf8(out).unwrap(), lines);
            }
        }
        assert!(Elements::new(&b"{\"a\": ["[..]).read_to_end(&mut Vec::new()).is_err());
    }
}
