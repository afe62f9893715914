//! Rows of delimited text: their places, and faults of their quotes.

use std::collections::VecDeque;

use longhaul_common::config::Dialect;

/// Scans a delimited text in parallel with the library that splits it, and records the places of rows and faults that the library accepts silently: an
/// unclosed quote, and text after a closing quote. Either may merge many rows into one record.
#[derive(Debug)]
pub(super) struct Rows {
    dialect: Dialect,
    state: State,
    /// Bytes and line breaks so far.
    seen: u64,
    breaks: u64,
    was_return: bool,
    /// The last byte, and the one before it.
    last: u8,
    before: u8,
    current: Option<Row>,
    /// Index of the current value in the row, from 0.
    value: u32,
    /// Finished rows, as many as are read ahead.
    ended: VecDeque<Row>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Before the first character of a value.
    Begun,
    Unquoted,
    /// After an escape outside quotes.
    UnquotedEscape,
    Quoted,
    /// After an escape within quotes.
    Escaped,
    /// After a quote within quotes: it closes the value, or is the first of two.
    Closed,
}

/// A non-empty row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Row {
    /// Its lines, from 1 on.
    pub(super) first: u64,
    pub(super) last: u64,
    /// Whether a carriage return alone ends the line before it.
    pub(super) is_after_return: bool,
    /// Offset of its end in the text.
    end: u64,
    /// The first fault of its quotes, or an unclosed quote.
    pub(super) fault: Option<&'static str>,
    /// One bit per value with an escape outside quotes, which the library keeps.
    escaped: u128,
    /// One bit per value with an escape before a letter or a digit; the last for all beyond.
    letters: u128,
}

/// Number of values with a bit.
const VALUES_MAX: u32 = u128::BITS;
const ESCAPED_BREAK: &str = "an escape stands before a delimiter or a line's end outside quotes: write such values in quotes (with pandas `quoting=csv.QUOTE_ALL`)";
const ESCAPED_FAR: &str = "an escape stands outside quotes behind the 128th value: write such values in quotes (with pandas `quoting=csv.QUOTE_ALL`)";

const NEVER_CLOSED: &str =
    "a quote is opened in it and never closed; where quotes are text as any other, say quote = \"\"";
const TEXT_BEHIND: &str =
    "there is text behind a closing quote; where quotes are text as any other, say quote = \"\"";
/// Before a quote, in place of another quote.
const BACKSLASH: u8 = b'\\';
const TEXT_BEHIND_BACKSLASH: &str = "there is text behind a closing quote with a backslash before it; where that keeps a quote from closing, say escape = \"\\\\\"";

impl Row {
    /// Returns the number of bad records that it counts for: with faulty quotes, each of its lines may be a record.
    pub(super) fn counts_for(&self) -> u64 {
        if self.fault.is_some() { self.last - self.first + 1 } else { 1 }
    }

    /// Whether any value still has escapes.
    pub(super) fn has_escapes(&self) -> bool {
        self.escaped != 0
    }

    /// Whether a value has, or had, an escape before a letter or a digit.
    pub(super) fn has_letters(&self, value: usize) -> bool {
        self.letters >> value.min(VALUES_MAX as usize - 1) & 1 == 1
    }

    /// Whether a value still has escapes.
    pub(super) fn is_escaped(&self, value: usize) -> bool {
        value < VALUES_MAX as usize && self.escaped >> value & 1 == 1
    }
}

impl Rows {
    pub(super) fn new(dialect: Dialect) -> Self {
        let (state, ended) = (State::Begun, VecDeque::new());
        Self {
            dialect,
            state,
            seen: 0,
            breaks: 0,
            was_return: false,
            last: 0,
            before: 0,
            current: None,
            value: 0,
            ended,
        }
    }

    /// Scans more of the text; empty `bytes` mark its end.
    pub(super) fn see(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.step(*byte));
        if bytes.is_empty() {
            // The unclosed quote takes precedence over other faults: it extends the row to the end.
            if matches!(self.state, State::Quoted | State::Escaped)
                && let Some(row) = &mut self.current
            {
                row.fault = Some(NEVER_CLOSED);
            }
            self.end_row(self.seen);
        }
    }

    fn step(&mut self, byte: u8) {
        let is_within = matches!(self.state, State::Quoted | State::Escaped);
        let ends_row = !is_within && matches!(byte, b'\r' | b'\n');
        if self.state == State::UnquotedEscape && (ends_row || byte == self.dialect.delimiter) {
            self.fault(ESCAPED_BREAK);
        }
        if ends_row {
            self.end_row(self.seen + 1);
        } else {
            let line = self.breaks + 1;
            let begun = Row {
                first: line,
                last: line,
                is_after_return: self.was_return,
                end: 0,
                fault: None,
                escaped: 0,
                letters: 0,
            };
            let row = self.current.get_or_insert(begun);
            row.last = line;
            if matches!(self.state, State::Escaped | State::UnquotedEscape) && byte.is_ascii_alphanumeric() {
                row.letters |= 1 << self.value.min(VALUES_MAX - 1);
            }
        }
        self.state = self.after(byte, ends_row);
        self.seen += 1;
        // `\r\n` counts once.
        self.breaks += u64::from(byte == b'\r' || byte == b'\n' && !self.was_return);
        self.was_return = byte == b'\r';
        (self.before, self.last) = (self.last, byte);
    }

    fn after(&mut self, byte: u8, ends_row: bool) -> State {
        let Dialect { delimiter, quote, escape } = self.dialect;
        let ends = ends_row || byte == delimiter;
        let is_within = matches!(self.state, State::Quoted | State::Escaped);
        self.value += u32::from(byte == delimiter && !is_within);
        match self.state {
            State::Begun if Some(byte) == quote => State::Quoted,
            State::Begun | State::Unquoted | State::UnquotedEscape | State::Closed if ends => State::Begun,
            State::Begun | State::Unquoted if escape == Some(byte) => {
                self.note_escape();
                State::UnquotedEscape
            }
            State::Begun | State::Unquoted | State::UnquotedEscape => State::Unquoted,
            State::Quoted if escape.is_some() && Some(byte) == escape => State::Escaped,
            State::Quoted if Some(byte) == quote => State::Closed,
            State::Quoted | State::Escaped => State::Quoted,
            State::Closed if Some(byte) == quote => State::Quoted,
            State::Closed => {
                let is_escaped = escape.is_none() && self.before == BACKSLASH;
                self.fault(if is_escaped { TEXT_BEHIND_BACKSLASH } else { TEXT_BEHIND });
                State::Unquoted
            }
        }
    }

    fn note_escape(&mut self) {
        match &mut self.current {
            Some(row) if self.value < VALUES_MAX => row.escaped |= 1 << self.value,
            _ => self.fault(ESCAPED_FAR),
        }
    }

    fn fault(&mut self, reason: &'static str) {
        if let Some(row) = &mut self.current {
            row.fault.get_or_insert(reason);
        }
    }

    fn end_row(&mut self, end: u64) {
        self.ended.extend(self.current.take().map(|row| Row { end, ..row }));
        self.value = 0;
        self.state = State::Begun;
    }

    /// Returns the last row that ended within the bytes read, and drops all rows before it.
    pub(super) fn take(&mut self, read: u64) -> Option<Row> {
        let mut last = None;
        while self.ended.front().is_some_and(|row| row.end <= read) {
            last = self.ended.pop_front();
        }
        last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Dialect = Dialect { delimiter: b',', quote: Some(b'"'), escape: None };

    /// Returns the first and last lines of all rows, and their faults.
    fn rows(dialect: Dialect, text: &str) -> Vec<(u64, u64, Option<&'static str>)> {
        let mut rows = Rows::new(dialect);
        // In parts of any size.
        text.as_bytes().chunks(3).for_each(|part| rows.see(part));
        rows.see(b"");
        rows.ended.into_iter().map(|row| (row.first, row.last, row.fault)).collect()
    }

    #[test]
    fn rows_have_their_lines_whatever_ends_them() {
        for (text, lines) in [
            ("a,b\nc\n", vec![(1, 1), (2, 2)]),
            ("a\r\nb\r\nc", vec![(1, 1), (2, 2), (3, 3)]),
            ("a\n\n\nb\n", vec![(1, 1), (4, 4)]),
            ("\"a\nb\",c", vec![(1, 2)]),
            ("a\r\n\"b\r\n\r\nc\"\r\nd\n", vec![(1, 1), (2, 4), (5, 5)]),
            ("\n", vec![]),
        ] {
            let found: Vec<_> = rows(PLAIN, text).into_iter().map(|(first, last, _)| (first, last)).collect();
            assert_eq!(found, lines, "{text:?}");
        }
    }

    #[test]
    fn a_row_behind_a_carriage_return_alone_is_known() {
        let mut rows = Rows::new(PLAIN);
        rows.see(b"a\rb\r\nc\n\rd\n\"e\r\",f\n");
        let behind: Vec<bool> = rows.ended.iter().map(|row| row.is_after_return).collect();
        assert_eq!(behind, [false, true, false, true, false]);
    }

    #[test]
    fn quotes_that_open_and_close_where_values_do_are_sound() {
        let has_faults = |dialect, text| rows(dialect, text).iter().any(|(.., fault)| fault.is_some());
        for text in [
            "",
            "a,b\n",
            "\"a\",\"b\"\n",
            "\"a\"\"b\"\r\n",
            "a\"b,c\"\n",
            "\"\"",
            "\"a,\nb\",c",
            "\"\"\"\"\n",
            "\"a\"\rb",
        ] {
            assert!(!has_faults(PLAIN, text), "{text:?}");
        }
        assert!(!has_faults(Dialect { quote: None, ..PLAIN }, "\"a\nb\"c,\"\n"));
        assert!(!has_faults(Dialect { escape: Some(b'\\'), ..PLAIN }, "\"a\\\"b\",\"c\\\\\"\n"));
    }

    #[test]
    fn what_makes_one_record_of_several_rows_is_found_with_its_lines() {
        for (text, first, last, reason) in [
            ("a,\"b\nc\n", 1, 2, NEVER_CLOSED),
            ("a,b\n\"\"\"c\n", 2, 2, NEVER_CLOSED),
            ("\"a\"b,\"c\nd\ne", 1, 3, NEVER_CLOSED),
            ("1,\"open\n2,two\n3,\"x\"\n", 1, 3, TEXT_BEHIND),
            ("\"a\"b,\"c\"d\n", 1, 1, TEXT_BEHIND),
            ("\"a\" ,c\n", 1, 1, TEXT_BEHIND),
            ("1,\"He said \\\"hi\\\" to me\"\n", 1, 1, TEXT_BEHIND_BACKSLASH),
        ] {
            assert_eq!(rows(PLAIN, text).last(), Some(&(first, last, Some(reason))), "{text:?}");
        }
        let escaped = Dialect { escape: Some(b'\\'), ..PLAIN };
        assert_eq!(rows(escaped, "\"a\\\"\n"), [(1, 1, Some(NEVER_CLOSED))]);
    }

    #[test]
    fn values_with_escapes_outside_quotes_are_noted_and_no_delimiter_is_escaped() {
        let escaped = Dialect { escape: Some(b'\\'), ..PLAIN };
        let of = |text: &str| {
            let mut rows = Rows::new(escaped);
            text.as_bytes().chunks(2).for_each(|part| rows.see(part));
            rows.see(b"");
            let row = rows.ended.pop_back().unwrap();
            ((0..4).filter(|value| row.is_escaped(*value)).collect::<Vec<_>>(), row.fault)
        };
        for (text, values) in [
            ("a,b\\\"c,d\n", &[1][..]),
            ("\\\\a,\"b\\\"\",c\\n", &[0, 2]),
            ("\"\\\"a\",b", &[]),
            ("a\n,\\\"b", &[1]),
        ] {
            assert_eq!(of(text), (values.to_vec(), None), "{text:?}");
        }
        for text in ["a\\,b\n", "a\\\nb", "a,b\\\r\n"] {
            let mut rows = Rows::new(escaped);
            rows.see(text.as_bytes());
            rows.see(b"");
            assert_eq!(rows.ended[0].fault, Some(ESCAPED_BREAK), "{text:?}");
        }
    }

    #[test]
    fn where_quotes_are_wrong_each_line_counts_and_else_a_row_is_one() {
        for (text, count) in [
            ("a,\"b\nc\nd\n", 3),
            ("a\n\"b\n\nc", 3),
            ("a,\"b", 1),
            ("a,\"b\nc\"d\n", 2),
            ("a,\"b\nc\"\n", 1),
        ] {
            let mut rows = Rows::new(PLAIN);
            rows.see(text.as_bytes());
            rows.see(b"");
            assert_eq!(rows.ended.back().map(Row::counts_for), Some(count), "{text:?}");
        }
    }

    #[test]
    fn a_row_is_taken_when_it_has_ended() {
        let mut rows = Rows::new(PLAIN);
        rows.see(b"\"a\"b\nc\n\"d\"e\n");
        assert_eq!(rows.take(4), None);
        assert_eq!(rows.take(5).map(|row| (row.first, row.fault)), Some((1, Some(TEXT_BEHIND))));
        assert_eq!(rows.take(7).map(|row| (row.first, row.fault)), Some((2, None)));
        assert_eq!(rows.take(99).map(|row| (row.first, row.fault)), Some((3, Some(TEXT_BEHIND))));
    }
}
