//! Names of a source's shards.

use super::filling::Preparing;
use super::named::Named;

/// Names of all shards of a source.
#[derive(Debug)]
pub(super) enum Names {
    Known(Vec<Named>),
    /// In preparation: some have no name yet.
    Coming(Preparing),
}

impl Names {
    pub(super) fn get(&self, index: usize) -> Option<&Named> {
        match self {
            Self::Known(all) => all.get(index),
            Self::Coming(preparing) => preparing.filling().name(index),
        }
    }
}
