//! The mixture of the sources, or why there is none.

use longhaul_common::config::{DataConfig, DataSource, TooLong};
use longhaul_common::mixture::Mixture;

use super::DataError;
use super::part::SourcePart;
use super::piece::BadRecords;
use super::sample::SampleShape;
use crate::counted::{counted, were};

/// Returns the mixture of the sources. With weights, each source needs a sample; without, at least one does.
pub(super) fn mixture(
    config: &DataConfig,
    sources: &[DataSource],
    training: &[SourcePart],
) -> Result<Mixture, DataError> {
    let too_short = |source_name: String, parts: &[SourcePart]| {
        let there: u64 = parts.iter().map(|part| part.source.items()).sum();
        if there == 0
            && let Some(found) = without_items(config, parts)
        {
            return DataError::Nothing { source_name, found };
        }
        let training = parts.iter().map(SourcePart::items).sum();
        match parts.first().map(|part| &part.shape) {
            Some(SampleShape::Tokens(length)) => {
                DataError::TooShort { source_name, tokens: there, training, needed: length + 1 }
            }
            Some(SampleShape::Masked(length, _)) => {
                DataError::TooShort { source_name, tokens: there, training, needed: *length }
            }
            Some(SampleShape::Rows(_)) => {
                DataError::TooFewConversations { source_name, sequences: there, training }
            }
            Some(SampleShape::Labelled(_)) => DataError::TooFewTexts { source_name, texts: there, training },
            _ => DataError::TooFewImages { source_name, images: there, training },
        }
    };
    let weights: Vec<f64> = sources.iter().filter_map(|source| source.weight).collect();
    if weights.is_empty() {
        let samples: Vec<u64> = training.iter().map(SourcePart::samples).collect();
        let names: Vec<&str> = training.iter().map(|part| part.source.name.as_str()).collect();
        let mixture = Mixture::by_samples(&samples).ok_or_else(|| too_short(names.join(", "), training))?;
        for (source, _) in names.iter().zip(&samples).filter(|(_, samples)| **samples == 0) {
            tracing::warn!(source, "a source is shorter than one sample and is not trained on");
        }
        return Ok(mixture);
    }
    if let Some(at) = training.iter().position(|part| part.samples() == 0) {
        return Err(too_short(training[at].source.name.clone(), &training[at..=at]));
    }
    Mixture::by_weights(&weights).ok_or_else(|| too_short("data.sources".to_owned(), training))
}

/// Describes the content of files without a single item; `None`: nothing to add.
fn without_items(config: &DataConfig, parts: &[SourcePart]) -> Option<String> {
    let (mut records, mut bad, mut files, mut bytes) = (0, BadRecords::default(), 0, 0);
    let mut left_out = 0;
    for size in parts.iter().map(|part| part.source.size()) {
        (files, bytes) = (files + size.files, bytes + size.bytes);
        records += size.records;
        bad.add(&size.bad);
        left_out += size.conversations.left_out;
    }
    if left_out > 0 {
        return Some(without_fitting(config, left_out));
    }
    if files > 0 && bytes == 0 {
        let its = if files == 1 { "its file".to_owned() } else { format!("each of its {files} files") };
        return Some(format!("{its} is empty (0 bytes); fetch it again, or name another one"));
    }
    let (count, examples) = (bad.count, bad.examples.join("; "));
    let (good, all_bad) = (counted(records, "record"), counted(count, "record"));
    match (records, count) {
        (0, 0) => parts.iter().all(|part| part.source.has_records()).then(|| {
            "its files have no records: there is no row behind a table's head, or no line of JSON".to_owned()
        }),
        (0, _) => Some(format!("of {all_bad} that {} read, none is good: {examples}", were(count))),
        (_, 0) => Some(format!("there is no token in the {good} that {} read", were(records))),
        _ => Some(format!(
            "there is no token in the {good} that {} read beside {count} bad: {examples}",
            were(records)
        )),
    }
}

/// Says why conversations, or labelled texts, were left out.
fn without_fitting(config: &DataConfig, left_out: u64) -> String {
    let were = were(left_out);
    if config.classification.is_some() {
        let texts = counted(left_out, "labelled text");
        return format!(
            "{texts} {were} left out, longer than a sequence: raise data.sequence_length, or say data.classification.too_long = \"cut\""
        );
    }
    let conversations = counted(left_out, "conversation");
    match config.conversations.as_ref().map(|settings| settings.too_long) {
        Some(TooLong::LeaveOut) => format!(
            "{conversations} {were} left out, longer than a sequence or without trained tokens in one: raise data.sequence_length, or say data.conversations.too_long = \"cut\""
        ),
        _ => format!(
            "{conversations} {were} left out, without trained tokens in a sequence's length: raise data.sequence_length, or say data.conversations.train_on = \"all\""
        ),
    }
}
