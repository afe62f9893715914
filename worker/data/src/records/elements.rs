//! A JSON array as lines: one for each element.

use std::error::Error;
use std::fmt;
use std::io::{self, Read};

/// A place from which on nothing is an element of the array.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NoElement {
    /// Line of the file, from 1.
    pub(super) line: u64,
    pub(super) what: Broken,
}

/// What stands there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Broken {
    /// Text behind the bracket that closes the array.
    Behind,
    /// An element behind another one, without a comma.
    NoComma,
    /// A bracket that closes another one than the last that opened.
    Bracket,
    /// A line end in a string.
    LineInText,
    /// The end of the file.
    End,
}

impl fmt::Display for NoElement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.what {
            Broken::Behind => "more follows behind the end of the array",
            Broken::NoComma => "a comma is missing between two elements of the array",
            Broken::Bracket => "a bracket is missing before this one",
            Broken::LineInText => "a line ends within a text: its closing quote is missing",
            Broken::End => "the array is not closed, as if the file was cut off: fetch it again",
        })
    }
}

impl Error for NoElement {}

/// What stands before a byte outside all elements.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Before {
    Comma,
    /// A string, object or array.
    Whole,
    /// A part of a number or a word.
    Part,
}

/// Reads a JSON array (RFC 8259) and gives its elements, each on a line. Line breaks between tokens become blanks. Its errors have a [`NoElement`] as their
/// cause: elements from there on cannot be told apart.
pub(super) struct Elements<R> {
    inner: R,
    /// Closing brackets of those that are open.
    open: Vec<u8>,
    before: Before,
    is_quoted: bool,
    is_escaped: bool,
    has_ended: bool,
    line: u64,
    was_return: bool,
    broken: Option<NoElement>,
}

impl<R: Read> Elements<R> {
    /// Reads from behind the bracket that opens the array, in this line of the file.
    pub(super) fn new(inner: R, line: u64) -> Self {
        Self {
            inner,
            open: Vec::new(),
            before: Before::Comma,
            is_quoted: false,
            is_escaped: false,
            has_ended: false,
            line,
            was_return: false,
            broken: None,
        }
    }

    fn line_of(&mut self, byte: u8) -> Result<u8, Broken> {
        if self.is_quoted {
            match byte {
                b'\n' | b'\r' => return Err(Broken::LineInText),
                _ if self.is_escaped => self.is_escaped = false,
                b'\\' => self.is_escaped = true,
                b'"' => self.is_quoted = false,
                _ => {}
            }
            return Ok(byte);
        }
        if byte.is_ascii_whitespace() {
            return Ok(self.blank(byte));
        }
        if self.has_ended {
            return Err(Broken::Behind);
        }
        match (byte, self.open.is_empty()) {
            (b',', true) => {
                self.before = Before::Comma;
                return Ok(b'\n');
            }
            (b']', true) => {
                self.has_ended = true;
                return Ok(b'\n');
            }
            (b'"' | b'[' | b'{', true) if self.before != Before::Comma => return Err(Broken::NoComma),
            (b'"' | b'[' | b'{', true) => self.before = Before::Whole,
            (b'}', true) => return Err(Broken::Bracket),
            (_, true) if self.before == Before::Whole => return Err(Broken::NoComma),
            (_, true) => self.before = Before::Part,
            (_, false) => {}
        }
        match byte {
            b'"' => self.is_quoted = true,
            b'[' => self.open.push(b']'),
            b'{' => self.open.push(b'}'),
            b']' | b'}' if self.open.pop() != Some(byte) => return Err(Broken::Bracket),
            _ => {}
        }
        Ok(byte)
    }

    /// Counts line ends: LF, CR LF or CR.
    fn blank(&mut self, byte: u8) -> u8 {
        let follows = std::mem::replace(&mut self.was_return, byte == b'\r');
        self.line += u64::from(byte == b'\r' || byte == b'\n' && !follows);
        if matches!(byte, b'\n' | b'\r') { b' ' } else { byte }
    }
}

impl<R: Read> Read for Elements<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = match self.broken {
            Some(_) => 0,
            None => self.inner.read(into)?,
        };
        if read == 0 && !into.is_empty() && !self.has_ended {
            self.broken.get_or_insert(NoElement { line: self.line, what: Broken::End });
        }
        for (at, byte) in into[..read].iter_mut().enumerate() {
            match self.line_of(*byte) {
                Ok(written) => *byte = written,
                Err(what) => {
                    self.broken = Some(NoElement { line: self.line, what });
                    // First come the elements before it.
                    if at > 0 {
                        return Ok(at);
                    }
                    break;
                }
            }
        }
        match &self.broken {
            Some(broken) => Err(io::Error::new(io::ErrorKind::InvalidData, broken.clone())),
            None => Ok(read),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the lines before the first error, in reads of a size.
    fn read(array: &str, size: usize) -> (String, Option<NoElement>) {
        let (mut reader, mut out, mut part) = (Elements::new(array.as_bytes(), 1), Vec::new(), vec![0; size]);
        let error = loop {
            match reader.read(&mut part) {
                Ok(0) => break None,
                Ok(read) => out.extend_from_slice(&part[..read]),
                Err(error) => break error.downcast::<NoElement>().ok(),
            }
        };
        (String::from_utf8(out).unwrap(), error)
    }

    #[test]
    fn elements_become_lines() {
        for (array, lines) in [
            ("]", "\n"),
            (
                " {\"a\": [1, 2],\n \"b\": \"],\\\"}\"},\n{} ] \n",
                " {\"a\": [1, 2],  \"b\": \"],\\\"}\"}\n {} \n  ",
            ),
            ("\"a,\\\\\",[[]],12 ,null]", "\"a,\\\\\"\n[[]]\n12 \nnull\n"),
        ] {
            for size in [1, 2, 3, 1000] {
                assert_eq!(read(array, size), (lines.to_owned(), None));
            }
        }
    }

    #[test]
    fn a_place_from_which_on_elements_are_unknown_is_told() {
        for (array, lines, line, what) in [
            ("{}]\n[{}]", "{}\n ", 2, Broken::Behind),
            ("{}]\r\n\r\n{}\n", "{}\n    ", 3, Broken::Behind),
            ("{\"a\":1}]x", "{\"a\":1}\n", 1, Broken::Behind),
            ("{}\n{},\n{}]", "{} ", 2, Broken::NoComma),
            ("\"a\" \"b\"]", "\"a\" ", 1, Broken::NoComma),
            ("[] 1]", "[] ", 1, Broken::NoComma),
            ("1 {}]", "1 ", 1, Broken::NoComma),
            ("{\"a\":[1},\n{}]", "{\"a\":[1", 1, Broken::Bracket),
            ("{}},{}]", "{}", 1, Broken::Bracket),
            ("{\"a\":\"b},\n{\"a\":\"c\"}]", "{\"a\":\"b},", 1, Broken::LineInText),
            ("{},\n{\"a\": [", "{}\n {\"a\": [", 2, Broken::End),
        ] {
            for size in [1, 2, 3, 1000] {
                assert_eq!(read(array, size), (lines.to_owned(), Some(NoElement { line, what })), "{array}");
            }
        }
    }
}
