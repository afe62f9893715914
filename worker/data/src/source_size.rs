//! Counts of a source, for people.

use std::collections::BTreeMap;

use super::empty_classes::EmptyClasses;
use super::notes::Notes;
use super::odd_texts::OddTexts;
use super::passed::PassedOver;
use super::same_content::SameContent;
use super::text_counts::{ByteOrderMarks, CarriageReturns, UnknownTokens};

/// The size of a source.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SourceSize {
    /// Files.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Records that are good.
    pub records: u64,
    /// Records that were left out.
    pub bad_records: u64,
    /// The first of these, with their places.
    pub bad_examples: Vec<String>,
    /// Tokens, or images.
    pub items: u64,
    /// Of tokens, those that are the tokenizer's unknown one.
    pub unknown: UnknownTokens,
    /// Of text, byte order marks that are characters of it.
    pub marks: ByteOrderMarks,
    /// Of plain text, lines that end with CR LF.
    pub carriage_returns: CarriageReturns,
    /// Other peculiarities.
    pub notes: Notes,
    /// Texts that are hardly meant.
    pub odd: OddTexts,
    /// Of images, how many each class has.
    pub classes: BTreeMap<u32, u64>,
    /// Of images, classes that have none, as far as that is known here.
    pub empty_classes: EmptyClasses,
    /// Files that have the content of others.
    pub same: SameContent,
    /// Shards.
    pub shards: u64,
    /// What else is there, and is not taken.
    pub passed: PassedOver,
}
