//! Detection of a table's delimiter from its first line.

use csv::ByteRecord;
use longhaul_common::config::Dialect;

/// Bytes of a table to examine for its head.
pub(super) const HEAD_BYTES_MAX: u64 = 1 << 16;
/// Common delimiters.
const DELIMITERS: [u8; 4] = [b',', b';', b'\t', b'|'];

/// Returns the delimiter that Excel takes from a line before the head, such as `sep=;`.
pub(super) fn excel(head: &[u8]) -> Option<u8> {
    let (name, rest) = head.split_first_chunk::<4>()?;
    let delimiter = match rest {
        [delimiter] | [delimiter, b'\r' | b'\n', ..] => *delimiter,
        _ => return None,
    };
    let is_line = name.eq_ignore_ascii_case(b"sep=") && !matches!(delimiter, b'\r' | b'\n');
    is_line.then_some(delimiter)
}

/// Upper bound of lines before a head for which a remedy is reported.
const PREAMBLE_MAX: usize = 20;

/// Returns the number, from 1, of the first line after a text's first with this name among its values: the head, after the preamble of an export.
pub(super) fn line_with_name(text: &[u8], dialect: Dialect, wanted: &str) -> Option<usize> {
    let lines = text.split(|byte| *byte == b'\n').enumerate().skip(1).take(PREAMBLE_MAX);
    let has_name = |line: &[u8]| {
        first_row(line, dialect).is_some_and(|row| row.iter().any(|value| value == wanted.as_bytes()))
    };
    lines.into_iter().find(|(_, line)| has_name(line)).map(|(line, _)| line + 1)
}

/// Returns the delimiter that makes the first row of a text acceptable.
fn other(text: &[u8], dialect: Dialect, is_wanted: impl Fn(&ByteRecord) -> bool) -> Option<u8> {
    let is_free = |byte: &&u8| {
        **byte != dialect.delimiter && Some(**byte) != dialect.quote && Some(**byte) != dialect.escape
    };
    DELIMITERS.iter().filter(is_free).copied().find(|delimiter| {
        first_row(text, Dialect { delimiter: *delimiter, ..dialect }).is_some_and(|row| is_wanted(&row))
    })
}

fn first_row(text: &[u8], dialect: Dialect) -> Option<ByteRecord> {
    let mut row = ByteRecord::new();
    let mut reader = csv::ReaderBuilder::new();
    reader.delimiter(dialect.delimiter).escape(dialect.escape).flexible(true).has_headers(false);
    reader.quoting(dialect.quote.is_some()).quote(dialect.quote.unwrap_or(b'"'));
    reader.from_reader(text).read_byte_record(&mut row).ok()?.then_some(row)
}

/// Returns the delimiter that gives this name to a text's first row.
pub(super) fn with_name(text: &[u8], dialect: Dialect, name: &str) -> Option<u8> {
    other(text, dialect, |row| row.iter().any(|cell| cell == name.as_bytes()))
}

/// Returns the delimiter that gives a row this many values, with its first values.
pub(super) fn with_values(row: &[u8], dialect: Dialect, values: usize) -> Option<(u8, Vec<String>)> {
    let delimiter = other(row, dialect, |row| row.len() >= values)?;
    let row = first_row(row, Dialect { delimiter, ..dialect })?;
    Some((delimiter, row.iter().map(|cell| String::from_utf8_lossy(cell).into_owned()).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const COMMAS: Dialect = Dialect { delimiter: b',', quote: Some(b'"'), escape: None };

    #[test]
    fn a_line_of_excel_s_is_one_by_itself() {
        for (head, delimiter) in [
            (&b"sep=;\r\nid;text\r\n"[..], Some(b';')),
            (b"SEP=,\nid,text\n", Some(b',')),
            (b"sep=\t\n", Some(b'\t')),
            (b"sep=|", Some(b'|')),
            (b"sep=;;\n", None),
            (b"sep=\n", None),
            (b"sep=a,b\n", None),
            (b"\"sep=;\"\n", None),
            (b"sepal\n", None),
            (b"", None),
        ] {
            assert_eq!(excel(head), delimiter, "{head:?}");
        }
    }

    #[test]
    fn the_delimiter_is_the_one_that_finds_the_column() {
        for (text, expected) in [
            ("id;text\n1;one\n", Some(b';')),
            ("\"id\";\"text\"\n", Some(b';')),
            ("id\ttext\r\n", Some(b'\t')),
            ("id|text|n", Some(b'|')),
            ("a,b;text\n", Some(b';')),
            ("text;body\n", Some(b';')),
            ("id;body\n", None),
            ("id\n;text\n", None),
            ("", None),
        ] {
            assert_eq!(with_name(text.as_bytes(), COMMAS, "text"), expected, "{text:?}");
        }
        let tabs = Dialect { delimiter: b'\t', ..COMMAS };
        assert_eq!(with_name(b"id,text\n", tabs, "text"), Some(b','));
        // A quote cannot be a delimiter.
        let bars = Dialect { quote: Some(b'|'), ..COMMAS };
        assert_eq!(with_name(b"id|text\n", bars, "text"), None);
    }

    #[test]
    fn a_row_of_one_value_may_have_several_with_another_delimiter() {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        assert_eq!(with_values(b"1;one, two;x", COMMAS, 3), Some((b';', names(&["1", "one, two", "x"]))));
        assert_eq!(with_values(b"1;one", COMMAS, 3), None);
        assert_eq!(with_values(b"a\tb\n", COMMAS, 2), Some((b'\t', names(&["a", "b"]))));
    }
}
