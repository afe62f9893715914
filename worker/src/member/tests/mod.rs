//! Tests of synchronisers with real devices.

mod strategies;
