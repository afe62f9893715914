//! Choice of a source's held-out images, independent of their order in its files.

use std::collections::BTreeMap;
use std::sync::Arc;

/// The last images of each class, by their indices in the source. Archives and IDX files are often written class by class, so that holding out their end
/// alone would remove whole classes from training. Determined by the classes and the number of held-out images, and so equal on every worker.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct HeldOut(Arc<[u64]>);

impl HeldOut {
    /// Chooses `count` images: of each class its share (largest-remainder method), but never the only image of a class.
    pub(super) fn of_classes(labels: &[u32], count: u64) -> Self {
        let mut left_of = shares(labels, count);
        let mut places = Vec::new();
        for (place, label) in labels.iter().enumerate().rev() {
            if let Some(left) = left_of.get_mut(label).filter(|left| **left > 0) {
                *left -= 1;
                places.push(place as u64);
            }
        }
        places.reverse();
        Self(places.into())
    }

    /// Encodes them for the catalogue: the distance of each from the previous one, and of the first from the start.
    pub(super) fn steps(&self) -> Vec<u32> {
        let mut last = 0;
        let step = |place: &u64| {
            let step = place - last;
            last = *place;
            // A source has fewer images than that.
            u32::try_from(step).unwrap_or(u32::MAX)
        };
        self.0.iter().map(step).collect()
    }

    /// Decodes [`Self::steps`] for a source of `images` images; `None`: an image out of range, or a repeated one.
    pub(super) fn of_steps(steps: &[u32], images: u64) -> Option<Self> {
        let (mut places, mut next) = (Vec::with_capacity(steps.len()), 0);
        for step in steps {
            let place = next + u64::from(*step);
            if place >= images || *step == 0 && !places.is_empty() {
                return None;
            }
            places.push(place);
            next = place;
        }
        Some(Self(places.into()))
    }

    /// Returns their number.
    pub(super) fn len(&self) -> u64 {
        self.0.len() as u64
    }

    /// Returns the index of the held-out image at a place.
    pub(super) fn at(&self, place: u64) -> u64 {
        self.0[place as usize]
    }

    /// Returns the index of the training image at a place.
    pub(super) fn trained_at(&self, place: u64) -> u64 {
        // Binary search for the number of held-out images before it.
        let (mut before, mut end) = (0, self.0.len());
        while before < end {
            let middle = before + (end - before) / 2;
            if self.0[middle] - middle as u64 <= place { before = middle + 1 } else { end = middle }
        }
        place + before as u64
    }

    /// Hashes their indices.
    pub(super) fn hash_into(&self, hasher: &mut blake3::Hasher) {
        self.0.iter().for_each(|place| _ = hasher.update(&place.to_le_bytes()));
    }
}

/// Returns the number of held-out images per class.
fn shares(labels: &[u32], count: u64) -> BTreeMap<u32, u64> {
    let mut classes = BTreeMap::<u32, u64>::new();
    labels.iter().for_each(|label| *classes.entry(*label).or_default() += 1);
    let all = labels.len().max(1) as u128;
    let exact = |images: u64| u128::from(images) * u128::from(count);
    let most = |images: u64| images.saturating_sub(1);
    let whole = |images: u64| ((exact(images) / all) as u64).min(most(images));
    let mut shares: BTreeMap<u32, u64> =
        classes.iter().map(|(class, images)| (*class, whole(*images))).collect();
    let mut in_turn: Vec<(u128, u32)> =
        classes.iter().map(|(class, images)| (exact(*images) % all, *class)).collect();
    in_turn.sort_by_key(|(remainder, class)| (std::cmp::Reverse(*remainder), *class));
    let mut left = count.saturating_sub(shares.values().sum());
    while left > 0 {
        let before = left;
        for (_, class) in &in_turn {
            let share = shares.entry(*class).or_default();
            if left > 0 && *share < most(classes[class]) {
                *share += 1;
                left -= 1;
            }
        }
        // Each class has only one left.
        if left == before {
            break;
        }
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(labels: &[u32], count: u64) -> Vec<u64> {
        HeldOut::of_classes(labels, count).0.to_vec()
    }

    #[test]
    fn the_last_images_of_each_class_are_held_out_and_never_the_only_one() {
        let by_class = [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2];
        let in_turns = [0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2];
        for (labels, count, expected) in [
            (&by_class[..], 3, &[3, 7, 11][..]),
            (&by_class, 6, &[2, 3, 6, 7, 10, 11]),
            (&by_class, 1, &[3]),
            (&by_class, 2, &[3, 7]),
            (&by_class, 4, &[2, 3, 7, 11]),
            (&by_class, 0, &[]),
            (&in_turns, 3, &[9, 10, 11]),
            (&in_turns, 6, &[6, 7, 8, 9, 10, 11]),
            (&[0, 0, 0, 0, 0, 0, 0, 0, 1, 1], 5, &[4, 5, 6, 7, 9]),
            (&[5, 7, 7, 7, 7, 7, 7, 7, 7, 7], 5, &[5, 6, 7, 8, 9]),
            (&[0, 1, 2, 3], 2, &[]),
            (&[0, 1, 2, 2], 2, &[3]),
            (&[0, 0, 1], 1, &[1]),
            (&[9, 9], 1, &[1]),
            (&[9], 1, &[]),
            (&[], 0, &[]),
        ] {
            assert_eq!(places(labels, count), expected, "{labels:?}, {count}");
        }
    }

    #[test]
    fn each_image_is_held_out_or_trained_on_once_and_in_order() {
        for (labels, count) in [
            (vec![], 0),
            (vec![3], 0),
            (vec![0, 0, 1, 1, 1], 2),
            ((0..1000).map(|at| at / 100).collect::<Vec<u32>>(), 50),
            ((0..1000).map(|at| at % 10).collect(), 50),
            ((0..1001).map(|at| at * at % 13).collect(), 500),
            ((0..997).map(|at| at % 7 * (at % 3)).collect(), 99),
            (vec![1; 64], 32),
            ((0..64).collect(), 32),
            ((0..300).map(|at: u32| at.max(1).ilog2()).collect(), 100),
        ] {
            let held_out = HeldOut::of_classes(&labels, count);
            let images = labels.len() as u64;
            let mut all: Vec<u64> = (0..held_out.len()).map(|place| held_out.at(place)).collect();
            let trained: Vec<u64> =
                (0..images - held_out.len()).map(|place| held_out.trained_at(place)).collect();
            assert!(all.is_sorted() && trained.is_sorted());
            assert!(labels.iter().all(|label| trained.iter().any(|place| labels[*place as usize] == *label)));
            all.extend(trained);
            all.sort_unstable();
            assert_eq!(all, (0..images).collect::<Vec<_>>());
            assert_eq!(HeldOut::of_steps(&held_out.steps(), images), Some(held_out));
        }
    }

    #[test]
    fn what_others_list_is_taken_only_where_there_are_such_images() {
        let of = |steps: &[u32]| HeldOut::of_steps(steps, 10).map(|held_out| held_out.0.to_vec());
        for (steps, expected) in [
            (&[][..], Some(vec![])),
            (&[0], Some(vec![0])),
            (&[0, 9], Some(vec![0, 9])),
            (&[3, 1, 1], Some(vec![3, 4, 5])),
            (&[10], None),
            (&[9, 1], None),
            (&[3, 0], None),
            (&[0, 0], None),
            (&[u32::MAX, u32::MAX], None),
            (&[1, 2, 3, 4], None),
        ] {
            assert_eq!(of(steps), expected, "{steps:?}");
        }
    }
}
