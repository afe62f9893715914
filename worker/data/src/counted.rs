//! Counts with nouns and verbs, for people.

use indicatif::HumanCount;

/// `1 file`, `1,200 files`: for nouns with a regular plural.
pub fn counted(count: u64, noun: &str) -> String {
    format!("{} {noun}{}", HumanCount(count), if count == 1 { "" } else { "s" })
}

/// Returns the verb for such a count.
pub fn are(count: u64) -> &'static str {
    if count == 1 { "is" } else { "are" }
}

/// Returns its past tense.
pub fn were(count: u64) -> &'static str {
    if count == 1 { "was" } else { "were" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_has_no_plural() {
        let words = [0, 1, 2, 1200].map(|count| format!("{} {}", counted(count, "file"), were(count)));
        assert_eq!(words, ["0 files were", "1 file was", "2 files were", "1,200 files were"]);
    }
}
