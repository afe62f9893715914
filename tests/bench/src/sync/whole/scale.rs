//! The model of whole runs, and links scaled to it (decision 0019).

use std::time::Duration;

use anyhow::Result;
use longhaul_emulator::LinkConfig;

use crate::runs::training::{Copies, Shape};
use crate::sync::small;

/// Small enough that 1500 steps take less than a minute on one thread.
pub const WHOLE: Shape = Shape { layers: 3, width: 96, heads: 3, context: 128, tied_embeddings: true };
/// With so few sequences a step computes for about as long, per exchanged parameter, as one of the larger
/// model.
pub const COPIES: Copies<'static> = Copies { batch: 4, micro_batch: 4, ..Copies::WHOLE };
/// Scale of the best learning rates for four times as many sequences per step: the square root.
pub const RATE_SCALE: f64 = 0.5;

/// Bits per parameter and step of a link of 1 Mbit/s: those of the model of `gpt` with its ten million
/// parameters.
const BITS_OF_A_MBIT: f64 = 0.067;
/// Seconds of such a step.
const STEP_S: f64 = 0.73;
/// One-way delay relative to such a step.
const DELAY_S: f64 = 0.025;
/// One packet in a thousand.
const LOSS: f64 = 0.001;
/// Packet size: packets do not shrink with the model (decision 0019).
const PACKET_BYTES: u64 = 1500;

/// Returns the bits per parameter and step of a link of this rate.
pub fn bits(rate_mbit: f64) -> f64 {
    BITS_OF_A_MBIT * rate_mbit
}

/// Returns each direction of the scaled link for this rate, where a step takes `local_step_s` without
/// exchange.
pub fn link(rate_mbit: f64, local_step_s: f64) -> Result<LinkConfig> {
    let bits_per_s = bits(rate_mbit) * small::parameters(WHOLE) as f64 / local_step_s;
    Ok(LinkConfig {
        rate_bytes_per_s: (bits_per_s / 8.0) as u64,
        delay: Duration::try_from_secs_f64(DELAY_S * local_step_s / STEP_S)?,
        loss: LOSS,
        burst_bytes: PACKET_BYTES,
        ..LinkConfig::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runs::gpt::GPT;

    #[test]
    fn a_link_carries_the_bits_of_its_row_and_round_trips_are_the_same_part_of_a_step() {
        let link = link(10.0, 0.05).unwrap();
        let carried = link.rate_bytes_per_s as f64 * 8.0 * 0.05 / small::parameters(WHOLE) as f64;
        assert!((carried / 0.67 - 1.0).abs() < 1e-3, "{carried}");
        assert!((link.delay.as_secs_f64() / 0.05 - 0.025 / 0.73).abs() < 1e-6, "{link:?}");
    }

    #[test]
    fn rows_are_named_after_the_links_of_the_larger_model() {
        let bits_of_a_step = 1e6 * STEP_S / small::parameters(GPT) as f64;
        assert!((bits_of_a_step / bits(1.0) - 1.0).abs() < 0.005, "{bits_of_a_step}");
        assert_eq!(small::parameters(WHOLE), 372_576);
    }
}
