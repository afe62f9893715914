//! Texts whose first lines show no prose: output of other programs, and server responses.

use super::pickles::pickle;

/// Bytes of a text to examine.
pub(super) const PROSE_BYTES: usize = 4096;

const AS_TEXT: &str = "if all of it is to be trained on as it stands";
/// Upper bound of a server response in place of a file.
const ANSWER_BYTES_MAX: usize = 512;

/// Server responses in place of a file, in lower case; an HTTP status may precede them.
const ANSWERS: [&str; 16] = [
    "access denied",
    "bad gateway",
    "bad request",
    "entry not found",
    "file not found",
    "forbidden",
    "gateway timeout",
    "internal server error",
    "invalid username or password",
    "moved permanently",
    "not found",
    "page not found",
    "repository not found",
    "service unavailable",
    "too many requests",
    "unauthorized",
];
/// Prefixes of such responses.
const ANSWERS_BEGIN: [&str; 4] =
    ["access to dataset ", "access to model ", "error code: ", "upstream connect error"];

/// Starts of content other than plain text, in lower case, with remedies.
const BEGINNINGS: [(&[&str], &str); 7] = [
    (&["<!doctype html", "<html"], "a web page, as servers send it in place of a file: fetch that again"),
    (
        &["<?xml", "<mediawiki", "<doc id=", "<rss", "<feed", "<svg", "<tei", "<error>"],
        "XML: write its text alone (an answer of a server in place of a file: fetch that again)",
    ),
    (&["warc/1."], "an archive of the web (WARC): write its texts as JSON lines"),
    (&["webvtt"], "subtitles (WebVTT): write their lines alone"),
    (&["[script info]"], "subtitles (ASS or SSA): write their lines alone"),
    (&["{\\rtf1"], "text with its layout (RTF): write its text (`pandoc IN -t plain -o OUT.txt`)"),
    (&["%!ps-adobe"], "a PostScript document: convert it to text (`ps2ascii IN OUT.txt`)"),
];

/// Refuses a text that is no prose, unless the format is configured. `head` has at most [`PROSE_BYTES`].
pub(super) fn check(head: &[u8]) -> Result<(), String> {
    let text = without_blanks(head);
    if is_json(text) {
        return Err(format!(
            "JSON: say format = \"jsonl\", where there is an object on each line; or format = \"text\", {AS_TEXT}"
        ));
    }
    let or_text = |what: &str| Err(format!("{what}; or say format = \"text\", {AS_TEXT}"));
    if let Some((_, what)) =
        BEGINNINGS.iter().find(|(begins, _)| begins.iter().any(|begins| starts(text, begins)))
    {
        return or_text(what);
    }
    if let Some(what) = pickle(text) {
        return or_text(&what);
    }
    let lines = Lines::of(text, head.len() >= PROSE_BYTES);
    if lines.are_subtitles() {
        return or_text("subtitles (SubRip): write their lines alone");
    }
    if lines.are_timed() {
        return or_text("lines with their times (SBV or LRC): write the lines alone");
    }
    if lines.are_sql() {
        return or_text("a dump of a database (SQL): write its rows as CSV");
    }
    match lines.delimiter() {
        Some('\t') => or_text("a table, with tabs in each line: say format = \"tsv\", and which column"),
        Some(',') => or_text("a table, as its first lines look: say format = \"csv\", and which column"),
        Some(other) => or_text(&format!(
            "a table, as its first lines look: say format = \"csv\" and delimiter = \"{other}\""
        )),
        None => Ok(()),
    }
}

/// Returns what a text is that begins as an archive of the web; `None`: it is another one.
pub(super) fn archive_of_web(text: &[u8]) -> Option<&'static str> {
    let (begins, what) = BEGINNINGS[2];
    begins.iter().any(|begins| starts(without_blanks(text), begins)).then_some(what)
}

/// Refuses a web page.
pub(super) fn check_page(head: &[u8]) -> Result<(), String> {
    let (begins, what) = BEGINNINGS[0];
    let text = without_blanks(head);
    if begins.iter().any(|begins| starts(text, begins)) { Err(what.to_owned()) } else { Ok(()) }
}

/// Refuses a server response in place of a file, for any format.
pub(super) fn check_answer(head: &[u8]) -> Result<(), String> {
    let text = without_blanks(head).trim_ascii_end();
    let (true, Ok(text)) = (text.len() <= ANSWER_BYTES_MAX, str::from_utf8(text)) else { return Ok(()) };
    let lower = text.to_lowercase();
    let number = lower.trim_start_matches(|c: char| c.is_ascii_digit());
    let words = if lower.len() == number.len() + 3 { number } else { &lower };
    let words = words.trim_start_matches([':', ' ']).trim_end_matches(['.', '!']);
    let is_answer = ANSWERS.contains(&words) || ANSWERS_BEGIN.iter().any(|begins| words.starts_with(begins));
    match is_answer {
        true => Err(format!(
            "an answer of a server in place of a file ({text:?}): fetch that again, or take it away"
        )),
        false => Ok(()),
    }
}

fn starts(text: &[u8], begins: &str) -> bool {
    text.get(..begins.len()).is_some_and(|there| there.eq_ignore_ascii_case(begins.as_bytes()))
}

/// Returns a text without leading white space.
fn without_blanks(head: &[u8]) -> &[u8] {
    head.strip_prefix(b"\xef\xbb\xbf").unwrap_or(head).trim_ascii_start()
}

/// Whether an object begins with a key, or an array with such an object or with a text.
fn is_json(head: &[u8]) -> bool {
    let within = head.strip_prefix(b"[").map(<[u8]>::trim_ascii_start);
    if within.is_some_and(|within| ends_then(within, b",]")) {
        return true;
    }
    let Some(key) = within.unwrap_or(head).strip_prefix(b"{") else { return false };
    ends_then(key.trim_ascii_start(), b":")
}

/// Whether it begins with a quoted text that one of these signs follows.
fn ends_then(quoted: &[u8], signs: &[u8]) -> bool {
    let Some(within) = quoted.strip_prefix(b"\"") else { return false };
    let end = within.iter().position(|&byte| byte == b'"');
    let behind = end.map(|end| within[end + 1..].trim_ascii_start());
    behind.and_then(<[u8]>::first).is_some_and(|sign| signs.contains(sign))
}

/// The complete, non-empty first lines of a text.
struct Lines<'t>(Vec<&'t str>);

/// Minimum of lines to recognise a table.
const LINES_MIN: usize = 3;

impl<'t> Lines<'t> {
    fn of(text: &'t [u8], goes_on: bool) -> Self {
        let whole = match goes_on {
            true => &text[..text.iter().rposition(|&byte| byte == b'\n').map_or(0, |end| end + 1)],
            false => text,
        };
        let valid = match str::from_utf8(whole) {
            Ok(valid) => valid,
            Err(error) => str::from_utf8(&whole[..error.valid_up_to()]).unwrap_or_default(),
        };
        Self(valid.lines().filter(|line| !line.trim().is_empty()).collect())
    }

    /// Whether they begin with a number and a time range: `00:00:01,000 --> 00:00:04,000`.
    fn are_subtitles(&self) -> bool {
        let [number, times, ..] = self.0[..] else { return false };
        let is_time = |time: &str| {
            let digits = time.bytes().filter(u8::is_ascii_digit).count();
            time.contains(':') && digits >= 6
        };
        let times = times.split_once(" --> ");
        number.trim().bytes().all(|byte| byte.is_ascii_digit())
            && times.is_some_and(|(from, to)| is_time(from) && is_time(to))
    }

    /// Whether a time range precedes each line, as in `0:00:01.000,0:00:04.000`, or a time, as in `[00:12.00]A line`.
    fn are_timed(&self) -> bool {
        let is_time = |time: &str| {
            let (clock, fraction) = time.split_once('.').unwrap_or((time, "0"));
            let are_digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
            clock.contains(':') && clock.split(':').all(are_digits) && are_digits(fraction)
        };
        let is_span =
            |line: &str| line.split_once(',').is_some_and(|(from, to)| is_time(from) && is_time(to));
        let is_stamped = |line: &str| {
            line.strip_prefix('[')
                .and_then(|line| line.split_once(']'))
                .is_some_and(|(time, _)| is_time(time))
        };
        // Before them, LRC has its title: `[ar:A singer]`.
        let is_tag = |line: &str| line.starts_with('[') && line.ends_with(']') && line.contains(':');
        let mut sung =
            self.0.iter().map(|line| line.trim()).skip_while(|line| is_tag(line) && !is_stamped(line));
        let is_sung = (0..LINES_MIN).all(|_| sung.next().is_some_and(is_stamped));
        is_sung || self.0.first().is_some_and(|line| is_span(line.trim()))
    }

    /// Whether they begin like dumps of mysqldump, pg_dump and sqlite3.
    fn are_sql(&self) -> bool {
        let mut statements = self.0.iter().map(|line| line.trim_start().to_ascii_lowercase());
        let is_comment = |line: &str| line.starts_with("--");
        let Some(first) = self.0.first().map(|line| line.to_ascii_lowercase()) else { return false };
        if is_comment(&first) && self.0.iter().take(4).any(|line| line.to_ascii_lowercase().contains(" dump"))
        {
            return true;
        }
        let begins = ["create table ", "insert into ", "drop table if exists ", "pragma foreign_keys"];
        let is_one =
            |line: &str| line.contains(['(', ';']) && begins.iter().any(|words| line.starts_with(words));
        statements.find(|line| !is_comment(line)).is_some_and(|line| is_one(&line))
    }

    /// Returns the delimiter of lines that look like a table: equally many tabs in each, or column names in the first and equally many signs in the second.
    fn delimiter(&self) -> Option<char> {
        let tabs = |line: &str| line.matches('\t').count();
        let first = *self.0.first()?;
        let has_tabs = tabs(first) > 0
            && self.0.len() >= LINES_MIN
            && self.0.iter().all(|line| !line.starts_with('\t') && tabs(line) == tabs(first));
        if has_tabs {
            return Some('\t');
        }
        let second = *self.0.get(1)?;
        let is_name = |name: &str| {
            let name = name.trim_matches('"');
            name.starts_with(|c: char| c.is_alphabetic() || c == '_')
                && name.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '-' | '.'))
        };
        let are_names =
            |delimiter: char| first.contains(delimiter) && first.trim_end().split(delimiter).all(is_name);
        [',', ';', '|', '\t'].into_iter().find(|&delimiter| {
            are_names(delimiter) && second.matches(delimiter).count() >= first.matches(delimiter).count()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_programs_write_is_no_prose() {
        for (text, words) in [
            ("{\"text\": \"a\"}\n", "JSON: "),
            (" [ { \"a\" : 1 } ]", "JSON: "),
            ("[\"one\", \"two\"]\n", "JSON: "),
            ("[\"one\"]\n[\"two\"]\n", "JSON: "),
            ("\u{feff}<!DOCTYPE html>\n", "a web page"),
            ("<?xml version=\"1.0\"?>\n<Error><Code>AccessDenied</Code></Error>", "XML: "),
            ("<mediawiki xmlns=\"http://www.mediawiki.org/xml\">", "XML: "),
            ("<doc id=\"12\" url=\"https://a\" title=\"A\">\nA\n", "XML: "),
            ("WARC/1.0\r\nWARC-Type: response\r\n", "an archive of the web"),
            ("WEBVTT\n\n00:01.000 --> 00:04.000\nHello\n", "subtitles (WebVTT)"),
            ("1\r\n00:00:01,000 --> 00:00:04,000\r\nHello\r\n", "subtitles (SubRip)"),
            ("[Script Info]\nTitle: A\n[Events]\n", "subtitles (ASS or SSA)"),
            ("0:00:01.000,0:00:04.000\nHello\n\n0:00:05.000,0:00:06.000\nAgain\n", "lines with their times"),
            ("[00:12.00]One\n[00:15.30]Two\n[00:18]Three\n", "lines with their times"),
            (
                "[ar:A singer]\n[ti:A song]\n\n[01:02.3]One\n[01:05]Two\n[01:07]Three",
                "lines with their times",
            ),
            ("{\\rtf1\\ansi hello}", "text with its layout"),
            ("%!PS-Adobe-3.0\n", "a PostScript document"),
            ("-- MySQL dump 10.13  Distrib 8.0\n--\n", "a dump of a database"),
            ("--\n-- PostgreSQL database dump\n--\n", "a dump of a database"),
            ("PRAGMA foreign_keys=OFF;\nBEGIN TRANSACTION;\n", "a dump of a database"),
            ("INSERT INTO `a` VALUES (1,'b');\n", "a dump of a database"),
            ("id\ttext\n1\tone\n2\ttwo\n", "a table, with tabs in each line: say format = \"tsv\""),
            ("1\teng\tHello.\n2\tdeu\tHallo.\n3\tfra\tSalut.", "a table, with tabs"),
            ("id\ttext\n1\tone\n", "a table, with tabs"),
            ("id,text\n1,Hello\n", "a table, as its first lines look: say format = \"csv\", and"),
            ("\"id\",\"text\",\"label\"\n1,\"Hello, world\",0\n", "a table, as its first lines look"),
            (
                "id;text\n1;Hello\n",
                "a table, as its first lines look: say format = \"csv\" and delimiter = \";\"",
            ),
            (
                "question|answer\na?|b\n",
                "a table, as its first lines look: say format = \"csv\" and delimiter = \"|\"",
            ),
        ] {
            let told = check(text.as_bytes()).unwrap_err();
            assert!(told.starts_with(words) && told.contains("format = \"text\""), "{text:?}: {told}");
        }
    }

    #[test]
    fn prose_code_and_letters_are_taken() {
        for text in [
            "It was the best of times.\nIt was the worst of times.\n",
            "Hello, world\nGood morning, world\n",
            "Yes,no\nmaybe\n",
            "one\ttwo\nthree\n",
            "Name:\tA\nDate:\tB\n",
            "\tdef a():\n\tpass\n\treturn\n",
            "[Chapter 1]\n\"Quoted,\" he said.\n",
            "[12:30] one\nsaid two\n",
            "12:30, a train left\n13:45,14:00 no more\n",
            "[a: b]\n[c: d]\ntext\n",
            "[\"Quoted speech\" begins]\n",
            "{curly}\n",
            "1\nThe first chapter --> begins\n",
            "-- a comment of Lua\nlocal a = 1\n",
            "-- Haskell\nmodule Main where\n",
            "Insert into the slot\n",
            "import a,b\nc,d = a,b\n",
            "WARC is a format.\n",
            "<name> is a placeholder\n",
            "",
            "one",
        ] {
            assert_eq!(check(text.as_bytes()), Ok(()), "{text:?}");
        }
        // A line cut off at the end of the examined part does not count.
        let long = format!("a b\tc\nd\te\n{}", "f".repeat(PROSE_BYTES));
        assert_eq!(check(&long.as_bytes()[..PROSE_BYTES]), Ok(()));
    }

    #[test]
    fn answers_of_servers_are_known_as_a_whole() {
        for text in [
            "Entry not found",
            "404: Not Found\n",
            "404 page not found\n",
            "Not Found",
            "Access Denied.",
            "503 Service Unavailable",
            "Invalid username or password.",
            "Access to dataset a/b is restricted. You must have access to it.",
            "error code: 1015",
        ] {
            assert!(
                check_answer(text.as_bytes()).unwrap_err().starts_with("an answer of a server"),
                "{text:?}"
            );
        }
        let long = format!("Access to model {}", "a".repeat(ANSWER_BYTES_MAX));
        for text in
            ["", "404", "Not found in the wild", "1984: not found yet, a novel", "Forbidden fruit", &long]
        {
            assert_eq!(check_answer(text.as_bytes()), Ok(()), "{text:?}");
        }
    }
}
