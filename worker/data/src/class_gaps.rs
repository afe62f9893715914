//! Classes with images only in training, or only held out.

use std::collections::BTreeMap;
use std::fmt;

use super::empty_classes::NamedClasses;
use super::piece::Classes;

/// Training and held-out images per class.
#[derive(Clone, Debug, Default)]
pub(super) struct ClassSides {
    pub(super) trained: Classes,
    pub(super) held_out: Classes,
}

/// Classes on one side only.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClassGaps {
    untrained: NamedClasses,
    not_held_out: NamedClasses,
}

impl ClassSides {
    /// Returns the gaps; empty if nothing is held out, and thus nothing evaluated.
    pub(super) fn gaps(&self) -> ClassGaps {
        let lacking = |of: &Classes, other: &Classes| {
            NamedClasses::of(
                of.keys().filter(|class| !other.contains_key(class)).map(|class| (*class).into()),
            )
        };
        let untrained = lacking(&self.held_out, &self.trained);
        let not_held_out = match self.held_out.is_empty() {
            true => NamedClasses::default(),
            false => lacking(&self.trained, &self.held_out),
        };
        ClassGaps { untrained, not_held_out }
    }
}

/// Counts an image of a class.
pub(super) fn count(classes: &mut BTreeMap<u32, u64>, class: u32) {
    *classes.entry(class).or_default() += 1;
}

impl ClassGaps {
    /// Whether each class is on both sides, as far as known here.
    #[must_use]
    pub fn are_none(&self) -> bool {
        *self == Self::default()
    }

    /// Whether a class has images, but none in training.
    #[must_use]
    pub fn has_untrained(&self) -> bool {
        self.untrained.count() > 0
    }
}

/// `warning: all samples of class 3 are held out, and none is trained on: …; no sample of classes 1, 2 is held out`
impl fmt::Display for ClassGaps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { untrained, not_held_out } = self;
        if self.has_untrained() {
            write!(
                f,
                "warning: all samples of {untrained} are held out, and none is trained on: give it more, or name held-out data under data.validation"
            )?;
        }
        if not_held_out.count() > 0 {
            let before = if self.has_untrained() { "; " } else { "" };
            write!(
                f,
                "{before}no sample of {not_held_out} is held out, so that the accuracy says nothing of it"
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(trained: &[u32], held_out: &[u32]) -> String {
        let classes = |of: &[u32]| of.iter().map(|class| (*class, 1)).collect();
        ClassSides { trained: classes(trained), held_out: classes(held_out) }.gaps().to_string()
    }

    #[test]
    fn classes_on_one_side_alone_are_counted_and_the_first_are_named() {
        for (trained, held_out, words) in [
            (&[][..], &[][..], &[""][..]),
            (&[0, 1], &[0, 1], &[""]),
            (&[0, 1], &[], &[""]),
            (&[0], &[0, 1], &["warning: all samples of class 1 are held out", "none is trained on"]),
            (&[], &[4], &["all samples of class 4 are"]),
            (
                &[0],
                &[1, 2],
                &["all samples of classes 1, 2 are held out", "; no sample of class 0 is held out"],
            ),
            (&[0, 1, 2], &[1], &["no sample of classes 0, 2 is held out"]),
            (&[0, 1, 2], &[1, 2], &["no sample of class 0 is held out"]),
            (&[9], &[0, 1, 2, 3, 4, 5, 9], &["classes 0, 1, 2, 3, 4 and 1 more are"]),
            (&[0, 1, 2, 3, 4, 5, 6, 7], &[7], &["of classes 0, 1, 2, 3, 4 and 2 more is held out"]),
        ] {
            let told = told(trained, held_out);
            assert!(words.iter().all(|words| told.contains(words)), "{told}");
            assert_eq!(told.is_empty(), words == [""], "{told}");
        }
    }
}
