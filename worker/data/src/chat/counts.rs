//! Reported counts of a source's conversations.

use std::fmt;

use indicatif::HumanCount;
use serde::{Deserialize, Serialize};

use crate::counted::counted;

/// Counts of a piece, a file or a source. Lists store them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConversationCounts {
    /// Conversations in rows.
    pub conversations: u64,
    /// Their messages.
    pub turns: u64,
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
        let Self { conversations, turns, tokens, trained, cut, left_out } = other;
        self.conversations += conversations;
        self.turns += turns;
        self.tokens += tokens;
        self.trained += trained;
        self.cut += cut;
        self.left_out += left_out;
    }

    /// Whether there are none.
    pub(crate) fn are_zero(&self) -> bool {
        *self == Self::default()
    }
}

/// `3 conversations of 9 turns (1 cut off, 0 left out), 120 tokens (55.0 % trained)`
impl fmt::Display for ConversationCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { conversations, turns, tokens, trained, cut, left_out } = *self;
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
