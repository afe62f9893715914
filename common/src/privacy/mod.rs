//! Privacy of a run: information about a site's data in its noisy contributions.

mod accountant;
mod normal;

pub use accountant::GaussianAccountant;
