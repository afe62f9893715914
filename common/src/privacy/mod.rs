//! How private a run is: what its noisy contributions tell about the data of the site that they are from.

mod accountant;
mod normal;

pub use accountant::GaussianAccountant;
