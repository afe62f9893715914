//! Reported counts of a source.

use std::collections::BTreeMap;

use super::chat::ConversationCounts;
use super::empty_classes::EmptyClasses;
use super::notes::Notes;
use super::odd_texts::OddTexts;
use super::passed::PassedOver;
use super::piece::BadRecords;
use super::same_content::SameContent;
use super::text_counts::{ByteOrderMarks, CarriageReturns, UnknownTokens};

/// The size of a source.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SourceSize {
    /// Files.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Good records.
    pub records: u64,
    /// Skipped records.
    pub bad: BadRecords,
    /// Tokens, images, or sequences of conversations.
    pub items: u64,
    /// Counts of conversations.
    pub conversations: ConversationCounts,
    /// Unknown tokens.
    pub unknown: UnknownTokens,
    /// Byte order marks within texts.
    pub marks: ByteOrderMarks,
    /// Lines of plain texts that end with CR LF.
    pub carriage_returns: CarriageReturns,
    /// Other peculiarities.
    pub notes: Notes,
    /// Probably unintended texts.
    pub odd: OddTexts,
    /// Images of each class.
    pub classes: BTreeMap<u32, u64>,
    /// Classes without images, as far as known here.
    pub empty_classes: EmptyClasses,
    /// Files with equal content.
    pub same: SameContent,
    /// Shards.
    pub shards: u64,
    /// Files left out.
    pub passed: PassedOver,
}
