//! Names and classes of texts of an archive's samples so far.

use std::collections::{HashMap, HashSet};

/// Upper bound of remembered names, in eight bytes each: 40 MB. Later repeated names go unnoticed.
const NAMES_MAX: usize = 1 << 21;
/// Upper bound of texts with remembered classes: more than image data sets have classes.
const TEXTS_MAX: usize = 1 << 16;

/// Whole samples of an archive. Names and texts are stored as eight bytes of their BLAKE3: two of two million collide once in ten million archives.
#[derive(Debug, Default)]
pub(super) struct Seen {
    names: HashSet<u64>,
    classes: HashMap<u64, u32>,
}

impl Seen {
    /// Whether a sample of this name was seen.
    pub(super) fn has(&self, name: &str) -> bool {
        self.names.contains(&number_of(name))
    }

    /// Records a whole sample of this name.
    pub(super) fn handle_sample(&mut self, name: &str) {
        if self.names.len() < NAMES_MAX {
            self.names.insert(number_of(name));
        }
    }

    /// Records a text beside this class. Returns the earlier class of the text if it differs.
    pub(super) fn handle_class(&mut self, text: &str, class: u32) -> Option<u32> {
        let text = number_of(text);
        if self.classes.len() == TEXTS_MAX && !self.classes.contains_key(&text) {
            return None;
        }
        let first = *self.classes.entry(text).or_insert(class);
        (first != class).then_some(first)
    }
}

fn number_of(text: &str) -> u64 {
    let mut number = [0; 8];
    blake3::Hasher::new().update(text.as_bytes()).finalize_xof().fill(&mut number);
    u64::from_le_bytes(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_has_the_class_that_it_had_first_and_no_more_are_remembered_than_may_be() {
        let mut seen = Seen::default();
        assert_eq!(seen.handle_class("cat", 3), None);
        assert_eq!(seen.handle_class("cat", 3), None);
        assert_eq!(seen.handle_class("cat", 5), Some(3));
        assert_eq!(seen.handle_class("kitten", 3), None);
        for text in 2..TEXTS_MAX {
            assert_eq!(seen.handle_class(&text.to_string(), 1), None);
        }
        assert_eq!((seen.handle_class("dog", 1), seen.handle_class("dog", 2)), (None, None));
        assert_eq!((seen.handle_class("cat", 0), seen.classes.len()), (Some(3), TEXTS_MAX));
    }

    #[test]
    fn names_of_whole_samples_are_remembered() {
        let mut seen = Seen::default();
        assert!(!seen.has("d/1"));
        seen.handle_sample("d/1");
        assert!(seen.has("d/1") && !seen.has("1") && !seen.has("d/10"));
    }
}
