//! What the shards of a source are called.

use super::filling::Preparing;
use super::named::Named;

/// Of all shards of a source.
#[derive(Debug)]
pub(super) enum Names {
    Known(Vec<Named>),
    /// As long as they are made, of some none.
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
