//! Core time that an exchange takes of a worker.

use longhaul_common::config::ValueFormat;
use longhaul_proto::codec::{CHUNK_VALUES_DEFAULT, CodecSpec, Selection, Stage, TopK};
use serde::{Deserialize, Serialize};

use super::{Device, Exchange};

const NS: f64 = 1e-9;

/// Core time of a chain of the codec for each value of a fragment, in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ChainCost {
    /// To encode it, with error feedback,
    pub encode_s: f64,
    /// and to decode it.
    pub decode_s: f64,
}

// Of one thread, as `docs/benchmarks/codec.md` has it: 4 / (GB/s) for each value.

/// A look at each value for the largest ones.
const SELECTED: ChainCost = ChainCost { encode_s: 0.55 * NS, decode_s: 0.0 };
/// Each value that is kept, with its position.
const KEPT: ChainCost = ChainCost { encode_s: 56.0 * NS, decode_s: 11.5 * NS };
/// The same two where one of so many values or more are kept: their positions are a bitmap.
const DENSE: f64 = 1.0 / 32.0;
const SELECTED_DENSE: ChainCost = ChainCost { encode_s: 2.0 * NS, decode_s: 0.38 * NS };
const KEPT_DENSE: ChainCost = ChainCost { encode_s: 4.5 * NS, decode_s: 2.15 * NS };
/// A random mask, for each value before it.
const MASKED: ChainCost = ChainCost { encode_s: 0.88 * NS, decode_s: 0.48 * NS };
/// A cosine transform of each value, twice with error feedback, and back.
const TRANSFORMED: ChainCost = ChainCost { encode_s: 7.0 * NS, decode_s: 3.3 * NS };

/// One frame in this many is decoded by its encoder (decision 0014).
const AUDITED: f64 = 1.0 / 8.0;
/// Members decode each contribution of a bundle twice: to see whether it is sound, and to add it.
const BUNDLE_DECODINGS: f64 = 2.0;

// Other work on each value of an update and its result, as in `worker/member` and `worker/engine`, in vectors that no cache holds (`docs/benchmarks/codec.md`).

/// A pass that reads one vector, or writes one: from the device, to it, the contribution's norm, and the zeros in which an update,
/// the owner's sum and the member's are made,
const PASS_S: f64 = 0.41 * NS;
const PASSES: f64 = 6.0;
/// and one that reads two: the difference from the common parameters, the norms of the residual and of the update, the outer step, the change, and its addition on the device.
const PASS_OF_TWO_S: f64 = 0.48 * NS;
const PASSES_OF_TWO: f64 = 5.0;
/// The hash of the parameters after a round.
const HASH_S: f64 = 0.6 * NS;
/// All that.
const BESIDE_S: f64 = PASSES * PASS_S + PASSES_OF_TWO * PASS_OF_TWO_S + HASH_S;

/// Both ends of a connection for a byte that goes over it, encrypted: 6.2 s/GB at 100 Mbit/s (`docs/benchmarks/transport.md`).
const BYTE_S: f64 = 6.2 * NS;
/// And for a frame besides its bytes: in frames of 8 KiB it is 19.3 s/GB.
const FRAME_S: f64 = (19.3 - 6.2) * NS * 8192.0;

/// Most FLOPs a second that a core sustains in training: 0.40 s for 1024 tokens of 10.9 million parameters (`docs/benchmarks/sync.md`). A faster device has
/// correspondingly many training cores.
const CORE_FLOPS_PER_S: f64 = 1.74e11;
/// Threads that encode where a GPU trains (decision 0014).
const ENCODING_THREADS: f64 = 8.0;

impl ChainCost {
    /// Of a chain.
    #[must_use]
    pub fn of(spec: &CodecSpec) -> Self {
        let kept = spec.density();
        let (leading, seen) = match spec.stage {
            None => (NOTHING, 1.0),
            Some(Stage::Dct(_)) => (TRANSFORMED, 1.0),
            Some(Stage::RandomK(mask)) => (MASKED, f64::from(mask.keep) / f64::from(mask.chunk)),
        };
        let rest = match spec.selection {
            Selection::All => whole(spec.values).times(seen),
            Selection::TopK(TopK { chunk, keep }) if f64::from(keep) >= DENSE * f64::from(chunk) => {
                SELECTED_DENSE.times(seen).plus(KEPT_DENSE.times(kept))
            }
            _ => SELECTED.times(seen).plus(KEPT.times(kept)),
        };
        leading.plus(rest)
    }

    /// Of the chain that spends so many bits on a value where they follow the link: all values in the finest format that there is room for, or else the largest ones
    /// in two bits.
    #[must_use]
    pub fn of_bits(bits: f64) -> Self {
        let all = |values| CodecSpec::new(Selection::All, values);
        let whole = [ValueFormat::Int8, ValueFormat::Int4, ValueFormat::TwoBit].map(all);
        let fitting = whole.into_iter().find(|spec| spec.bits_per_value() <= bits);
        Self::of(&fitting.unwrap_or_else(|| largest_in_two_bits(bits)))
    }

    fn plus(self, other: Self) -> Self {
        Self { encode_s: self.encode_s + other.encode_s, decode_s: self.decode_s + other.decode_s }
    }

    fn times(self, factor: f64) -> Self {
        Self { encode_s: factor * self.encode_s, decode_s: factor * self.decode_s }
    }
}

const NOTHING: ChainCost = ChainCost { encode_s: 0.0, decode_s: 0.0 };

/// Of all values in a format.
fn whole(values: ValueFormat) -> ChainCost {
    let [encode, decode] = match values {
        ValueFormat::F32 => [0.61, 0.23],
        ValueFormat::Bf16 | ValueFormat::F16 => [0.62, 0.13],
        ValueFormat::Int8 => [0.72, 0.13],
        ValueFormat::Int4 => [1.3, 0.39],
        ValueFormat::E3M0 => [1.4, 0.38],
        ValueFormat::TwoBit => [1.9, 0.34],
        ValueFormat::Sign => [2.15, 0.33],
        ValueFormat::Nf4 => [1.62, 0.38],
    };
    ChainCost { encode_s: encode * NS, decode_s: decode * NS }
}

/// As many values of a chunk as there are bits for, and one at least.
fn largest_in_two_bits(bits: f64) -> CodecSpec {
    let with = |keep| {
        CodecSpec::new(Selection::TopK(TopK { chunk: CHUNK_VALUES_DEFAULT, keep }), ValueFormat::TwoBit)
    };
    let (mut low, mut high) = (1, CHUNK_VALUES_DEFAULT / 2);
    while low < high {
        let middle = u32::midpoint(low, high) + 1;
        if with(middle).bits_per_value() <= bits { low = middle } else { high = middle - 1 }
    }
    with(low)
}

/// The holders of a part of the model, which exchange it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Holders {
    /// Sites,
    pub sites: f64,
    /// and devices of the site that has fewest.
    pub devices: f64,
    /// Values of the part.
    pub parameters: f64,
}

/// Core-seconds that the exchange of a step takes of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct CoreTime {
    /// Before its contributions leave, or while they do: all of it in one thread where cores train, or else side by side.
    pub contributing_s: f64,
    /// While contributions and results come.
    pub receiving_s: f64,
    /// To send and receive.
    pub sending_s: f64,
}

impl CoreTime {
    /// Of a device that has as many others beside it in its site as any; nothing, where there is one site.
    pub fn of(exchange: &Exchange, holders: Holders) -> Self {
        let Holders { sites, devices, parameters } = holders;
        if sites < 2.0 {
            return Self::default();
        }
        let Exchange { up, down, .. } = exchange;
        let values = exchange.coded * parameters / exchange.turns;
        let own = values / devices;
        let beside_s = values * BESIDE_S;
        let contributing_s = own * (up.encode_s + AUDITED * up.decode_s);
        // Of its share of the fragments it decodes all contributions.
        let owned_s = own * up.decode_s;
        let results_s = match exchange.side_by_side {
            true => values * sites * BUNDLE_DECODINGS * up.decode_s,
            false => own / sites * down.encode_s + values * down.decode_s,
        };
        Self {
            contributing_s: contributing_s + beside_s / 2.0,
            receiving_s: owned_s + results_s + beside_s / 2.0,
            sending_s: sending_s(exchange, holders),
        }
    }

    /// The larger ones of both.
    pub fn max(self, other: Self) -> Self {
        Self {
            contributing_s: self.contributing_s.max(other.contributing_s),
            receiving_s: self.receiving_s.max(other.receiving_s),
            sending_s: self.sending_s.max(other.sending_s),
        }
    }

    /// By so much computing takes longer that goes on beside all of it, on cores of which so many train; none: a GPU trains.
    pub fn of_computing_s(self, cores: Option<f64>) -> f64 {
        let all_s = self.contributing_s + self.receiving_s + self.sending_s;
        cores.map_or(0.0, |cores| all_s / cores)
    }

    /// The same with threads that encode side by side.
    pub fn with_threads(self, cores: Option<f64>) -> Self {
        let threads = if cores.is_some() { 1.0 } else { ENCODING_THREADS };
        Self { contributing_s: self.contributing_s / threads, ..self }
    }
}

/// Each other site gets a contribution to its fragments, and results of the fragments owned here.
fn sending_s(exchange: &Exchange, Holders { sites, devices, parameters }: Holders) -> f64 {
    let others = sites - 1.0;
    let results = if exchange.side_by_side { sites * exchange.up_bits } else { exchange.down_bits };
    let bytes = parameters * others / sites * (exchange.up_bits + results) / 8.0;
    let fragments = (parameters / exchange.fragment_values).ceil() / exchange.turns;
    // One there and one back, for each.
    let frames = 2.0 * fragments * others / sites;
    (bytes * BYTE_S + frames * FRAME_S) / devices
}

impl Device {
    /// Training cores of a machine without a GPU, derived from its speed.
    pub(super) fn training_cores(&self) -> Option<f64> {
        self.host_memory_bytes.is_none().then(|| (self.flops_per_s / CORE_FLOPS_PER_S).max(1.0))
    }
}

/// The mean share of a round's fragments that the site has which owns most: owners are balanced within a turn ([`Membership::assign`]). `fragments`: of the
/// whole model.
///
/// [`Membership::assign`]: longhaul_common::plan::Membership::assign
pub(super) fn largest_share(fragments: f64, turns: f64, sites: usize) -> f64 {
    let fragments = fragments.max(1.0).round();
    let turns = turns.round().clamp(1.0, fragments);
    let (fewer, longer) = ((fragments / turns).floor(), fragments % turns);
    let most = |due: f64| (due / sites.max(1) as f64).ceil();
    (longer * most(fewer + 1.0) + (turns - longer) * most(fewer)) / fragments
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr};

    use longhaul_common::config::{ResultForm, RunConfig, SyncConfig, SyncPreset};
    use longhaul_common::id::{Generation, SiteId, WorkerId};
    use longhaul_common::model::ModelSpec;
    use longhaul_common::plan::{FragmentLayout, Member, Membership};
    use longhaul_proto::codec::chain::{downlink, uplink};

    use super::super::workload::tests::config;
    use super::*;

    fn exchange(preset: SyncPreset) -> Exchange {
        let config = RunConfig { sync: SyncConfig::of(preset), ..config("") };
        Exchange::of(&config, &ModelSpec::resolve(&config.model, 256).unwrap())
    }

    fn close(a: f64, b: f64) -> bool {
        (a - b).abs() <= 1e-9 * b.abs()
    }

    /// To the owner and from it, in nanoseconds, as the benchmark has measured the chains of presets (`docs/benchmarks/codec.md`).
    #[test]
    fn chains_cost_about_what_was_measured() {
        let measured = [
            (SyncPreset::Dense, [0.61, 0.23], [0.62, 0.23]),
            (SyncPreset::Dgc, [0.80, 0.02], [0.0; 2]),
            (SyncPreset::OnebitAdam, [2.18, 0.33], [2.12, 0.33]),
            (SyncPreset::Demo, [8.31, 3.47], [0.0; 2]),
            (SyncPreset::StreamingDiloco, [1.40, 0.38], [0.0; 2]),
            (SyncPreset::Cocktail, [1.23, 0.64], [2.07, 0.52]),
            (SyncPreset::SparseLocal, [1.38, 0.18], [0.0; 2]),
        ];
        for (preset, up, down) in measured {
            let config = SyncConfig::of(preset);
            let mut ways = vec![(uplink(&config, 1), up)];
            if config.result == ResultForm::Mean {
                ways.push((downlink(&config), down));
            }
            for (chain, ns) in ways {
                let ChainCost { encode_s, decode_s } = ChainCost::of(&chain);
                for (cost, measured) in [encode_s, decode_s].into_iter().zip(ns) {
                    let off = (cost / NS - measured).abs();
                    assert!(off < 0.25 * measured + 0.05, "{preset:?}: {cost} s for {measured} ns");
                }
            }
        }
    }

    #[test]
    fn bits_that_follow_the_link_cost_what_their_chain_does() {
        let all = |values| ChainCost::of(&CodecSpec::new(Selection::All, values));
        assert_eq!(ChainCost::of_bits(4.2), all(ValueFormat::Int4));
        assert_eq!(ChainCost::of_bits(2.1), all(ValueFormat::TwoBit));
        let least = SELECTED.plus(KEPT.times(1.0 / f64::from(CHUNK_VALUES_DEFAULT)));
        assert_eq!(ChainCost::of_bits(0.0), least);
        let some = largest_in_two_bits(0.5);
        assert!(some.bits_per_value() <= 0.5 && some.bits_per_value() > 0.49, "{some:?}");
    }

    /// Three sites of two devices. Each encodes half of the values, decodes three contributions to a sixth of them, and twice the contributions of all sites.
    #[test]
    fn a_device_codes_its_share_and_decodes_all_results() {
        let values = 1.2e6;
        let holders = Holders { sites: 3.0, devices: 2.0, parameters: values };
        let demo = exchange(SyncPreset::Demo);
        let CoreTime { contributing_s, receiving_s, sending_s } = CoreTime::of(&demo, holders);
        let ChainCost { encode_s, decode_s } = demo.up;
        let beside_s = values * (6.0 * 0.41e-9 + 5.0 * 0.48e-9 + 0.6e-9);
        let contributing = values / 2.0 * (encode_s + decode_s / 8.0) + beside_s / 2.0;
        assert!(close(contributing_s, contributing), "{contributing_s} for {contributing}");
        let receiving = values / 2.0 * decode_s + values * 6.0 * decode_s + beside_s / 2.0;
        assert!(close(receiving_s, receiving), "{receiving_s} for {receiving}");
        // Two thirds of the update leave, and of each of its own thirds three contributions, to two sites; five fragments, two thirds of them there and as many back.
        let bytes = values * (2.0 / 3.0 + 2.0) * demo.up_bits / 8.0;
        let frames = 2.0 * 5.0 * 2.0 / 3.0;
        let sending = (bytes * 6.2e-9 + frames * 13.1e-9 * 8192.0) / 2.0;
        assert!(close(sending_s, sending), "{sending_s} for {sending}");
        assert_eq!(CoreTime::of(&demo, Holders { sites: 1.0, ..holders }), CoreTime::default());
    }

    /// A fiftieth of the values in a step, of which a site publishes half.
    #[test]
    fn means_are_encoded_by_their_owners_and_decoded_once() {
        let holders = Holders { sites: 2.0, devices: 1.0, parameters: 1e6 };
        let diloco = exchange(SyncPreset::Diloco);
        let Exchange { up, down, .. } = diloco;
        let receiving_s = CoreTime::of(&diloco, holders).receiving_s;
        let expected = 1e6 / 50.0 * (up.decode_s + down.encode_s / 2.0 + down.decode_s + BESIDE_S / 2.0);
        assert!(close(receiving_s, expected), "{receiving_s} for {expected}");
        let low_rank = exchange(SyncPreset::Powersgd);
        assert!(close(low_rank.coded, low_rank.up_bits / 32.0), "{low_rank:?}");
    }

    #[test]
    fn cores_that_train_share_what_exchanges_take_and_a_gpu_has_none_of_it() {
        let device = |tflops: f64, host_memory_bytes| Device {
            flops_per_s: tflops * 1e12,
            memory_bytes: 1e9,
            host_memory_bytes,
        };
        assert_eq!(device(0.09, None).training_cores(), Some(1.0));
        assert!(device(1.74, None).training_cores().is_some_and(|cores| close(cores, 10.0)));
        assert_eq!(device(40.0, Some(1e9)).training_cores(), None);
        let time = CoreTime { contributing_s: 0.8, receiving_s: 0.4, sending_s: 0.2 };
        let slower = [Some(1.0), Some(10.0), None].map(|cores| time.of_computing_s(cores));
        assert!(close(slower[0], 1.4) && close(slower[1], 0.14) && slower[2] == 0.0, "{slower:?}");
        let threads = [Some(10.0), None].map(|cores| time.with_threads(cores).contributing_s);
        assert_eq!(threads, [0.8, 0.1]);
    }

    /// As owners are assigned in a run.
    #[test]
    fn the_largest_owner_has_as_much_as_is_expected() {
        let layout = FragmentLayout { values: 42, fragment_values: 1 };
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 1));
        for (turns, sites) in
            [1, 5, 10, 13, 40].into_iter().flat_map(|turns| [1, 2, 3, 5].map(|sites| (turns, sites)))
        {
            // Of three workers each.
            let member = |worker: u32| Member {
                worker: WorkerId(worker),
                site: SiteId(worker % sites),
                lan_address: address,
                wan_address: address,
                upload_weight: 1,
            };
            let plan = Membership::assign(Generation(1), (0..3 * sites).map(member).collect(), layout, turns);
            let owned = |turn: u32, site: u32| {
                let due = layout.fragments().filter(|fragment| fragment.0 % turns == turn);
                due.filter(|fragment| plan.owner(*fragment).is_some_and(|owner| owner.0 % sites == site))
                    .count()
            };
            let most = |turn| (0..sites).map(|site| owned(turn, site)).max().unwrap_or_default();
            let share = (0..turns).map(most).sum::<usize>() as f64 / 42.0;
            let expected = largest_share(42.0, f64::from(turns), sites as usize);
            assert!((share - expected).abs() < 1e-12, "{turns} turns, {sites} sites: {share} for {expected}");
        }
    }
}
