//! Classes of a source without an image.

use std::collections::BTreeMap;
use std::fmt;

/// Limit of named classes.
const NAMED_MAX: usize = 5;

/// Number of classes of some kind, and the first of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct NamedClasses {
    count: u64,
    first: Vec<u64>,
}

impl NamedClasses {
    /// Counts these.
    pub(super) fn of(classes: impl Iterator<Item = u64> + Clone) -> Self {
        Self { count: classes.clone().count() as u64, first: classes.take(NAMED_MAX).collect() }
    }

    /// Returns the number.
    pub(super) fn count(&self) -> u64 {
        self.count
    }
}

/// `class 3`, `classes 3, 7 and 4 more`
impl fmt::Display for NamedClasses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let first: Vec<String> = self.first.iter().map(u64::to_string).collect();
        let (named, more) = (first.join(", "), self.count - self.first.len() as u64);
        match (self.count, more) {
            (1, _) => write!(f, "class {named}"),
            (_, 0) => write!(f, "classes {named}"),
            (_, more) => write!(f, "classes {named} and {more} more"),
        }
    }
}

/// Number of classes without images, and the first of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EmptyClasses(NamedClasses);

impl EmptyClasses {
    /// Counts the classes without images among `classes`, numbered from 0.
    pub(super) fn of(images: &BTreeMap<u32, u64>, classes: u64) -> Self {
        let has_images = |class: u64| {
            let class = u32::try_from(class).ok();
            class.and_then(|class| images.get(&class)).is_some_and(|images| *images > 0)
        };
        Self(NamedClasses::of((0..classes).filter(|class| !has_images(*class))))
    }

    /// Returns the number.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.0.count()
    }
}

/// `class 3 has no sample`, `classes 3, 7 have no image`.
impl fmt::Display for EmptyClasses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let have = if self.count() == 1 { "has" } else { "have" };
        write!(f, "{} {have} no sample", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_without_an_image_are_counted_and_the_first_are_named() {
        let told = |with: &[u32], classes| {
            let empty = EmptyClasses::of(&with.iter().map(|class| (*class, 1)).collect(), classes);
            (empty.count(), empty.to_string())
        };
        assert_eq!(told(&[0, 1, 2], 3).0, 0);
        assert_eq!(told(&[0, 2], 3), (1, "class 1 has no sample".to_owned()));
        assert_eq!(told(&[1], 3), (2, "classes 0, 2 have no sample".to_owned()));
        assert_eq!(told(&[3], 10), (9, "classes 0, 1, 2, 4, 5 and 4 more have no sample".to_owned()));
    }
}
