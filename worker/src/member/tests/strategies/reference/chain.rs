//! C(p): a compressed fragment as decoded by a receiver.

use longhaul_common::config::{ResultForm, SelectionRule, SyncConfig, Transform, ValueFormat};
use longhaul_proto::codec::RandomK;

use super::dct;
use super::tensors::TILE;
use super::values::reconstructed;

/// Number of values with common levels, when all are sent and when a threshold selects.
const LEVELS_OF_ALL: usize = 4096;
const LEVELS_OF_SCATTERED: usize = 256;

/// The selection of values to send.
pub enum Choice {
    All,
    /// The largest of each chunk.
    TopK {
        chunk: usize,
        keep: usize,
    },
    /// The largest of all, by number.
    Largest(usize),
    /// The largest of each chunk among these.
    Union {
        chunk: usize,
        keep: usize,
        of: Vec<bool>,
    },
    /// These.
    These(Vec<usize>),
}

/// The step before the selection.
pub enum Before {
    Nothing,
    /// Restricts the selection to these values.
    Mask(Vec<usize>),
    /// Transforms the first tiles, by number.
    Dct(usize),
}

pub struct Chain {
    pub before: Before,
    pub choice: Choice,
    pub values: ValueFormat,
}

/// A fragment as received: a value at each position, and the transmitted positions unless all.
pub struct Sent {
    pub values: Vec<f64>,
    pub positions: Option<Vec<usize>>,
}

fn top_k(sync: &SyncConfig, keep: u32) -> Choice {
    match keep == sync.chunk {
        true => Choice::All,
        false => Choice::TopK { chunk: sync.chunk as usize, keep: keep as usize },
    }
}

impl Chain {
    /// Both directions in a warm-up round.
    pub fn of_warmup(sync: &SyncConfig) -> Self {
        let choice = if sync.opens_with_gradients() { Choice::All } else { top_k(sync, sync.warmup_keep) };
        Self { before: Before::Nothing, choice, values: sync.warmup_values }
    }

    /// From the owner: this mean, after the warm-up or in one with deltas.
    pub fn down(sync: &SyncConfig, is_warmup: bool, mean: &[f64]) -> Self {
        let (chunk, keep) = (sync.chunk as usize, sync.result_keep as usize);
        let values = if is_warmup { sync.warmup_values } else { sync.result_values };
        let of = || mean.iter().map(|value| *value != 0.0).collect();
        match sync.result {
            ResultForm::Union if !is_warmup || !sync.opens_with_gradients() => {
                Self { before: Before::Nothing, choice: Choice::Union { chunk, keep, of: of() }, values }
            }
            _ if is_warmup => Self::of_warmup(sync),
            _ => Self::down_mean(sync),
        }
    }

    fn down_mean(sync: &SyncConfig) -> Self {
        Self { before: Before::Nothing, choice: top_k(sync, sync.result_keep), values: sync.result_values }
    }

    /// From a site: a fragment of `len` values that begins with `tiles` tiles. `kept`: the number of values kept by a threshold.
    pub fn up(sync: &SyncConfig, len: usize, tiles: usize, seed: u64, kept: Option<usize>) -> Self {
        let before = match sync.transform {
            Transform::Dct => Before::Dct(tiles),
            Transform::None if sync.random_keep < sync.chunk => Before::Mask(mask(sync, len, seed)),
            Transform::None => Before::Nothing,
        };
        let choice = match sync.selection {
            SelectionRule::All | SelectionRule::Columns => Choice::All,
            SelectionRule::TopK => Choice::TopK { chunk: sync.chunk as usize, keep: sync.keep as usize },
            SelectionRule::Threshold => Choice::Largest(checked(sync, len, kept.unwrap())),
            // `Sending` knows the parameters.
            SelectionRule::Visible => Choice::These(Vec::new()),
        };
        Self { before, choice, values: sync.values }
    }

    pub fn of(&self, p: &[f64]) -> Sent {
        let seen: Vec<f64> = match &self.before {
            Before::Nothing => p.to_vec(),
            Before::Mask(mask) => mask.iter().map(|&at| p[at]).collect(),
            Before::Dct(tiles) => each_tile(p, *tiles, dct::forward),
        };
        let chosen = self.choice.of(&seen);
        let kept: Vec<f64> = chosen.iter().map(|&at| seen[at]).collect();
        let mut values = vec![0.0; p.len()];
        let places: Vec<usize> = match &self.before {
            Before::Mask(mask) => chosen.iter().map(|&at| mask[at]).collect(),
            _ => chosen,
        };
        let sent = reconstructed(self.values, &kept, self.choice.values_with_levels());
        places.iter().zip(sent).for_each(|(&at, value)| values[at] = value);
        match self.before {
            Before::Dct(tiles) => Sent { values: each_tile(&values, tiles, dct::inverse), positions: None },
            _ => Sent { values, positions: Some(places) },
        }
    }
}

impl Choice {
    /// The selected positions, ascending; ties go to the first.
    fn of(&self, values: &[f64]) -> Vec<usize> {
        let may = |at: &usize| match self {
            Self::Union { of, .. } => of[*at],
            _ => true,
        };
        let largest = |start: usize, end: usize, keep: usize| {
            let mut order: Vec<usize> = (start..end).filter(may).collect();
            order.sort_by(|&a, &b| values[b].abs().total_cmp(&values[a].abs()));
            order.truncate(keep);
            order.sort_unstable();
            order
        };
        let len = values.len();
        match *self {
            Self::All => (0..len).collect(),
            Self::Largest(number) => largest(0, len, number),
            Self::TopK { chunk, keep } | Self::Union { chunk, keep, .. } => (0..len)
                .step_by(chunk)
                .flat_map(|start| largest(start, len.min(start + chunk), keep))
                .collect(),
            Self::These(ref positions) => positions.clone(),
        }
    }

    fn values_with_levels(&self) -> usize {
        match *self {
            Self::All => LEVELS_OF_ALL,
            Self::TopK { keep, .. } => keep,
            Self::Largest(_) | Self::Union { .. } | Self::These(_) => LEVELS_OF_SCATTERED,
        }
    }
}

/// The positions drawn by all members alike: a protocol constant, so the codec computes them.
fn mask(sync: &SyncConfig, len: usize, seed: u64) -> Vec<usize> {
    let stage = RandomK { chunk: sync.chunk, keep: sync.random_keep };
    stage.positions(seed, len).into_iter().map(|at| at as usize).collect()
}

/// The codec decides how many values a threshold keeps: 0.8 to 1.3 times the configured number.
fn checked(sync: &SyncConfig, len: usize, kept: usize) -> usize {
    let wanted = (len as f64 * f64::from(sync.keep) / f64::from(sync.chunk)).ceil();
    assert!((0.8 * wanted..=1.3 * wanted).contains(&(kept as f64)), "{kept} values are kept for {wanted}");
    kept
}

fn each_tile(values: &[f64], tiles: usize, transform: fn(&[f64]) -> Vec<f64>) -> Vec<f64> {
    let (tiled, rest) = values.split_at(tiles * TILE * TILE);
    tiled.chunks(TILE * TILE).flat_map(transform).chain(rest.iter().copied()).collect()
}

/// The positions at which θ − η·p is another number in bf16 than θ.
pub fn visible(parameters: &[f64], rate: f64, p: &[f64]) -> Vec<usize> {
    let bf16 = |value: f64| half::bf16::from_f32(value as f32);
    let is_visible = |at: &usize| bf16(parameters[*at]) != bf16(parameters[*at] - rate * p[*at]);
    (0..p.len()).filter(is_visible).collect()
}
