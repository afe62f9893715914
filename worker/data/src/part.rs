//! The training and held-out parts of a source.

use std::ops::Range;
use std::sync::Arc;

use longhaul_common::config::DataFormat;

use super::class_gaps::{ClassSides, count};
use super::held_out::HeldOut;
use super::lent::ListedSource;
use super::sample::SampleShape;
use super::source::Source;
use super::{ClassGaps, DataError};

/// Items (tokens or images) of a source used as samples.
#[derive(Debug)]
pub(super) struct SourcePart {
    pub(super) source: Arc<Source>,
    items: Items,
    pub(super) shape: SampleShape,
}

/// The selected items.
#[derive(Clone, Debug)]
enum Items {
    /// Consecutive items.
    Range(Range<u64>),
    /// This many images, without the held-out ones between them.
    Trained(u64, HeldOut),
    /// The held-out images.
    HeldOut(HeldOut),
}

/// Decodes samples about to be read, unless they already are.
pub(super) fn bring<'a>(samples: impl Iterator<Item = (&'a SourcePart, u64)>) -> Result<(), DataError> {
    let mut wanted: Vec<(&Arc<Source>, Vec<u64>)> = Vec::new();
    for (part, sample) in samples.filter(|(part, _)| part.source.filling().is_some()) {
        let items = part.range(sample);
        match wanted.iter_mut().find(|(source, _)| Arc::ptr_eq(source, &part.source)) {
            Some((_, wanted)) => wanted.extend(items),
            None => wanted.push((&part.source, items.collect())),
        }
    }
    wanted.into_iter().try_for_each(|(source, items)| source.bring(items))
}

/// Returns the classes on one side only; empty if the classes of a source are unknown.
pub(super) fn gaps(training: &[SourcePart], held_out: &[SourcePart]) -> ClassGaps {
    let mut sides = ClassSides::default();
    let sides_of = [(training, &mut sides.trained), (held_out, &mut sides.held_out)];
    for (parts, classes) in sides_of {
        for part in parts.iter().filter(|part| part.items() > 0) {
            let Some(labels) = part.source.labels() else { return ClassGaps::default() };
            for label in part.places().filter_map(|place| labels.get(place as usize)) {
                count(classes, *label);
            }
        }
    }
    sides.gaps()
}

impl SourcePart {
    /// Splits a source into its training part and its held-out share: the end of its tokens, or the last images or labelled texts of each class. The order of a folder's
    /// images gives its end a share of each class.
    pub(super) fn divided(
        source: &Arc<Source>,
        format: DataFormat,
        share: f64,
        shape: &SampleShape,
    ) -> (Self, Self) {
        let items = source.items();
        // The cast saturates.
        let kept = items - (items as f64 * share) as u64;
        let by_class = match shape {
            SampleShape::Image(_) if format == DataFormat::Images => None,
            SampleShape::Image(_) | SampleShape::Labelled(_) => source.held_out(items - kept),
            _ => None,
        };
        let (trained, held_out) = match by_class {
            Some(held_out) => {
                (Items::Trained(items - held_out.len(), held_out.clone()), Items::HeldOut(held_out))
            }
            None => (Items::Range(0..kept), Items::Range(kept..items)),
        };
        let part = |items| Self { source: Arc::clone(source), items, shape: shape.clone() };
        (part(trained), part(held_out))
    }

    /// Returns all of a source.
    pub(super) fn whole(source: &Arc<Source>, shape: &SampleShape) -> Self {
        let (items, shape) = (Items::Range(0..source.items()), shape.clone());
        Self { source: Arc::clone(source), items, shape }
    }

    /// Returns the number of tokens or images.
    pub(super) fn items(&self) -> u64 {
        match &self.items {
            Items::Range(range) => range.end - range.start,
            Items::Trained(images, _) => *images,
            Items::HeldOut(held_out) => held_out.len(),
        }
    }

    /// Returns the number of whole samples.
    pub(super) fn samples(&self) -> u64 {
        self.shape.samples(self.items())
    }

    /// Hashes which items of the source it has.
    pub(super) fn hash_into(&self, hasher: &mut blake3::Hasher) {
        hasher.update(&self.items().to_le_bytes());
        // All other parts hold out their end.
        if let Items::Trained(_, held_out) | Items::HeldOut(held_out) = &self.items {
            held_out.hash_into(hasher);
        }
    }

    /// Returns its catalogue entry for other workers, once it is prepared.
    pub(super) fn listed(&self) -> ListedSource {
        let steps = match &self.items {
            Items::Range(_) => Vec::new(),
            Items::Trained(_, held_out) | Items::HeldOut(held_out) => held_out.steps(),
        };
        ListedSource { held_out: steps, ..self.source.listed() }
    }

    /// Replaces `into` with a sample as stored in the shard.
    pub(super) fn read(&self, sample: u64, into: &mut Vec<u8>) -> Result<(), DataError> {
        into.clear();
        self.source.read(self.range(sample), into)
    }

    /// Returns the range of a sample in the source.
    pub(super) fn range(&self, sample: u64) -> Range<u64> {
        let items = self.shape.items(sample);
        match &self.items {
            Items::Range(range) => range.start + items.start..range.start + items.end,
            // Each image is a sample.
            Items::Trained(..) | Items::HeldOut(_) => {
                let place = self.place(sample);
                place..place + 1
            }
        }
    }

    /// Returns the index of an item in the source.
    fn place(&self, item: u64) -> u64 {
        match &self.items {
            Items::Range(range) => range.start + item,
            Items::Trained(_, held_out) => held_out.trained_at(item),
            Items::HeldOut(held_out) => held_out.at(item),
        }
    }

    /// Returns the index of each item in the source.
    fn places(&self) -> impl Iterator<Item = u64> {
        (0..self.items()).map(|item| self.place(item))
    }
}
