//! Identity and the control channel over real QUIC endpoints on the loopback interface.

#![allow(
    clippy::unwrap_used,
    reason = "this is all test code, beyond the functions that are marked as tests"
)]

mod control;
mod enrolment;
mod net;
mod probe;
mod strangers;
