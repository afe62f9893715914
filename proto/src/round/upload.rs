//! Collection of one fragment's local updates by its uploader.

use std::collections::BTreeMap;

use bytes::Bytes;
use longhaul_common::id::{Generation, Round, WorkerId};

/// The newest local update of each member, and the state of their compression.
#[derive(Debug)]
pub(super) struct Upload {
    /// One slot per sender.
    locals: BTreeMap<WorkerId, (Round, u32, Bytes)>,
    /// Last round whose site contribution was started in this generation.
    pub begun: Option<Round>,
    /// A compression whose round is incomplete here.
    pub compression: Option<Compression>,
    /// Whether the caller may keep a residual of this fragment.
    pub keeps_residual: bool,
    /// Last round in which this member sent its slice to its uploader in this generation.
    pub offered: Option<Round>,
}

/// The last compression of a fragment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Compression {
    pub generation: Generation,
    pub round: Round,
    /// Weight of the site.
    pub weight: u32,
    /// Whether the caller has replied.
    pub answered: bool,
}

/// A rejected local update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NotTaken {
    Duplicate,
    Late,
}

impl Upload {
    pub fn new() -> Self {
        // Only the caller knows of residuals from an earlier process.
        Self { locals: BTreeMap::new(), begun: None, compression: None, keeps_residual: true, offered: None }
    }

    /// Discards updates of the previous generation.
    pub fn begin_generation(&mut self) {
        self.locals.clear();
        self.begun = None;
        self.offered = None;
    }

    /// Takes a member's update; a newer one replaces an older one, whose round is complete at the sender.
    pub fn take(&mut self, from: WorkerId, round: Round, weight: u32, body: Bytes) -> Result<(), NotTaken> {
        let newest = self.locals.get(&from).map(|(newest, ..)| *newest).max(self.begun);
        match newest {
            Some(newest) if newest == round => Err(NotTaken::Duplicate),
            Some(newest) if newest > round => Err(NotTaken::Late),
            _ => {
                self.locals.insert(from, (round, weight, body));
                Ok(())
            }
        }
    }

    pub fn has(&self, from: WorkerId, round: Round) -> bool {
        self.locals.get(&from).is_some_and(|(newest, ..)| *newest == round)
    }

    /// Removes and returns a member's update of a round.
    pub fn give(&mut self, from: WorkerId, round: Round) -> Option<(u32, Bytes)> {
        let (_, weight, body) = self.locals.remove(&from).filter(|(newest, ..)| *newest == round)?;
        Some((weight, body))
    }

    /// Returns the number of updates in memory.
    pub fn held(&self) -> usize {
        self.locals.len()
    }

    /// Drops updates of complete rounds.
    pub fn forget_before(&mut self, round: Round) {
        self.locals.retain(|_, (newest, ..)| *newest >= round);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const W1: WorkerId = WorkerId(1);

    #[test]
    fn one_update_of_a_sender_is_kept_and_it_is_the_newest() {
        let mut upload = Upload::new();
        let mut take = |round: u64| upload.take(W1, Round(round), 1, Bytes::new());
        assert_eq!(take(4), Ok(()));
        assert_eq!(take(4), Err(NotTaken::Duplicate));
        assert_eq!(take(3), Err(NotTaken::Late));
        assert_eq!(take(6), Ok(()));
        assert_eq!(upload.held(), 1);
        assert!(upload.has(W1, Round(6)) && !upload.has(W1, Round(4)));
        upload.forget_before(Round(7));
        assert_eq!(upload.held(), 0);
    }

    #[test]
    fn what_was_compressed_is_not_kept_again() {
        let mut upload = Upload::new();
        upload.begun = Some(Round(4));
        assert_eq!(upload.take(W1, Round(4), 1, Bytes::new()), Err(NotTaken::Duplicate));
        assert_eq!(upload.held(), 0);
        upload.begin_generation();
        assert_eq!(upload.take(W1, Round(4), 1, Bytes::new()), Ok(()));
    }
}
