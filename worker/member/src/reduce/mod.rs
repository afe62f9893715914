//! What an owner makes of contributions: who is refused, the mean, and what of it is published.

pub mod backups;
pub mod guard;
pub mod mean;
pub mod reducer;
pub mod refusals;
pub mod robust;
pub mod union;
