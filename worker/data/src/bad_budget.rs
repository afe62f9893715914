//! The budget of bad records of a source.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use super::DataError;
use super::piece::BadRecords;

/// Bad records of each file so far; several files are read at a time.
#[derive(Debug)]
pub(super) struct BadBudget {
    max: u64,
    files: Mutex<BTreeMap<usize, BadRecords>>,
}

impl BadBudget {
    pub(super) fn new(max: u64) -> Self {
        Self { max, files: Mutex::default() }
    }

    pub(super) fn max(&self) -> u64 {
        self.max
    }

    /// Adds bad records of the file with this index in the source.
    pub(super) fn has(&self, file: usize, more: &BadRecords) -> Result<(), DataError> {
        self.change(file, more, |known| known.add(more))
    }

    /// Sets the bad records of a complete file, which another process may have prepared.
    pub(super) fn has_all(&self, file: usize, all: &BadRecords) -> Result<(), DataError> {
        self.change(file, all, |known| *known = all.clone())
    }

    fn change(
        &self,
        file: usize,
        bad: &BadRecords,
        change: impl FnOnce(&mut BadRecords),
    ) -> Result<(), DataError> {
        if bad.count == 0 {
            return Ok(());
        }
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        change(files.entry(file).or_default());
        let mut all = BadRecords::default();
        files.values().for_each(|bad| all.add(bad));
        if all.count > self.max { Err(all.refused(self.max)) } else { Ok(()) }
    }
}
