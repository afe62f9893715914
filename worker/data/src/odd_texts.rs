//! Texts that are probably unintended: blank, a number, a word for a missing value, or decoded twice.

use std::fmt;

use indicatif::HumanCount;
use serde::{Deserialize, Serialize};

use super::decoded_twice::decoded_twice_at;
use super::excerpt::Excerpt;
use crate::counted::{are, counted};

/// Words for a missing value in pandas, R, SQL, Python, Excel, Alpaca and Reddit, and Excel's errors; in lower case.
#[rustfmt::skip]
const MISSING: [&str; 30] = [
    "nan", "-nan", "+nan", "nat", "\\n", "null", "none", "na", "n/a", "#na", "#n/a", "#n/a n/a", "<na>", "nil",
    "undefined", "1.#ind", "-1.#ind", "1.#qnan", "-1.#qnan", "#ref!", "#value!", "#div/0!", "#name?", "#null!", "#num!",
    "(null)", "<null>", "<nooutput>", "[deleted]", "[removed]",
];
/// Longer texts are neither such a word nor a number.
const WORD_BYTES_MAX: usize = 32;
/// More than one odd text in this many causes a warning.
const MANY_IN: u64 = 20;

/// Counts of odd texts of a piece, a file or a source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OddTexts {
    /// Only white space.
    blank: u64,
    /// A number.
    numbers: u64,
    /// A word of [`MISSING`].
    missing: u64,
    /// With UTF-8 that was decoded as a single-byte encoding and encoded again.
    decoded_twice: u64,
    /// The first such word; empty in lists of earlier versions.
    #[serde(default, skip_serializing_if = "Excerpt::is_empty")]
    first_twice: Excerpt,
    /// Whether each text is a file.
    #[serde(skip)]
    are_files: bool,
    /// All texts of the source.
    #[serde(skip)]
    texts: u64,
}

impl OddTexts {
    /// Counts a text, given without its separator.
    pub(super) fn see(&mut self, text: &str) {
        let word = text.trim();
        self.numbers += u64::from(word.len() <= WORD_BYTES_MAX && is_number(word));
        self.see_answer(text);
    }

    /// Counts an answer of a conversation, which may be a number.
    pub(super) fn see_answer(&mut self, text: &str) {
        let word = text.trim();
        let is_missing =
            || word.len() <= WORD_BYTES_MAX && MISSING.contains(&word.to_ascii_lowercase().as_str());
        self.blank += u64::from(word.is_empty());
        self.missing += u64::from(is_missing());
        self.see_part(text);
    }

    /// Counts the second text of a pair if it is blank.
    pub(super) fn see_second(&mut self, text: &str) {
        self.blank += u64::from(text.trim().is_empty());
        self.see_part(text);
    }

    /// Counts a part of a longer text.
    pub(super) fn see_part(&mut self, text: &str) {
        if let Some(at) = decoded_twice_at(text) {
            self.decoded_twice += 1;
            if self.first_twice.is_empty() {
                self.first_twice = Excerpt::around(text, at);
            }
        }
    }

    /// Converts the counts of `parts` parts to those of one text.
    pub(super) fn of_one_text(self, parts: u64) -> Self {
        let decoded_twice = self.decoded_twice.min(1);
        let first_twice = self.first_twice;
        if parts > 1 {
            Self { decoded_twice, first_twice, ..Self::default() }
        } else {
            Self { decoded_twice, ..self }
        }
    }

    pub(super) fn add(&mut self, other: &Self) {
        self.blank += other.blank;
        self.numbers += other.numbers;
        self.missing += other.missing;
        self.decoded_twice += other.decoded_twice;
        if self.first_twice.is_empty() {
            self.first_twice = other.first_twice;
        }
    }

    /// Sets the number of all texts of the source, and whether each is a file.
    pub(super) fn among(self, texts: u64, are_files: bool) -> Self {
        if self.are_none() { Self::default() } else { Self { texts, are_files, ..self } }
    }

    /// Whether all counts are zero.
    pub(super) fn are_none(&self) -> bool {
        self.count() == 0
    }

    /// Returns the number of odd texts.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.blank + self.numbers + self.missing + self.decoded_twice
    }

    /// Whether more than one in twenty texts is odd.
    #[must_use]
    pub fn are_many(&self) -> bool {
        self.count().saturating_mul(MANY_IN) > self.texts
    }
}

/// Requires digits: `inf` and `nan` are words.
fn is_number(word: &str) -> bool {
    let plain = word.trim_start_matches(['+', '-', '$', '€', '£']).trim_end_matches('%');
    plain.starts_with(|c: char| c.is_ascii_digit() || c == '.')
        && plain.ends_with(|c: char| c.is_ascii_digit() || c == '.')
        && plain.replace([',', '_'], "").parse::<f64>().is_ok()
}

/// `3 of 1,200 texts are hardly meant: 2 are numbers, 1 is a word for a missing value (`nan`, `null`, …)`
impl fmt::Display for OddTexts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { blank, numbers, missing, decoded_twice, first_twice, are_files, texts } = *self;
        let example = match first_twice.is_empty() {
            true => "such as `cafÃ©` for `café`".to_owned(),
            false => format!("the first: `{first_twice}`"),
        };
        let twice = format!("decoded twice ({example})");
        write!(f, "of {}, ", counted(texts, "text"))?;
        let kinds = [
            (blank, "blank"),
            (numbers, "numbers alone"),
            (missing, "words for a missing value (such as `nan` or `null`)"),
            (decoded_twice, twice.as_str()),
        ];
        let kinds = kinds.into_iter().filter(|(count, _)| *count > 0);
        for (index, (count, kind)) in kinds.enumerate() {
            let before = if index == 0 { "" } else { ", " };
            write!(f, "{before}{} {} {kind}", HumanCount(count), are(count))?;
        }
        let mut remedies = Vec::new();
        if blank + numbers + missing > 0 {
            remedies.push(if are_files { "check these files" } else { "check the column or the field" });
        }
        if decoded_twice > 0 {
            remedies.push("where they were in UTF-8, decode them so (`ftfy.fix_text` of Python mends most)");
        }
        write!(f, ": {}", remedies.join("; "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(texts: &[&str]) -> OddTexts {
        let mut odd = OddTexts::default();
        texts.iter().for_each(|text| odd.see(text));
        odd.among(texts.len() as u64, false)
    }

    #[test]
    fn texts_that_are_hardly_meant_are_counted_by_kind() {
        for text in ["", " ", "\n\t", "\u{a0}"] {
            assert_eq!(of(&[text]).blank, 1, "{text:?}");
        }
        for text in ["0", "-1.5", "1e9", "1,234.50", "$12", "99%", " 7\n", ".5", "2024"] {
            assert_eq!(of(&[text]).numbers, 1, "{text:?}");
        }
        // The first 18 are from pandas.
        for text in [
            "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "<NA>",
            "N/A", "NA", "NULL", "NaN", "None", "n/a", "nan", "null", " null ", "\\N", "NaT", "#DIV/0!",
            "#REF!", "(null)",
        ] {
            assert_eq!(of(&[text]).missing, 1, "{text:?}");
        }
        for text in ["cafÃ©", "Ã¼ber", "itâ€™s", "a long text with Ã± in it"] {
            assert_eq!(of(&[text]).decoded_twice, 1, "{text:?}");
        }
        let in_order = [
            "a",
            "café",
            "Ãlvaro",
            "SÃO PAULO",
            "1 2",
            "1.2.3",
            "12:30",
            "inf",
            "no",
            "null and void",
            "-",
            "%",
            "…",
            "Ã",
            "âge",
            "2024-01-01",
        ];
        assert_eq!(of(&in_order).count(), 0);
    }

    #[test]
    fn counts_are_told_with_all_texts_and_many_of_them_are_a_warning() {
        let odd = of(&["", "1", "2", "a"]);
        let told = "of 4 texts, 1 is blank, 2 are numbers alone: check the column or the field";
        assert_eq!((odd.to_string().as_str(), odd.count(), odd.are_many()), (told, 3, true));
        let twice = of(&["a", "le cafÃ© noir", "Ã¼ber"]);
        let told = "of 3 texts, 2 are decoded twice (the first: `cafÃ©`): where they were in UTF-8, decode them so (`ftfy.fix_text` of Python mends most)";
        assert_eq!(twice.to_string(), told);
        let written = serde_json::to_string(&twice).unwrap();
        let earlier = written.replace(",\"first_twice\":\"cafÃ©\"", "");
        assert_ne!(written, earlier);
        let earlier: OddTexts = serde_json::from_str(&earlier).unwrap();
        assert!(earlier.among(3, true).to_string().contains("(such as `cafÃ©` for `café`)"));
        let blank = of(&[""]).among(1, true).to_string();
        assert_eq!(blank, "of 1 text, 1 is blank: check these files");
        let mut all = of(&["nan"]);
        all.add(&of(&["a"; 19]));
        assert!(all.among(19, false).are_many(), "{all}");
        assert!(!all.among(20, false).are_many() && !all.are_none(), "{all}");
        assert!(of(&["a"]).are_none());
    }
}
