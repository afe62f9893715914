//! Network formats, and the pure protocol logic behind them.
#![forbid(unsafe_code)]

pub mod checkpoint;
pub mod codec;
pub mod control;
pub mod frame;
pub mod identity;
pub mod little_endian;
pub mod masking;
pub mod round;
pub mod stored_values;
#[cfg(feature = "otel")]
pub mod telemetry;
pub mod transport;
