//! Remedies of bad records.

use std::collections::BTreeSet;

/// Remedies that are told of a file: more bad records are not shown.
const REMEDIES_MAX: usize = 8;

/// Remedies that were told of a file. Each is told once, as many records may need it.
#[derive(Debug, Default)]
pub(super) struct Remedies(BTreeSet<String>);

impl Remedies {
    /// A reason, with its remedy where there is one that was not told yet.
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
