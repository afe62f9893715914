//! Synchronisers with real devices.

mod strategies;
