//! Detection of tokenizers that divide text by distant context: an opening quote, a fence, a comment, or a count of characters.

use std::collections::BTreeSet;

use serde_json::Value;

use super::Tokenizer;

/// Texts before and after a place: at a line end, and within a line.
const PLACES: [(&str, &str); 2] = [
    ("One two\nthree 44, five.\n\n  six seven\n", "eight 9 ten\n\neleven; twelve\n thirteen\n"),
    ("One two three 44, five. six seven", " eight 9 ten eleven; twelve thirteen fourteen"),
];
/// Marks that may open or close a context in any tokenizer.
const MARKS: [&str; 10] = ["a", "1", " ", "\n", "\"", "(", "«", "»", "“", "”"];
/// Limits of marks from a tokenizer's own patterns, and of characters per mark.
const MARKS_MAX: usize = 32;
const MARK_CHARACTERS_MAX: usize = 16;

impl Tokenizer {
    /// Refuses a tokenizer that cannot tokenise parts of a text: some mark at the start, with another at the end, changes the tokens after a place.
    /// The marks include literals of its patterns.
    ///
    /// # Errors
    /// It is such a tokenizer: names the mark.
    pub(crate) fn check_reach(&self) -> Result<(), String> {
        match self {
            Self::Bytes => Ok(()),
            Self::Json { json, tokenizer, .. } => tokenizer.reach(|| self.find_reach(&marks_of(json))),
        }
    }

    fn find_reach(&self, own: &[String]) -> Result<(), String> {
        let marks = || MARKS.into_iter().chain(own.iter().map(String::as_str));
        for (end, (before, behind)) in marks().chain([""]).flat_map(|end| PLACES.map(|place| (end, place))) {
            let behind = [behind, end].concat();
            // A tokenizer may have no token for some of the probe.
            let Ok(plain) = self.added(before, &behind) else { continue };
            for mark in marks() {
                let marked = self.added(&[mark, before].concat(), &behind);
                if marked.is_ok_and(|marked| marked != plain) {
                    return Err(format!(
                        "the mark {mark:?} changes how the tokenizer divides text at any distance after it, so a text of more than 1 MiB cannot be tokenised in parts: make a record of each document (JSON lines), or take a tokenizer without such a pattern"
                    ));
                }
            }
        }
        Ok(())
    }
}

/// Returns the literals in the patterns of a tokenizer's file.
pub(super) fn marks_of(json: &[u8]) -> Vec<String> {
    let mut marks = BTreeSet::new();
    if let Ok(file) = serde_json::from_slice::<Value>(json) {
        ["normalizer", "pre_tokenizer"].into_iter().for_each(|part| collect(&file[part], &mut marks));
    }
    let mut marks: Vec<String> = marks.into_iter().collect();
    // Letters and digits are least likely to open anything.
    marks.sort_by_key(|mark| mark.chars().all(char::is_alphanumeric));
    marks.truncate(MARKS_MAX);
    // For repetitions such as `x{3}`.
    let is_sign = |mark: &&String| mark.chars().all(|c| !c.is_alphanumeric()) && mark.chars().count() == 1;
    let repeated: Vec<String> =
        marks.iter().filter(is_sign).flat_map(|mark| [2, 3, 4].map(|times| mark.repeat(times))).collect();
    marks.extend(repeated);
    marks
}

fn collect(part: &Value, marks: &mut BTreeSet<String>) {
    match part {
        Value::Object(fields) => {
            for (name, value) in fields {
                match value.as_str().filter(|_| name == "Regex" || name == "String") {
                    Some(pattern) => marks.extend(literals(pattern)),
                    None => collect(value, marks),
                }
            }
        }
        Value::Array(parts) => parts.iter().for_each(|part| collect(part, marks)),
        _ => {}
    }
}

/// Returns the literal parts of a regular expression and their characters, including those of character classes.
fn literals(pattern: &str) -> BTreeSet<String> {
    let (mut found, mut run, mut in_class) = (BTreeSet::new(), String::new(), false);
    let mut end = |run: &mut String| {
        found.extend(run.chars().map(String::from));
        if !run.is_empty() && run.chars().count() <= MARK_CHARACTERS_MAX {
            found.insert(std::mem::take(run));
        }
        run.clear();
    };
    let mut characters = pattern.chars();
    while let Some(character) = characters.next() {
        match character {
            '\\' => match characters.next() {
                Some(escaped) if !escaped.is_alphanumeric() => run.push(escaped),
                _ => end(&mut run),
            },
            '[' => {
                end(&mut run);
                in_class = true;
            }
            ']' => {
                end(&mut run);
                in_class = false;
            }
            '.' | '^' | '$' | '|' | '?' | '*' | '+' | '(' | ')' | '{' | '}' if !in_class => end(&mut run),
            other => run.push(other),
        }
        if in_class {
            end(&mut run);
        }
    }
    end(&mut run);
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tokenizer that refuses words of the probe.
    #[cfg(feature = "tokenizers")]
    #[test]
    fn a_tokenizer_without_a_token_for_the_probe_is_not_refused_for_it() {
        let json = serde_json::json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
            "pre_tokenizer": { "type": "Whitespace" }, "post_processor": null, "decoder": null,
            "model": { "type": "WordLevel", "unk_token": "none", "vocab": { "uno": 0, "due": 1 } }
        });
        let json = serde_json::to_vec(&json).unwrap();
        let tokenizer = Tokenizer::of_json(json, std::path::Path::new("tokenizer.json")).unwrap();
        assert!(tokenizer.encode("three").is_err());
        assert_eq!(tokenizer.check_reach(), Ok(()));
    }

    #[test]
    fn a_pattern_s_marks_are_what_it_is_written_with() {
        let all = |pattern| literals(pattern).into_iter().collect::<Vec<_>>();
        assert_eq!(all(r#""[^"]*""#), ["\"", "^"]);
        assert_eq!(all(r"/\*[\s\S]*?\*/"), ["*", "*/", "/", "/*"]);
        assert_eq!(all("```.+```"), ["`", "```"]);
        assert_eq!(all(r"\p{L}+|\s"), ["L"]);
        assert_eq!(all(""), Vec::<String>::new());
    }
}
