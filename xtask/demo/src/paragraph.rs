//! Text set as a paragraph.

use std::fmt::Write as _;

/// Characters in a line: the usual width of a terminal.
const LINE_CHARS: usize = 80;

/// Breaks a text at spaces into indented lines. An ellipsis replaces a last word that may be incomplete.
pub fn set(text: &str, indent: &str) -> String {
    let mut paragraph = String::new();
    for line in whole_words(text).lines() {
        let mut column = 0;
        for word in line.split_whitespace() {
            let chars = word.chars().count();
            if column > 0 && column + 1 + chars > LINE_CHARS - indent.len() {
                paragraph.push('\n');
                column = 0;
            }
            let gap = if column == 0 { indent } else { " " };
            // Writing to a string cannot fail.
            let _ = write!(paragraph, "{gap}{word}");
            column += chars + usize::from(column > 0);
        }
        paragraph.push('\n');
    }
    paragraph
}

fn whole_words(text: &str) -> String {
    let text = text.trim();
    match text.rfind(char::is_whitespace) {
        Some(end) if !text.ends_with(['.', '!', '?']) => format!("{} …", text[..end].trim_end()),
        _ => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_broken_at_spaces_and_no_word_is_cut() {
        let text = format!("{}end.\nA verse! And ha", "word ".repeat(20));
        let paragraph = set(&text, "  ");
        let lines: Vec<&str> = paragraph.lines().collect();
        assert!(lines.iter().all(|line| line.starts_with("  ") && line.chars().count() <= LINE_CHARS));
        assert_eq!(lines[0].chars().count(), 76, "another word does not fit");
        assert_eq!(lines[1..], ["  word word word word word end.", "  A verse! And …"]);
    }

    #[test]
    fn a_text_that_ends_is_shown_to_its_end() {
        assert_eq!(set(" In the beg. ", "> "), "> In the beg.\n");
        assert_eq!(set("beg", "> "), "> beg\n");
    }
}
