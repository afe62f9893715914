//! The owner's reduction of contributions: refusals, the mean, and the published result.

pub mod backups;
pub mod guard;
pub mod mean;
pub mod reducer;
pub mod refusals;
pub mod robust;
pub mod union;
