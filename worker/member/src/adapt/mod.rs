//! Bits per value: their cost on the links, the backlog, and the choice of chains.

pub mod backlog;
pub mod ladder;
pub mod rate;
