//! θ_g: the parameters that are bit-identical on every member.

use std::sync::Arc;

use longhaul_common::id::Round;
use longhaul_common::plan::FragmentLayout;
use longhaul_proto::codec::Decoder;
use longhaul_proto::control::message::Hash;
use longhaul_proto::round::FragmentResult;

use super::mean::add_result;
use super::outer::OuterStep;

/// The synchronised parameters on the host, and the round that they have reached.
///
/// They are behind an `Arc` that is copied on write, so a donor or a checkpoint reads a consistent copy while training goes on.
#[derive(Clone, Debug)]
pub struct Replica {
    layout: FragmentLayout,
    parameters: Arc<Vec<f32>>,
    /// The outer optimiser's momentum; empty where it has none.
    momentum: Arc<Vec<f32>>,
    next_round: Round,
}

impl Replica {
    /// The state before `next_round`, without momentum.
    #[must_use]
    pub fn new(layout: FragmentLayout, parameters: Vec<f32>, next_round: Round) -> Self {
        Self { layout, parameters: Arc::new(parameters), momentum: Arc::default(), next_round }
    }

    /// The same with this outer momentum: one value for each parameter, or none.
    #[must_use]
    pub fn with_momentum(self, momentum: Vec<f32>) -> Self {
        Self { momentum: Arc::new(momentum), ..self }
    }

    /// The outer optimiser's momentum: `layout.values` of them, or none.
    #[must_use]
    pub fn momentum(&self) -> &Arc<Vec<f32>> {
        &self.momentum
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

    /// An outer step of every fragment that a round's results change. The same bits on every member. Answers how many updates did not
    /// decode and were left out.
    pub fn apply_delta(
        &mut self,
        round: Round,
        results: &[FragmentResult],
        step: OuterStep,
        decoder: &mut Decoder,
    ) -> usize {
        let parameters = Arc::make_mut(&mut self.parameters);
        let momentum = Arc::make_mut(&mut self.momentum);
        if step.has_memory() {
            momentum.resize(parameters.len(), 0.0);
        }
        let (mut damaged, mut mean) = (0, Vec::new());
        for (fragment, result) in self.layout.fragments().zip(results) {
            if result.contributors.is_empty() {
                continue;
            }
            let range = self.layout.range(fragment);
            mean.clear();
            mean.resize(range.len(), 0.0);
            damaged += add_result(result, 1.0, decoder, &mut mean);
            let memory = if step.has_memory() { &mut momentum[range.clone()] } else { &mut [] };
            step.apply(&mut parameters[range], memory, &mean);
        }
        self.next_round = round.next();
        damaged
    }

    /// An outer step of all parameters with the mean of a whole round.
    pub fn apply_mean(&mut self, round: Round, mean: &[f32], step: OuterStep) {
        let parameters = Arc::make_mut(&mut self.parameters);
        let momentum = Arc::make_mut(&mut self.momentum);
        if step.has_memory() {
            momentum.resize(parameters.len(), 0.0);
        }
        step.apply(parameters, momentum, mean);
        self.next_round = round.next();
    }

    /// Takes over what the device computed from a round's result (dense).
    pub fn advance(&mut self, round: Round, parameters: Vec<f32>) {
        self.parameters = Arc::new(parameters);
        self.next_round = round.next();
    }
}

/// BLAKE3 over the hashes ([`hash_of`]) of several vectors: names a state of more than parameters.
#[must_use]
pub fn hash_of_buffers(buffers: &[Arc<Vec<f32>>]) -> Hash {
    let hashes: Vec<u8> = buffers.iter().flat_map(|buffer| hash_of(buffer)).collect();
    *blake3::hash(&hashes).as_bytes()
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
