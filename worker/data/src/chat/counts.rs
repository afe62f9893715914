//! Reported counts of a source's conversations, or of its labelled texts.

use std::fmt;

use indicatif::HumanCount;
use serde::{Deserialize, Serialize};

use crate::counted::counted;

/// Counts of a piece, a file or a source. Lists store them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConversationCounts {
    /// Conversations in rows, or labelled texts.
    pub conversations: u64,
    /// Their messages; 0 of labelled texts.
    pub turns: u64,
    /// Texts of theirs that are trained on, before any is left out; 0 of labelled texts.
    #[serde(default)]
    pub answers: u64,
    /// Their tokens in rows.
    pub tokens: u64,
    /// Those that are targets of the loss.
    pub trained: u64,
    /// Conversations whose end was cut off.
    pub cut: u64,
    /// Conversations longer than a sequence that were left out, or had nothing left to train on.
    pub left_out: u64,
}

impl ConversationCounts {
    pub(crate) fn add(&mut self, other: &Self) {
        let Self { conversations, turns, answers, tokens, trained, cut, left_out } = other;
        self.conversations += conversations;
        self.turns += turns;
        self.answers += answers;
        self.tokens += tokens;
        self.trained += trained;
        self.cut += cut;
        self.left_out += left_out;
    }

    /// Whether they are of labelled texts, and there are some.
    #[must_use]
    pub fn are_of_texts(&self) -> bool {
        self.conversations > 0 && self.turns == 0
    }

    /// Whether there are none.
    pub(crate) fn are_zero(&self) -> bool {
        *self == Self::default()
    }
}

/// `3 conversations of 9 turns (1 cut off, 0 left out), 120 tokens (55.0 % trained)`; `3 labelled texts (1 cut off, 0 left out), 120 tokens`
impl fmt::Display for ConversationCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { conversations, turns, tokens, trained, cut, left_out, .. } = *self;
        if self.are_of_texts() {
            return write!(
                f,
                "{} ({} cut off, {} left out), {}",
                counted(conversations, "labelled text"),
                HumanCount(cut),
                HumanCount(left_out),
                counted(tokens, "token"),
            );
        }
        let share = 100.0 * trained as f64 / tokens.max(1) as f64;
        write!(
            f,
            "{} of {} ({} cut off, {} left out), {} ({share:.1} % trained)",
            counted(conversations, "conversation"),
            counted(turns, "turn"),
            HumanCount(cut),
            HumanCount(left_out),
            counted(tokens, "token"),
        )
    }
}
