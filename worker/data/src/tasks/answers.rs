//! Comparison of generated answers with the expected ones.

use super::generated::FINAL;
use super::{Answer, TaskKind};

/// The result that no answer has.
const INVALID: &str = "[invalid]";

/// Whether an answer is right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Comparison {
    /// Whether it is the expected one. Of GSM8K: whether the number behind its first `#### ` is (`strict-match`).
    pub is_exact: bool,
    /// Of GSM8K: whether its last number is the expected one (`flexible-extract`).
    pub is_found: Option<bool>,
}

/// Compares a generated text with the expected answer.
///
/// Of GSM8K, numbers are compared without commas, dollar signs and a full stop at the end, as lm-evaluation-harness does. Other answers must be equal but for white
/// space around them.
#[must_use]
pub fn compare(kind: TaskKind, answer: &Answer, generated: &str) -> Comparison {
    if kind != TaskKind::Gsm8k {
        let is_exact = generated.trim() == answer.expected.trim();
        return Comparison { is_exact, is_found: None };
    }
    let expected = plain(&answer.expected);
    let is_expected = |found: Option<&str>| plain(found.unwrap_or(INVALID)) == expected;
    Comparison {
        is_exact: is_expected(marked(generated)),
        is_found: Some(is_expected(last_number(generated))),
    }
}

/// Returns a text without commas, dollar signs, what stands before its last `#### `, and a full stop at its end; in small letters.
fn plain(text: &str) -> String {
    let text = text.replace([',', '$'], "");
    let text = text.rsplit_once(FINAL).map_or(text.as_str(), |(_, result)| result);
    let without = match text.strip_suffix(".\n") {
        Some(without) => format!("{without}\n"),
        None => text.strip_suffix('.').unwrap_or(text).to_owned(),
    };
    without.to_lowercase()
}

/// Returns the first number behind a mark: `#### (\-?[0-9\.\,]+)`.
fn marked(text: &str) -> Option<&str> {
    text.match_indices(FINAL).find_map(|(at, mark)| {
        let rest = &text[at + mark.len()..];
        let sign = usize::from(rest.starts_with('-'));
        let digits = length(&rest[sign..], |c| matches!(c, '0'..='9' | '.' | ','));
        (digits > 0).then(|| &rest[..sign + digits])
    })
}

/// Returns the last number: `(-?[$0-9.,]{2,})|(-?[0-9]+)`.
fn last_number(text: &str) -> Option<&str> {
    let (mut found, mut at) = (None, 0);
    while let Some(next) = text[at..].chars().next() {
        let rest = &text[at..];
        let sign = usize::from(next == '-');
        let long = length(&rest[sign..], |c| matches!(c, '0'..='9' | '.' | ',' | '$'));
        let digits = length(&rest[sign..], |c| c.is_ascii_digit());
        let taken = match (long, digits) {
            (2.., _) => sign + long,
            (_, 1..) => sign + digits,
            _ => {
                at += next.len_utf8();
                continue;
            }
        };
        found = Some(&rest[..taken]);
        at += taken;
    }
    found
}

/// Returns the bytes of the first characters, all of ASCII, that are such ones.
fn length(text: &str, is_one: impl Fn(char) -> bool) -> usize {
    text.chars().take_while(|c| is_one(*c)).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gsm8k(expected: &str, generated: &str) -> (bool, Option<bool>) {
        let answer = Answer { prompt: String::new(), expected: expected.to_owned(), stops: &[] };
        let Comparison { is_exact, is_found } = compare(TaskKind::Gsm8k, &answer, generated);
        (is_exact, is_found)
    }

    /// Each row is what the harness's filters `strict-match` and `flexible-extract` give.
    #[test]
    fn numbers_are_found_and_compared_as_the_harness_does() {
        let expected = "She has 3*400=<<3*400=1200>>1,200 left.\n#### 1,200";
        for (generated, strict, flexible) in [
            ("#### 1200", true, true),
            ("so\n#### $1,200.", false, true),
            ("#### 1,200.", true, true),
            ("#### 1200 dollars, not 7", true, false),
            ("It is $1,200.", false, true),
            ("#### -1200", false, false),
            ("#### x #### 1200", true, true),
            ("none", false, false),
            ("", false, false),
            ("1200 - 0", false, false),
        ] {
            assert_eq!(gsm8k(expected, generated), (strict, Some(flexible)), "{generated:?}");
        }
        assert_eq!(gsm8k("#### 5", "a 3, then 5"), (false, Some(true)));
        assert_eq!(last_number("x -7. y"), Some("-7."));
        assert_eq!(last_number("ü - ."), None);
    }

    #[test]
    fn other_answers_are_equal_but_for_white_space_around_them() {
        let answer = Answer { prompt: String::new(), expected: " Paris\n".to_owned(), stops: &[] };
        for (generated, is_exact) in
            [("Paris", true), ("\n Paris ", true), ("paris", false), ("Paris.", false)]
        {
            assert_eq!(
                compare(TaskKind::ExactMatch, &answer, generated),
                Comparison { is_exact, is_found: None }
            );
        }
    }
}
