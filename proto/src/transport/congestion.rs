//! Congestion control for long links with random loss.
//!
//! A model of the path (delivery rate, round trip, loss) decides how much may be in flight, after BBRv3
//! (draft-ietf-ccwg-bbr). Two things differ, both because of where it runs:
//!
//! * quinn-proto's pacer follows the window, and a controller cannot set a pacing rate. So a wanted rate is
//!   expressed as a window of `rate × smoothed round trip` (Little's law): the round trip that is measured
//!   *now*, which keeps the rate when the opposite direction's queue lengthens it.
//! * A link of ours loses 0.1–1 % of its packets at random. Loss counts as congestion only where it exceeds,
//!   beyond chance, what the path loses anyway (`loss`).

mod ack_aggregation;
mod bandwidth;
mod cycle;
mod full_pipe;
mod loss;
mod min_rtt;
mod model;
mod rate_controller;
mod rate_sample;
mod round;
mod windowed_max;

pub use rate_controller::{RateController, RateControllerConfig};
