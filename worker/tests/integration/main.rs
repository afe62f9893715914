//! Tests of the worker as a process and of the crate's public interface: one binary, as each links libtorch.

#![allow(clippy::unwrap_used, reason = "this is all test code")]

mod adapters;
mod class_adapters;
mod classification;
mod columns;
mod data_command;
#[cfg(feature = "remote-data")]
mod data_in_s3;
mod decoders;
mod deploy;
mod doctor;
mod encoders;
mod evaluate;
mod evaluate_labelled;
mod families;
mod for_libtorch;
mod optimisers;
#[cfg(feature = "otel")]
mod otel;
mod pytorch;
