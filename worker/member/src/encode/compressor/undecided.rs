//! Memories from before compressions that may become void.

use std::collections::BTreeMap;

use longhaul_common::id::{FragmentId, Round};

use crate::encode::error_feedback::ErrorFeedback;

/// One for each fragment of an undecided round. Those of decided rounds leave their buffers to others, so that a run has as many as fragments in flight.
#[derive(Debug, Default)]
pub struct UndecidedMemories {
    before: BTreeMap<FragmentId, (Round, ErrorFeedback)>,
    spare: Vec<ErrorFeedback>,
}

impl UndecidedMemories {
    /// Keeps a fragment's memory from before this round.
    pub fn insert(&mut self, round: Round, fragment: FragmentId, memory: ErrorFeedback) {
        self.before.insert(fragment, (round, memory));
    }

    /// Returns the memory from before this very round, and forgets it; others are forgotten as well.
    pub fn take(&mut self, round: Round, fragment: FragmentId) -> Option<ErrorFeedback> {
        self.before.remove(&fragment).filter(|(of, _)| *of == round).map(|(_, memory)| memory)
    }

    /// Forgets the memory of a fragment that another member uploads.
    pub fn forget(&mut self, fragment: FragmentId) {
        self.before.remove(&fragment);
    }

    /// Notes that no round up to this one can become void.
    pub fn decided(&mut self, round: Round) {
        let decided = self.before.extract_if(.., |_, (of, _)| *of <= round);
        self.spare.extend(decided.map(|(_, (_, memory))| memory));
    }

    /// Returns buffers with arbitrary values for the next memory of a fragment: its own, or spare ones.
    pub fn take_buffer(&mut self, fragment: FragmentId) -> ErrorFeedback {
        let own = self.before.remove(&fragment).map(|(_, memory)| memory);
        own.or_else(|| self.spare.pop()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decided_rounds_leave_their_buffers_to_others_and_cannot_be_retracted() {
        let mut memories = UndecidedMemories::default();
        for round in 0..6 {
            for fragment in (0..4).filter(|fragment| fragment % 2 == round % 2).map(FragmentId) {
                let mut buffer = memories.take_buffer(fragment);
                assert_eq!(buffer.residual.is_empty(), round == 0, "r{round}");
                buffer.residual.resize(8, 0.0);
                memories.insert(Round(u64::from(round)), fragment, buffer);
            }
            memories.decided(Round(u64::from(round)));
            assert_eq!((memories.before.len(), memories.spare.len()), (0, 2));
        }
        assert_eq!(memories.take(Round(5), FragmentId(1)), None);
        let buffer = memories.take_buffer(FragmentId(1));
        memories.insert(Round(6), FragmentId(1), buffer);
        assert_eq!(memories.take(Round(6), FragmentId(1)).map(|memory| memory.residual.len()), Some(8));
    }
}
