//! Congestion control for long links with random loss.
//!
//! A model of the path (delivery rate, round trip, loss) determines the bytes in flight, after BBRv3
//! (draft-ietf-ccwg-bbr). Two things differ because of the environment:
//!
//! * quinn-proto's pacer follows the window, and a controller cannot set a pacing rate. A target rate is
//!   therefore expressed as a window of `rate × smoothed round trip` (Little's law), with the *current* round
//!   trip, which keeps the rate when the opposite direction's queue lengthens it.
//! * Our links lose 0.1–1 % of their packets at random. Loss counts as congestion only where it exceeds,
//!   beyond chance, the path's own loss (`loss`).

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
