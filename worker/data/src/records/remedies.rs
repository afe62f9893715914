//! Remedies of bad records.

use std::collections::BTreeSet;

/// Remedies reported per file: no more bad records are shown.
const REMEDIES_MAX: usize = 8;

/// Remedies reported for a file. Each is reported once, as many records may need it.
#[derive(Debug, Default)]
pub(super) struct Remedies(BTreeSet<String>);

impl Remedies {
    /// Returns a reason, with its remedy unless it was reported before.
    pub(super) fn told(&mut self, reason: String, remedy: String) -> String {
        if remedy.is_empty() || self.0.len() >= REMEDIES_MAX || self.0.contains(&remedy) {
            return reason;
        }
        let told = format!("{reason}: {remedy}");
        self.0.insert(remedy);
        told
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_remedy_is_told_once_and_so_many_are() {
        let mut remedies = Remedies::default();
        let mut told = |reason: &str, remedy: &str| remedies.told(reason.to_owned(), remedy.to_owned());
        assert_eq!(told("a", ""), "a");
        assert_eq!(told("a", "mend it"), "a: mend it");
        assert_eq!(told("b", "mend it"), "b");
        for number in 1..REMEDIES_MAX {
            assert_eq!(told("c", &number.to_string()), format!("c: {number}"));
        }
        assert_eq!(told("d", "something else"), "d");
    }
}
