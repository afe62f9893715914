//! What of a source is trained on, or held out.

use std::ops::Range;
use std::sync::Arc;

use longhaul_common::config::DataFormat;

use super::class_gaps::{ClassSides, count};
use super::held_out::HeldOut;
use super::lent::ListedSource;
use super::sample::SampleShape;
use super::source::Source;
use super::{ClassGaps, DataError};

/// Items of a source that are used as samples: tokens or images.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) source: Arc<Source>,
    items: Items,
    pub(super) shape: SampleShape,
}

/// Which items those are.
#[derive(Clone, Debug)]
enum Items {
    /// One behind the other.
    Range(Range<u64>),
    /// So many images, but for those that are held out between them.
    Trained(u64, HeldOut),
    /// Those.
    HeldOut(HeldOut),
}

/// Decodes samples that are read next, where they are not yet.
pub(super) fn bring<'a>(samples: impl Iterator<Item = (&'a Part, u64)>) -> Result<(), DataError> {
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

/// Classes that are on one side alone; nothing where the classes of a source are not known.
pub(super) fn gaps(training: &[Part], held_out: &[Part]) -> ClassGaps {
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

impl Part {
    /// What is trained on of a source, and the share of it that is held out: the end of its tokens, or the last images of each class. A folder's images are in such an order that their end has
    /// its share of each class.
    pub(super) fn divided(
        source: &Arc<Source>,
        format: DataFormat,
        share: f64,
        shape: &SampleShape,
    ) -> (Self, Self) {
        let items = source.items();
        // A float that is too large becomes the largest integer.
        let kept = items - (items as f64 * share) as u64;
        let by_class = match shape {
            SampleShape::Image(_) if format != DataFormat::Images => source.held_out(items - kept),
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

    /// All of a source.
    pub(super) fn whole(source: &Arc<Source>, shape: &SampleShape) -> Self {
        let (items, shape) = (Items::Range(0..source.items()), shape.clone());
        Self { source: Arc::clone(source), items, shape }
    }

    /// Tokens or images.
    pub(super) fn items(&self) -> u64 {
        match &self.items {
            Items::Range(range) => range.end - range.start,
            Items::Trained(images, _) => *images,
            Items::HeldOut(held_out) => held_out.len(),
        }
    }

    /// Whole samples.
    pub(super) fn samples(&self) -> u64 {
        self.shape.samples(self.items())
    }

    /// Names what is trained on of a source.
    pub(super) fn hash_into(&self, hasher: &mut blake3::Hasher) {
        hasher.update(&self.items().to_le_bytes());
        // Of all others, the end is.
        if let Items::Trained(_, held_out) = &self.items {
            held_out.hash_into(hasher);
        }
    }

    /// What others are told of it, once it is prepared.
    pub(super) fn listed(&self) -> ListedSource {
        let steps = match &self.items {
            Items::Range(_) => Vec::new(),
            Items::Trained(_, held_out) | Items::HeldOut(held_out) => held_out.steps(),
        };
        ListedSource { held_out: steps, ..self.source.listed() }
    }

    /// A sample in the place of what `into` held, as a shard has it.
    pub(super) fn read(&self, sample: u64, into: &mut Vec<u8>) -> Result<(), DataError> {
        into.clear();
        self.source.read(self.range(sample), into)
    }

    /// Where a sample is in the source.
    pub(super) fn range(&self, sample: u64) -> Range<u64> {
        let items = self.shape.items(sample);
        match &self.items {
            Items::Range(range) => range.start + items.start..range.start + items.end,
            // Of images, each is a sample.
            Items::Trained(..) | Items::HeldOut(_) => {
                let place = self.place(sample);
                place..place + 1
            }
        }
    }

    /// Where an item is in the source.
    fn place(&self, item: u64) -> u64 {
        match &self.items {
            Items::Range(range) => range.start + item,
            Items::Trained(_, held_out) => held_out.trained_at(item),
            Items::HeldOut(held_out) => held_out.at(item),
        }
    }

    /// Where each item is in the source.
    fn places(&self) -> impl Iterator<Item = u64> {
        (0..self.items()).map(|item| self.place(item))
    }
}
