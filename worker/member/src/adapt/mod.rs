//! How many bits a value may take: what a bit costs on the links, what waits, and the chains to choose from.

pub mod backlog;
pub mod ladder;
pub mod rate;
