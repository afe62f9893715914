//! From updates to what leaves the site: compression with error feedback, the cosine transform's tiles, noise, and audits of frames.

pub mod audit;
pub mod compressor;
pub mod error_feedback;
pub mod mechanism;
pub mod pool;
pub mod tiling;
