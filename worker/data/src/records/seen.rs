//! What the samples of an archive have said so far: their names, and of which class a text is.

use std::collections::{HashMap, HashSet};

/// Names that are remembered, at most, in eight bytes each: 40 MB. A sample whose name stood behind so many others is not told from a new one.
const NAMES_MAX: usize = 1 << 21;
/// Texts whose classes are remembered, at most: more than there are classes in data sets of images.
const TEXTS_MAX: usize = 1 << 16;

/// Samples of an archive that were whole. Names and texts are known by eight bytes of their BLAKE3: two of two million are the same once in ten million archives.
#[derive(Debug, Default)]
pub(super) struct Seen {
    names: HashSet<u64>,
    classes: HashMap<u64, u32>,
}

impl Seen {
    /// Whether there was a sample of this name.
    pub(super) fn has(&self, name: &str) -> bool {
        self.names.contains(&number_of(name))
    }

    /// A sample of this name is whole.
    pub(super) fn handle_sample(&mut self, name: &str) {
        if self.names.len() < NAMES_MAX {
            self.names.insert(number_of(name));
        }
    }

    /// A text stands beside this class. The class that it stood beside before, where that is another.
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
