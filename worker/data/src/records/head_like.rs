//! Detection of column names in the first line of a table whose column is given by number.

use csv::ByteRecord;

use super::known::is_of_texts;

/// Rows to examine before the first line counts as data.
const ROWS_MAX: u32 = 1000;
/// Upper bounds of a name's bytes and words.
const NAME_BYTES_MAX: usize = 48;
const NAME_WORDS_MAX: usize = 4;

/// The first line, until it is decided.
#[derive(Debug, Default)]
pub(super) struct HeadLike {
    first: Option<ByteRecord>,
    rows: u32,
    is_known: bool,
}

impl HeadLike {
    /// Takes the next row. Returns the first line's value in the column once it looks like a name: a usual name of a text column, or a name among
    /// names, one of which stands above a number in a later row.
    pub(super) fn see(&mut self, row: &ByteRecord, column: usize) -> Option<String> {
        if self.is_known {
            return None;
        }
        let Some(first) = &self.first else {
            // The first column may have no name, as pandas writes its index.
            let are_names =
                row.iter().enumerate().all(|(at, cell)| is_name(cell) || at == 0 && cell.is_empty());
            let own = row.get(column).filter(|own| are_names && !own.is_empty())?.to_vec();
            return match is_of_texts(&String::from_utf8_lossy(&own)) {
                true => self.found(&own),
                false => {
                    self.first = Some(row.clone());
                    None
                }
            };
        };
        self.rows += 1;
        let has_number = row.len() == first.len() && row.iter().any(is_number);
        if has_number {
            let own = first.get(column).unwrap_or_default().to_vec();
            return self.found(&own);
        }
        self.is_known = self.rows >= ROWS_MAX;
        None
    }

    /// Ends the detection: the first line is data, or absent.
    pub(super) fn give_up(&mut self) {
        self.is_known = true;
    }

    /// Whether the first line was seen.
    pub(super) fn is_begun(&self) -> bool {
        self.is_known || self.first.is_some()
    }

    fn found(&mut self, own: &[u8]) -> Option<String> {
        self.is_known = true;
        Some(String::from_utf8_lossy(own).into_owned())
    }
}

/// Whether a cell has one or a few words, and is neither a number nor a sentence.
fn is_name(cell: &[u8]) -> bool {
    let Ok(text) = str::from_utf8(cell) else { return false };
    let name = text.trim();
    let is_of_name = |c: char| c.is_alphanumeric() || "_-. /()#:".contains(c);
    !name.is_empty()
        && name.len() <= NAME_BYTES_MAX
        && name.split_whitespace().count() <= NAME_WORDS_MAX
        && name.chars().any(char::is_alphabetic)
        && name.chars().all(is_of_name)
        && !name.ends_with('.')
        && !is_number(cell)
}

fn is_number(cell: &[u8]) -> bool {
    let text = str::from_utf8(cell).unwrap_or_default().trim();
    text.bytes().any(|byte| byte.is_ascii_digit()) && text.parse::<f64>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the result for a table; the first column is 1.
    fn found(table: &str, column: usize) -> Option<String> {
        let mut head = HeadLike::default();
        let mut rows =
            csv::ReaderBuilder::new().has_headers(false).flexible(true).from_reader(table.as_bytes());
        let rows = rows.byte_records().map(Result::unwrap);
        rows.filter_map(|row| {
            let begun = head.is_begun();
            let found = head.see(&row, column - 1);
            if !begun && !head.is_begun() {
                head.give_up();
            }
            found
        })
        .next()
    }

    #[test]
    fn a_first_line_of_names_is_found_by_a_usual_one_or_by_numbers_below() {
        for (table, column, name) in [
            (",text\n0,one\n1,two\n", 2, "text"),
            ("text\none\n", 1, "text"),
            ("label,Sentence\npos,fine\n", 2, "Sentence"),
            ("id,body,lang\na,b,c\n", 2, "body"),
            ("id,words\n1,one\n2,two\n", 2, "words"),
            ("label,what was said\npos,fine\n3,odd\n", 2, "what was said"),
            ("Clothing ID,Age,Remarks\n767,33,Absolutely wonderful\n", 3, "Remarks"),
            ("user_id,stars,comment_raw\nx,5,ok\n", 3, "comment_raw"),
            ("ID,Überschrift\n7,eins\n", 2, "Überschrift"),
            ("time,Tweet (en)\n12.5,hello\n", 2, "Tweet (en)"),
        ] {
            assert_eq!(found(table, column).as_deref(), Some(name), "{table:?}");
        }
        let words = "apple,pear\n".repeat(1001) + "1,one\n";
        for (table, column) in [
            ("0,one\n1,two\n", 2),
            ("pos,It was fine.\n1,It was not\n", 2),
            ("apple,pear\nplum,fig\n", 1),
            ("apple,3\npear,4\n", 1),
            ("a,\n1,two\n", 2),
            ("x,one two three four five\n1,two\n", 2),
            ("Call me Ishmael.\n12\n", 1),
            ("text is what this line begins with,a\n1,2\n", 1),
            ("hello!\n7\n", 1),
            ("", 1),
            (&words, 1),
            ("a,b\n1,2,3\n", 2),
        ] {
            assert_eq!(found(table, column), None, "{table:?}");
        }
    }
}
