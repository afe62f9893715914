//! Views for the status page and its clients.

pub(super) mod member_status;
pub(super) mod overview;
pub(super) mod problems;
pub(super) mod snapshot;
pub(super) mod status;
