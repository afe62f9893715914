//! Which worker is which part of which copy of the model.

pub(super) mod assembly;
pub(super) mod assign;
pub(super) mod slots;
