//! The workers' reports about the encoding of their frames.

use longhaul_proto::control::message::Encoding;

/// An f64 with a scale of its own.
const VALUE_BITS_MAX: f32 = 128.0;

/// Returns a worker's report if it is possible: a density is a share, and JSON has no infinity.
#[must_use]
pub fn plausible(said: Option<Encoding>) -> Option<Encoding> {
    said.filter(|said| {
        (0.0..=1.0).contains(&said.density) && (0.0..=VALUE_BITS_MAX).contains(&said.value_bits)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_encoding_that_cannot_be_is_none() {
        let said = |density, value_bits| plausible(Some(Encoding { density, value_bits })).is_some();
        assert!(said(1.0, 32.0) && said(0.015, 1.5) && said(0.0, 0.0));
        assert!(!said(1.5, 4.0) && !said(-0.1, 4.0) && !said(0.5, f32::INFINITY) && !said(f32::NAN, 4.0));
    }
}
