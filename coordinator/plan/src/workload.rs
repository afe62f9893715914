//! Work of a step of a run.

use std::collections::BTreeSet;
use std::ops::Range;

use longhaul_common::config::{Differences, ResultForm, RunConfig, SelectionRule, SyncConfig, ValueFormat};
use longhaul_common::id::Round;
use longhaul_common::memory::{PerMemory, parameter_bytes};
use longhaul_common::model::{BlockCost, ModelSpec};
use longhaul_proto::codec::chain::{downlink, uplink, warmup_downlink};
use longhaul_proto::codec::{CodecSpec, Selection, Threshold};
use serde::{Deserialize, Serialize};

use super::{ChainCost, GroupSums};

/// A run, as far as a plan has to know it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Workload {
    /// All blocks, in order.
    pub blocks: Vec<BlockCost>,
    /// Differences of activations that ranks remember, if any.
    pub differences: Option<Differences>,
    /// Bytes that a worker keeps of a parameter.
    pub parameter_bytes: PerMemory,
    /// Tokens in a sequence.
    pub sequence: u32,
    /// Sequences in a step, over all replicas.
    pub batch: u32,
    /// Sequences in a micro-batch.
    pub micro_batch: u32,
    /// Bytes of a value of the residual stream, or of its gradient, between ranks.
    pub boundary_bytes_per_value: f64,
    /// Values of a token embedding that is the output projection as well; none: it is not.
    pub tied_values: u64,
    /// Bytes in which its gradient goes back to the rank that holds it.
    pub tied_gradient_bytes: f64,
    /// Common work of a tensor group's members, where groups are in place of devices.
    pub sums: Option<GroupSums>,
    /// Exchange of an update.
    pub exchange: Exchange,
}

/// Exchange of a stage's sync group, after the warm-up.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Exchange {
    /// Bits of a parameter that a site contributes in a step,
    pub up_bits: f64,
    /// and bits of a parameter in a result, in a step: of all contributions together, where results have them side by side, for each of them.
    pub down_bits: f64,
    /// Whether a result has the contributions of all sites side by side.
    pub side_by_side: bool,
    /// Whether the exchange goes on beside computing.
    pub overlaps: bool,
    /// Whether gradients leave while back-propagation of the last micro-batch goes on.
    pub streams: bool,
    /// Steps between rounds: round trips come once in so many.
    pub every: f64,
    /// Steps in which all of the model is exchanged once.
    pub turns: f64,
    /// Exchanges of a round, one after the other.
    pub exchanges: f64,
    /// Where bits follow the link: at most so many, of a parameter and in a step. None: they are as they are.
    pub most_bits: Option<f64>,
    /// Where turns follow the link: at least so many steps in which all of the model is exchanged once. Otherwise as `turns`.
    pub turns_least: f64,
    /// Cost of coding contributions.
    pub up: ChainCost,
    /// and of results that are encoded again.
    pub down: ChainCost,
    /// The share of the parameters that is coded: less than all, where gradients are of low rank or of columns.
    pub coded: f64,
    /// Values of a fragment.
    pub fragment_values: f64,
}

/// Bits a value for which turns are given up: with fewer, more values at a time would be worth less.
pub const BITS_OF_A_TURN: f64 = 2.02;
/// Fewest steps between two exchanges of a fragment where no cores are idle: the codec's work would slow steps down (`docs/decisions/0012-pace.md`).
pub const STEPS_OF_BUSY_CORES: u64 = 8;

impl Workload {
    /// Work of a run with a vocabulary of this size.
    #[must_use]
    pub fn of(config: &RunConfig, spec: &ModelSpec) -> Self {
        let boundary_bytes_per_value = boundary_bits(config.parallel.boundary) / 8.0;
        let tied_values = match spec.tied_embeddings {
            // The trained part alone.
            true => u64::from(spec.vocabulary) * u64::from(spec.subspace().unwrap_or(spec.width)),
            false => 0,
        };
        let members = config.parallel.tensor;
        // The first member of a group, which has the most to keep; shares that cannot be are refused with the configuration.
        let share = spec.shards(members).ok().and_then(|shares| shares.into_iter().next());
        let held = share.as_ref().unwrap_or(spec);
        Self {
            blocks: held.blocks_in(config),
            sums: GroupSums::of(spec, members),
            differences: config.parallel.differences,
            parameter_bytes: parameter_bytes(&config.sync, &config.train),
            sequence: config.predictions_per_sample(),
            batch: config.train.batch,
            micro_batch: config.train.micro_batch,
            boundary_bytes_per_value,
            tied_values,
            tied_gradient_bytes: tied_values as f64 * boundary_bytes_per_value,
            exchange: Exchange::of(config, spec),
        }
    }

    /// Tokens of a micro-batch of each of so many replicas, on average: the last one of a step may have fewer.
    #[must_use]
    pub fn micro_tokens(&self, replicas: usize) -> f64 {
        let sequences = f64::from(self.batch) / replicas.max(1) as f64;
        sequences / f64::from(self.micro_batches(replicas)) * f64::from(self.sequence)
    }

    /// Tokens of the largest micro-batch, which memory must hold.
    #[must_use]
    pub fn micro_tokens_most(&self, replicas: usize) -> f64 {
        let sequences = self.batch.div_ceil(u32::try_from(replicas.max(1)).unwrap_or(u32::MAX));
        f64::from(self.micro_batch.min(sequences)) * f64::from(self.sequence)
    }

    /// Parameters of a block, of all members of a group together.
    #[must_use]
    pub fn parameters_of(&self, block: u32) -> f64 {
        let own = || self.blocks.get(block as usize).map_or(0, |block| block.parameters) as f64;
        self.sums.as_ref().map_or_else(own, |sums| sums.parameters(&(block..block + 1)))
    }

    /// Whether a stage may have these blocks: it trains something, and with tensor groups it has at least one layer, as all members hold the rest.
    #[must_use]
    pub fn may_be_stage(&self, blocks: &Range<u32>) -> bool {
        let own = self.blocks.get(blocks.start as usize..blocks.end as usize).unwrap_or_default();
        // Those with frozen parameters alone take part in no round.
        let trains = own.iter().any(|block| block.parameters > 0 || block.frozen_bytes == 0);
        trains && self.sums.as_ref().is_none_or(|sums| sums.layers(blocks) > 0)
    }

    /// Bytes of a token between a stage that ends with these blocks and the next one.
    #[must_use]
    pub fn boundary_bytes_per_token(&self, stage: &Range<u32>) -> f64 {
        let last = stage.end.checked_sub(1).and_then(|block| self.blocks.get(block as usize));
        // Costs are in f32.
        last.map_or(0.0, |block| block.boundary_bytes_per_token as f64 / 4.0) * self.boundary_bytes_per_value
    }

    /// Blocks behind which least is sent, the head among them; empty: as much is sent behind each.
    #[must_use]
    pub fn narrow_ends(&self) -> BTreeSet<u32> {
        let inner = self.blocks.split_last().map_or(&[][..], |(_, inner)| inner);
        let least = inner.iter().map(|block| block.boundary_bytes_per_token).min();
        let is_narrow = |block: &BlockCost| least.is_none_or(|least| block.boundary_bytes_per_token <= least);
        let ends: BTreeSet<u32> =
            (0..).zip(&self.blocks).filter(|(_, block)| is_narrow(block)).map(|(at, _)| at).collect();
        if ends.len() == self.blocks.len() { BTreeSet::new() } else { ends }
    }

    /// Micro-batches of each of so many replicas.
    #[must_use]
    pub fn micro_batches(&self, replicas: usize) -> u32 {
        let sequences = self.batch.div_ceil(u32::try_from(replicas.max(1)).unwrap_or(u32::MAX));
        sequences.div_ceil(self.micro_batch.max(1)).max(1)
    }
}

impl Exchange {
    /// Of a run's strategy, with its steady pace.
    #[must_use]
    pub fn of(config: &RunConfig, spec: &ModelSpec) -> Self {
        let sync = &config.sync;
        let fragments = sync.layout(spec.parameter_count()).count();
        let groups = config.round_schedule().for_fragments(fragments).groups;
        let (every, groups) = (sync.every as f64, f64::from(groups));
        let turns = every * groups;
        let follows = sync.adapt && sync.every_max > sync.every;
        let turns_least = if follows {
            turns.min(every * STEPS_OF_BUSY_CORES.div_ceil(sync.every.max(1)) as f64)
        } else {
            turns
        };
        let up = match sync.rank {
            _ if sync.adapt => sync.bits_min,
            0 if sync.selection == SelectionRule::Columns => {
                column_share(config, spec) * uplink(sync, 0).bits_per_value()
            }
            0 => chain_about(sync, 0).bits_per_value(),
            rank => low_rank_bits(rank, spec),
        };
        let coded = match sync.rank {
            0 if sync.selection == SelectionRule::Columns => column_share(config, spec),
            0 => 1.0,
            _ => up / f64::from(F32_BITS),
        };
        let down = match sync.result {
            _ if sync.adapt || sync.rank > 0 || sync.result == ResultForm::Bundle => up,
            _ => chain_back(sync).bits_per_value(),
        };
        Self {
            up_bits: up / turns,
            down_bits: down / turns,
            side_by_side: sync.result == ResultForm::Bundle,
            overlaps: sync.overlap > 0,
            streams: sync.streams_in(Round(1), false),
            every,
            turns,
            exchanges: f64::from(sync.exchanges()),
            most_bits: sync.adapt.then_some(sync.bits_max / turns_least),
            turns_least,
            // Whether there is a transform matters, and not of how much.
            up: if sync.adapt { ChainCost::of_bits(up) } else { ChainCost::of(&chain_about(sync, 1)) },
            down: if sync.adapt { ChainCost::of_bits(down) } else { ChainCost::of(&chain_back(sync)) },
            coded,
            fragment_values: f64::from(sync.fragment_values),
        }
    }

    /// With as many bits of a parameter in a step, both ways, where they follow the link.
    #[must_use]
    pub fn with_bits(self, bits: f64) -> Self {
        let turns = (BITS_OF_A_TURN / bits).clamp(self.turns_least, self.turns);
        let cost = ChainCost::of_bits(bits * turns);
        Self { up_bits: bits, down_bits: bits, up: cost, down: cost, turns, ..self }
    }
}

const F32_BITS: u32 = 32;

/// Share of visible changes in fine-tuning, about (decision 0107).
const VISIBLE_SHARE: f64 = 1.0 / 64.0;

/// The chain from a site, about: how many changes are visible is known only to members.
fn chain_about(sync: &SyncConfig, tiles: u32) -> CodecSpec {
    let chain = uplink(sync, tiles);
    if sync.selection != SelectionRule::Visible {
        return chain;
    }
    let keep = ((f64::from(sync.chunk) * VISIBLE_SHARE) as u32).max(1);
    CodecSpec { selection: Selection::Threshold(Threshold { chunk: sync.chunk, keep }), ..chain }
}

/// Bits of a value on its way between ranks, with its share of a scale.
fn boundary_bits(format: ValueFormat) -> f64 {
    CodecSpec::new(Selection::All, format).bits_per_value()
}

/// The chain of a mean; of a union the largest, as large as a site's payload may be.
pub(super) fn chain_back(sync: &SyncConfig) -> CodecSpec {
    if sync.result == ResultForm::Union { union_of(sync, sync.result_values) } else { downlink(sync) }
}

/// The same in a warm-up.
pub(super) fn warmup_chain_back(sync: &SyncConfig) -> CodecSpec {
    let is_union = sync.result == ResultForm::Union && !sync.opens_with_gradients();
    if is_union { union_of(sync, sync.warmup_values) } else { warmup_downlink(sync) }
}

fn union_of(sync: &SyncConfig, values: ValueFormat) -> CodecSpec {
    let keep = sync.result_keep.min(sync.random_keep);
    CodecSpec::new(Selection::Threshold(Threshold { chunk: sync.chunk, keep }), values)
}

/// The share of all values that gradients of columns have: of the products that are meant, the columns that go on.
fn column_share(config: &RunConfig, spec: &ModelSpec) -> f64 {
    let Some(sparse) = &config.train.sparse_backward else { return 1.0 };
    let products = spec.column_products(sparse).into_iter().map(|(product, _)| product);
    let left_out: u64 = products
        .map(|product| product.inputs * product.outputs.saturating_sub(sparse.kept(product.outputs)))
        .sum();
    1.0 - left_out as f64 / spec.parameter_count() as f64
}

/// Bits of a parameter where large matrices are exchanged as two factors in f32, and the rest whole.
fn low_rank_bits(rank: u32, spec: &ModelSpec) -> f64 {
    let exchanged: u64 = spec.parameters().iter().map(|tensor| tensor.low_rank_count(rank)).sum();
    f64::from(F32_BITS) * exchanged as f64 / spec.parameter_count() as f64
}

#[cfg(test)]
pub(super) mod tests {
    use longhaul_common::config::SyncPreset;
    use longhaul_run_toml::{Gpt2, RunToml};

    use super::*;

    fn exchange(preset: SyncPreset) -> Exchange {
        let config = config("");
        let spec = ModelSpec::resolve(&config.model, 256).unwrap();
        Exchange::of(&RunConfig { sync: SyncConfig::of(preset), ..config }, &spec)
    }

    pub fn run_toml() -> RunToml {
        let shape = Gpt2 { layers: 6, width: 384, heads: 6, context: 128 };
        let run = RunToml::new("r").workers(2).steps(9).batch(16).set("train.micro_batch", 4);
        run.gpt2(shape).set("model.tied_embeddings", false)
    }

    pub fn config(sync: &str) -> RunConfig {
        RunConfig::parse(&run_toml().lines("sync", sync).to_string()).unwrap()
    }

    /// Within the headers and scales that the plan leaves out, as the benchmark counted them (docs/benchmarks/sync.md and wan.md).
    #[test]
    fn bits_are_about_those_that_were_measured() {
        let dense = exchange(SyncPreset::Dense);
        assert_eq!(
            (dense.up_bits, dense.down_bits, dense.streams, dense.overlaps),
            (32.0, 32.0, true, false)
        );
        let sparse = exchange(SyncPreset::SparseLocal);
        // 64 of 4096 in two bits, in 9.88 bits each, every 15 steps.
        assert!((sparse.up_bits - 9.88 / 64.0 / 15.0).abs() < 0.1 * sparse.up_bits, "{sparse:?}");
        // Twice as many back.
        assert!((sparse.down_bits / sparse.up_bits - 1.75).abs() < 0.15, "{sparse:?}");
        assert!(
            !sparse.side_by_side && sparse.overlaps && exchange(SyncPreset::StreamingDiloco).side_by_side
        );
        let auto = exchange(SyncPreset::Auto);
        assert!(auto.most_bits.is_some_and(|most| most > auto.up_bits) && auto.overlaps);
        let diloco = exchange(SyncPreset::Diloco);
        assert_eq!(diloco.up_bits, diloco.down_bits, "all values in f32");
        let low_rank = exchange(SyncPreset::Powersgd);
        assert!((0.5..2.0).contains(&low_rank.up_bits), "{low_rank:?}");
    }

    /// Of six layers with twelve matrices' worth of d² each, one column in eight, and everything else.
    #[test]
    fn of_gradients_of_columns_only_those_are_sent() {
        let columns =
            "preset = \"dense\"\nselection = \"columns\"\nresult = \"bundle\"\nwithin_site = \"direct\"";
        let run = run_toml().set("train.sparse_backward.keep", 0.125).lines("sync", columns);
        let config = RunConfig::parse(&run.to_string()).unwrap();
        let spec = ModelSpec::resolve(&config.model, 256).unwrap();
        let exchange = Exchange::of(&config, &spec);
        let (all, products) = (spec.parameter_count() as f64, f64::from(6 * 12 * 384 * 384));
        let bits = 32.0 * (1.0 - 0.875 * products / all);
        assert!((exchange.up_bits - bits).abs() < 1e-9 && exchange.side_by_side, "{exchange:?}");
    }

    /// As `LowRank` of the worker has it: of a rank that is too large for a matrix, the matrix.
    #[test]
    fn factors_that_would_not_be_small_are_not_exchanged() {
        let config = config("");
        let spec = ModelSpec::resolve(&config.model, 256).unwrap();
        assert_eq!(low_rank_bits(1 << 20, &spec), 32.0);
        assert!(low_rank_bits(4, &spec) < 32.0 / 20.0);
        // 2 · (256 + 384) · 77 > 256 · 384: the embedding and the output projection, and all vectors, are whole.
        let whole =
            |tensor: &longhaul_common::model::ParameterSpec| tensor.low_rank_count(77) == tensor.count();
        let parameters = spec.parameters();
        let matrices = parameters.iter().filter(|tensor| tensor.is_matrix());
        assert_eq!(matrices.filter(|tensor| whole(tensor)).count(), 3, "with 128 positions");
        assert!(parameters.iter().filter(|tensor| !tensor.is_matrix()).all(whole));
    }

    #[test]
    fn a_mean_of_all_values_may_be_sent_in_part() {
        let sync = SyncConfig {
            result_keep: 41,
            result_values: ValueFormat::Int4,
            ..SyncConfig::of(SyncPreset::Diloco)
        };
        // One in a hundred, at 0.0807 bits for where they are, and for 41 values a scale of 16 bits: each 128 share one.
        let bits = downlink(&sync).bits_per_value();
        assert!((bits - (0.01 * (4.0 + 0.125) + 0.0807)).abs() < 2e-4, "{bits}");
    }
}
