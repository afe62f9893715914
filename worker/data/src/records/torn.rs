//! Samples of an archive whose files are not consecutive.

use std::collections::{BTreeMap, VecDeque};

use super::Record;

/// Whole samples after which an archive counts as ordered: in an unordered one, files of a sample are rarely adjacent.
const WHOLE_MAX: u32 = 16;
/// Upper bound in bytes of waiting parts: names and reasons of some 50,000 parts.
const WAITING_BYTES_MAX: usize = 16 << 20;

/// Either side of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Half {
    Image,
    Class,
}

/// A sample with an image or a class, but not both.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Part {
    /// Name of its file.
    pub(super) name: String,
    pub(super) half: Half,
}

/// Incomplete samples. The report of one is delayed until its rest arrives, which gives another reason, or until whole samples show that the archive is
/// ordered.
#[derive(Debug, Default)]
pub(super) struct Torn {
    /// By the sample's key.
    waiting: BTreeMap<String, Waiting>,
    /// Bytes of the waiting parts.
    bytes: usize,
    /// Parts so far, and whole samples since the first waiting part.
    parts: u64,
    whole: u32,
    told: VecDeque<Record>,
}

#[derive(Debug)]
struct Waiting {
    number: u64,
    part: Part,
    /// The reason if its rest does not arrive.
    alone: String,
}

impl Waiting {
    fn bytes(&self) -> usize {
        self.part.name.len() + self.alone.len()
    }
}

impl Torn {
    /// Handles an incomplete sample: its key, its place, and the reason if its rest does not arrive.
    pub(super) fn handle_part(&mut self, key: String, part: Part, place: &str, alone: String) {
        let first = self.waiting.remove(&key);
        self.bytes -= first.as_ref().map_or(0, |first| first.bytes() + key.len());
        match first {
            Some(first) if first.part.half != part.half => {
                let reason = format!(
                    "{place}: its files {} and {} do not follow each other in the archive, so each would be a sample: pack it anew in the order of names (`tar --sort=name`)",
                    first.part.name, part.name
                );
                self.told.push_back(Record::bad(reason));
                return;
            }
            Some(first) => self.told.push_back(Record::bad(first.alone)),
            None => {}
        }
        self.parts += 1;
        let waiting = Waiting { number: self.parts, part, alone };
        self.bytes += waiting.bytes() + key.len();
        self.waiting.insert(key, waiting);
        if self.bytes > WAITING_BYTES_MAX {
            self.handle_end();
        }
    }

    /// Handles a whole sample.
    pub(super) fn handle_whole(&mut self) {
        if self.waiting.is_empty() {
            self.whole = 0;
            return;
        }
        self.whole += 1;
        if self.whole == WHOLE_MAX {
            self.handle_end();
        }
    }

    /// Handles the end of parts, or of waiting for them.
    pub(super) fn handle_end(&mut self) {
        let mut waiting: Vec<Waiting> = std::mem::take(&mut self.waiting).into_values().collect();
        waiting.sort_unstable_by_key(|waiting| waiting.number);
        self.told.extend(waiting.into_iter().map(|waiting| Record::bad(waiting.alone)));
        (self.bytes, self.whole) = (0, 0);
    }

    /// Returns the next bad record; `None`: nothing to report yet.
    pub(super) fn poll_bad(&mut self) -> Option<Record> {
        self.told.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the reports for parts, given as files such as `a.png` or `a.cls`, and whole samples, given without an extension.
    fn told(files: &[&str]) -> Vec<String> {
        let mut torn = Torn::default();
        for file in files {
            match file.split_once('.') {
                Some((key, end)) => {
                    let half = if end == "cls" { Half::Class } else { Half::Image };
                    let part = Part { name: (*file).to_owned(), half };
                    torn.handle_part(key.to_owned(), part, key, format!("{file} alone"));
                }
                None => torn.handle_whole(),
            }
        }
        torn.handle_end();
        let reason = |record| match record {
            Record::Bad { reason, count: 1 } => reason.split(", so").next().unwrap().to_owned(),
            other => panic!("{other:?}"),
        };
        std::iter::from_fn(|| torn.poll_bad()).map(reason).collect()
    }

    #[test]
    fn a_sample_in_two_parts_is_one_bad_record_and_what_lacks_something_is_named_as_it_is() {
        let both = |key: &str, first: &str, second: &str| {
            format!("{key}: its files {first} and {second} do not follow each other in the archive")
        };
        for (files, expected) in [
            (
                vec!["a.png", "b.png", "a.cls", "b.cls"],
                vec![both("a", "a.png", "a.cls"), both("b", "b.png", "b.cls")],
            ),
            (vec!["x.cls", "y.jpg", "x.jpg"], vec![both("x", "x.cls", "x.jpg"), "y.jpg alone".to_owned()]),
            (vec!["a.png", "b.cls"], vec!["a.png alone".to_owned(), "b.cls alone".to_owned()]),
            (
                vec!["b.cls", "a.png", "b.cls"],
                ["b.cls alone", "a.png alone", "b.cls alone"].map(str::to_owned).into(),
            ),
            (vec!["whole", "whole"], vec![]),
        ] {
            assert_eq!(told(&files), expected, "{files:?}");
        }
    }

    #[test]
    fn what_is_told_waits_for_a_few_whole_samples_and_takes_so_much_at_most() {
        let mut torn = Torn::default();
        let part = |name: String| Part { name, half: Half::Image };
        torn.handle_part("a".to_owned(), part("a.png".to_owned()), "a", "alone".to_owned());
        for _ in 1..WHOLE_MAX {
            torn.handle_whole();
        }
        assert_eq!(torn.poll_bad(), None);
        torn.handle_whole();
        assert_eq!(torn.poll_bad(), Some(Record::bad("alone".to_owned())));
        assert_eq!(torn.bytes, 0);
        let long = "a".repeat(1 << 20);
        for number in 0..16 {
            assert!(torn.told.is_empty(), "{number}");
            torn.handle_part(number.to_string(), part(long.clone()), "", String::new());
        }
        assert_eq!((torn.told.len(), torn.waiting.len(), torn.bytes), (16, 0, 0));
        let class = Part { name: "b.cls".to_owned(), half: Half::Class };
        torn.handle_part("b".to_owned(), part("b.png".to_owned()), "", String::new());
        torn.handle_part("b".to_owned(), class, "", String::new());
        assert_eq!((torn.told.len(), torn.bytes), (17, 0));
    }
}
