//! What `deploy` starts coordinators with, read by the coordinator's own parsers.

mod compose;
mod image;
mod kubernetes;
mod machines;
mod metrics;
mod pages;
