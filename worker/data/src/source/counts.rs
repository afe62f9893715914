//! Counts of a source's files.

use std::path::Path;

use longhaul_common::config::DataFormat;

use super::super::empty_classes::EmptyClasses;
use super::super::names::Names;
use super::super::piece::BadRecords;
use super::super::same_content::SameContent;
use super::super::source_size::SourceSize;
use super::super::text_counts::{ByteOrderMarks, CarriageReturns, TextCounts, UnknownTokens};
use super::{Made, Source};

impl Source {
    /// Returns its size.
    pub(in super::super) fn size(&self) -> SourceSize {
        let mut size = match &self.names {
            Names::Coming(coming) => coming.filling().size(),
            Names::Known(_) => self.listed_size(),
        };
        size.passed = self.passed.clone();
        if let Made::FromFiles { recipe, .. } = &self.made
            && !size.classes.is_empty()
        {
            size.empty_classes = EmptyClasses::of(&size.classes, recipe.classes());
        }
        size
    }

    /// Returns its size from its lists.
    fn listed_size(&self) -> SourceSize {
        let mut size =
            SourceSize { items: self.items(), shards: self.shards.len() as u64, ..SourceSize::default() };
        let (mut bad, mut counts) = (BadRecords::default(), TextCounts::default());
        let is_text =
            matches!(&self.made, Made::FromFiles { recipe, .. } if recipe.format == DataFormat::Text);
        for file in self.files() {
            size.files += 1;
            size.bytes += file.bytes;
            let records = file.list.pieces.iter().map(|piece| piece.records).sum::<u64>();
            let mut of_file = file.list.counts;
            // A text is one record, however many parts it was read in.
            if is_text {
                of_file.odd = of_file.odd.of_one_text(records);
            }
            size.records += if is_text { records.min(1) } else { records };
            bad.add(&file.list.bad);
            counts.add(&of_file);
            size.conversations.add(&file.list.conversations);
            size.notes.add(&file.list.notes);
            for (class, images) in &file.list.classes {
                *size.classes.entry(*class).or_default() += images;
            }
        }
        size.bad = bad;
        size.same = SameContent::of(self.contents());
        size.marks = ByteOrderMarks(counts.byte_order_marks);
        size.carriage_returns = CarriageReturns(counts.carriage_returns);
        let is_chat = matches!(&self.made, Made::FromFiles { recipe, .. } if recipe.chat.is_some());
        let texts = if is_chat { size.conversations.answers } else { size.records };
        size.odd = counts.odd.among(texts, is_text);
        if let Made::FromFiles { tokenizer, recipe, .. } = &self.made {
            let are_rows = recipe.chat.is_some() || recipe.labelling.is_some();
            let all = if are_rows { size.conversations.tokens } else { size.items };
            size.unknown = UnknownTokens::of(&counts, all, tokenizer.unknown(), &recipe.separator);
        }
        size
    }

    /// Returns the class of each image, in order; `None`: unknown here, or not listed by an earlier version.
    pub(in super::super) fn labels(&self) -> Option<Vec<u32>> {
        let labels: Vec<u32> = match &self.names {
            Names::Coming(coming) => coming.filling().labels(),
            Names::Known(_) => self.files().iter().flat_map(|file| &file.list.labels).copied().collect(),
        };
        (labels.len() as u64 == self.items()).then_some(labels)
    }

    /// Returns its files that have shards, with the hashes of these.
    pub(in super::super) fn contents(&self) -> impl Iterator<Item = (&Path, Vec<&str>)> {
        let files = self.files().iter().map(|file| {
            let became: Vec<&str> = file.list.pieces.iter().map(|piece| piece.hash.as_str()).collect();
            (file.file.path(), became)
        });
        files.filter(|(_, became)| !became.is_empty())
    }
}
