//! What the status page and its clients are shown.

pub(super) mod overview;
pub(super) mod problems;
pub(super) mod snapshot;
pub(super) mod status;
