//! From updates to a site's frames: compression with error feedback, the cosine transform's tiles, noise, and audits.

pub mod audit;
pub mod compressor;
pub mod error_feedback;
pub mod mechanism;
pub mod pool;
pub mod tiling;
pub mod visible;
