//! θ_g: the parameters that are bit-identical on every member.

use std::sync::Arc;

use anyhow::{Context, Result};
use bytes::Bytes;
use longhaul_common::id::{FragmentId, Round};
use longhaul_common::plan::FragmentLayout;
use longhaul_proto::codec::Decoder;
use longhaul_proto::control::message::Hash;
use longhaul_proto::result::RoundResult;

/// The synchronised parameters on the host, and the round that they have reached.
///
/// They are behind an `Arc` that is copied on write, so a donor or a checkpoint reads a consistent copy while training goes on.
#[derive(Clone, Debug)]
pub struct Replica {
    layout: FragmentLayout,
    parameters: Arc<Vec<f32>>,
    next_round: Round,
}

impl Replica {
    /// The state before `next_round`.
    #[must_use]
    pub fn new(layout: FragmentLayout, parameters: Vec<f32>, next_round: Round) -> Self {
        Self { layout, parameters: Arc::new(parameters), next_round }
    }

    /// The parameters: `layout.values` of them.
    #[must_use]
    pub fn parameters(&self) -> &Arc<Vec<f32>> {
        &self.parameters
    }

    /// The first round that is not in them.
    #[must_use]
    pub fn next_round(&self) -> Round {
        self.next_round
    }

    /// BLAKE3 over the parameters as little-endian f32.
    #[must_use]
    pub fn hash(&self) -> Hash {
        hash_of(&self.parameters)
    }

    /// θ_g − θ: what local training has changed, with the sign of a gradient.
    #[must_use]
    pub fn delta(&self, local: &[f32]) -> Vec<f32> {
        self.parameters.iter().zip(local).map(|(global, local)| global - local).collect()
    }

    /// θ_g ← θ_g − rate·mean, for every fragment of a round. The same bits on every member.
    ///
    /// # Errors
    /// A result that does not decode; the parameters are then worthless.
    pub fn apply_delta(
        &mut self,
        round: Round,
        results: &[(FragmentId, Bytes)],
        rate: f32,
        decoder: &mut Decoder,
    ) -> Result<()> {
        let parameters = Arc::make_mut(&mut self.parameters);
        add_means(self.layout, results, -rate, decoder, parameters)?;
        self.next_round = round.next();
        Ok(())
    }

    /// Takes over what the device computed from a round's result (dense).
    pub fn advance(&mut self, round: Round, parameters: Vec<f32>) {
        self.parameters = Arc::new(parameters);
        self.next_round = round.next();
    }
}

/// Adds `scale` times the weighted mean of each fragment to its part of `values`.
///
/// # Errors
/// A result that does not decode.
pub fn add_means(
    layout: FragmentLayout,
    results: &[(FragmentId, Bytes)],
    scale: f32,
    decoder: &mut Decoder,
    values: &mut [f32],
) -> Result<()> {
    for (fragment, bytes) in results {
        RoundResult::parse(bytes)
            .and_then(|result| result.add_mean(scale, decoder, &mut values[layout.range(*fragment)]))
            .with_context(|| format!("apply the result of {fragment}"))?;
    }
    Ok(())
}

/// BLAKE3 over values as little-endian f32.
#[must_use]
pub fn hash_of(values: &[f32]) -> Hash {
    /// Values hashed at a time: 64 KiB keeps BLAKE3's wide code path busy.
    const BLOCK: usize = 16 * 1024;
    let mut hasher = blake3::Hasher::new();
    let mut block = Vec::with_capacity(BLOCK * 4);
    for values in values.chunks(BLOCK) {
        block.clear();
        values.iter().for_each(|value| block.extend_from_slice(&value.to_le_bytes()));
        hasher.update(&block);
    }
    *hasher.finalize().as_bytes()
}
