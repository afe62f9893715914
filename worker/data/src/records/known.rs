//! Names of fields and columns in messages.

use icu_normalizer::ComposingNormalizerBorrowed;

/// Limit of listed names.
const LISTED_MAX: usize = 8;
/// Limit of characters per name.
const CHARACTERS_MAX: usize = 40;

/// Common names of fields and columns with texts.
const OF_TEXTS: [&str; 14] = [
    "text",
    "content",
    "body",
    "raw_content",
    "document",
    "article",
    "story",
    "passage",
    "sentence",
    "transcript",
    "abstract",
    "review",
    "completion",
    "output",
];

/// Whether it is a common name of columns and fields with texts.
pub(super) fn is_of_texts(name: &str) -> bool {
    OF_TEXTS.iter().any(|usual| name.trim().eq_ignore_ascii_case(usual))
}

/// Keys of a message in a conversation: the speaker and the text.
pub(super) const MESSAGES: [(&str, &str); 2] = [("role", "content"), ("from", "value")];

/// Lists the first names, and the number of the others.
pub(super) fn listed(names: impl IntoIterator<Item = String>) -> String {
    let mut names = names.into_iter();
    let first: Vec<String> = names.by_ref().take(LISTED_MAX).collect();
    match (first.is_empty(), names.count()) {
        (true, _) => "none".to_owned(),
        (_, 0) => first.join(", "),
        (_, more) => format!("{} and {more} more", first.join(", ")),
    }
}

/// Returns a name with its control characters escaped, cut if it is long.
pub(super) fn shown(name: &str) -> String {
    let (mut characters, mut shown) = (name.chars(), String::new());
    for character in characters.by_ref().take(CHARACTERS_MAX) {
        if character.is_control() {
            shown.extend(character.escape_debug());
        } else {
            shown.push(character);
        }
    }
    if characters.next().is_some() {
        shown.push('…');
    }
    shown
}

/// Returns a name quoted for a configuration; `None`: it is too long for a message, or TOML writes it differently.
fn quoted(name: &str) -> Option<String> {
    let quoted = format!("{name:?}");
    let is_short = name.chars().count() <= CHARACTERS_MAX;
    (is_short && !name.trim().is_empty() && !quoted.contains("\\u{")).then_some(quoted)
}

/// Returns the probably intended name, in quotes: the wanted one in another spelling, or a common name of texts.
pub(super) fn meant(wanted: &str, names: &[&str]) -> Option<String> {
    let is_near = |name: &&&str| name.trim().eq_ignore_ascii_case(wanted.trim());
    let usual =
        || OF_TEXTS.iter().find_map(|usual| names.iter().find(|name| name.eq_ignore_ascii_case(usual)));
    let near = || names.iter().find(is_near).or_else(usual).and_then(|name| quoted(name));
    let composed = |name: &str| ComposingNormalizerBorrowed::new_nfc().normalize(name.trim()).into_owned();
    let alike = names.iter().find(|name| **name != wanted && composed(name) == composed(wanted));
    alike.filter(|name| !name.is_ascii()).map(|name| escaped(name)).or_else(near)
}

/// Returns a name that looks like another, in quotes and with its characters beyond ASCII as TOML escapes them.
fn escaped(name: &str) -> String {
    let of = |character: char| match character {
        ' '..='~' if !matches!(character, '"' | '\\') => character.to_string(),
        _ => format!("\\U{:08X}", u32::from(character)),
    };
    format!("\"{}\"", name.chars().map(of).collect::<String>())
}

/// The same, or else the first name that does not suggest numbers.
pub(super) fn example(wanted: &str, names: &[&str]) -> Option<String> {
    let is_number = |name: &str| ["id", "index"].iter().any(|other| name.eq_ignore_ascii_case(other));
    let first = || names.iter().filter(|name| !is_number(name)).find_map(|name| quoted(name));
    meant(wanted, names).or_else(first)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use longhaul_common::config::read_toml;

    use super::*;

    #[test]
    fn the_first_names_are_listed_and_long_ones_are_cut() {
        let names = |count: usize| listed((0..count).map(|number| number.to_string()));
        assert_eq!(names(0), "none");
        assert_eq!(names(8), "0, 1, 2, 3, 4, 5, 6, 7");
        assert_eq!(names(10), "0, 1, 2, 3, 4, 5, 6, 7 and 2 more");
        assert_eq!(shown("größe"), "größe");
        assert_eq!(shown("a\tb\n\u{1b}"), "a\\tb\\n\\u{1b}");
        assert_eq!(shown(&"é".repeat(41)), format!("{}…", "é".repeat(40)));
    }

    #[test]
    fn the_wanted_name_in_another_spelling_is_meant_or_a_common_one_and_never_one_that_toml_writes_otherwise()
    {
        for (wanted, names, expected) in [
            ("text", &["id", "Text"][..], Some("\"Text\"")),
            ("text", &["content", " text "], Some("\" text \"")),
            ("body", &["title", "content"], Some("\"content\"")),
            ("body", &["output", "text"], Some("\"text\"")),
            ("text", &["id", "verse"], Some("\"verse\"")),
            ("text", &["id", "a\"b"], Some("\"a\\\"b\"")),
            ("text", &["id", "a\u{7}b", "", " "], None),
            ("text", &["index"], None),
            ("text", &[], None),
        ] {
            assert_eq!(example(wanted, names).as_deref(), expected, "{wanted} {names:?}");
        }
        assert_eq!(meant("text", &["id", "verse"]), None);
    }

    /// macOS and some databases decompose letters.
    #[test]
    fn a_name_that_looks_the_same_is_told_by_its_code_points() {
        for (wanted, name, told) in [
            ("caf\u{e9}", "cafe\u{301}", "\"cafe\\U00000301\""),
            ("cafe\u{301}", "caf\u{e9}", "\"caf\\U000000E9\""),
            ("gr\u{f6}\u{df}e", "gro\u{308}\u{df}e", "\"gro\\U00000308\\U000000DFe\""),
            ("\u{1100}\u{1161}", "\u{ac00}", "\"\\U0000AC00\""),
        ] {
            assert_eq!(meant(wanted, &["text", name]).as_deref(), Some(told));
            let read: BTreeMap<String, String> = read_toml(&format!("column = {told}")).unwrap();
            assert_eq!(read["column"], name);
        }
    }
}
