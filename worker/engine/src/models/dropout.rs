//! Dropout (Srivastava et al. 2014): values of training passes are zero with probability p, and the others 1 / (1 − p) times as large.
//!
//! Masks are functions of the sample's seed and the site alone: equal in a recomputed pass, on each member of a tensor group, for any size of micro-batches,
//! and on each device.

use std::ops::Range;
use std::sync::Arc;

use longhaul_common::config::TrainConfig;
use tch::{Device, Kind, TchError, Tensor};

/// Probabilities of training.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct DropoutRates {
    /// Of the embedding and of what each half of a layer adds.
    hidden: f64,
    /// Of attention weights.
    attention: f64,
    /// Of the adapters' inputs.
    adapter: f64,
    /// Of a head for classes.
    classifier: f64,
}

/// The dropout of a pass.
#[derive(Clone, Debug)]
pub struct Dropout {
    rates: DropoutRates,
    /// By sequence.
    seeds: Arc<[u64]>,
}

/// A place in the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Site {
    Embedding,
    /// What attention adds, by layer.
    Attention(u32),
    FeedForward(u32),
    /// Attention weights, by layer.
    Weights(u32),
    /// Input of an adapter, by a number of its own.
    Adapter(u64),
    /// Input of a product of a head for classes, by its number.
    Classes(u32),
}

impl DropoutRates {
    pub fn new(train: &TrainConfig) -> Self {
        Self {
            hidden: train.dropout.unwrap_or_default(),
            classifier: train.classifier_dropout.or(train.dropout).unwrap_or_default(),
            attention: train.attention_dropout.unwrap_or_default(),
            adapter: train.lora.as_ref().map_or(0.0, |lora| lora.dropout),
        }
    }

    /// Returns the dropout of sequences with these seeds; `None`: there is none.
    pub fn of(self, seeds: &[u64]) -> Option<Dropout> {
        (self != Self::default() && !seeds.is_empty()).then(|| Dropout { rates: self, seeds: seeds.into() })
    }
}

impl Site {
    fn number(self) -> u64 {
        let of_layer = |kind: u64, layer: u32| kind << 32 | u64::from(layer);
        match self {
            Self::Embedding => 0,
            Self::Attention(layer) => of_layer(1, layer),
            Self::FeedForward(layer) => of_layer(2, layer),
            Self::Weights(layer) => of_layer(3, layer),
            Self::Classes(product) => of_layer(4, product),
            Self::Adapter(number) => number | 1 << 63,
        }
    }
}

impl Dropout {
    /// Returns x [B, ..] behind dropout at this site.
    pub(super) fn applied(&self, x: &Tensor, site: Site) -> Result<Tensor, TchError> {
        self.of_part(x, site, 0)
    }

    /// The same for x that begins at an index of each sample's values.
    fn of_part(&self, x: &Tensor, site: Site, first: u64) -> Result<Tensor, TchError> {
        let rate = self.rate(site);
        if rate == 0.0 {
            return Ok(x.shallow_clone());
        }
        x.f_mul(&self.mask(x, site, rate, first)?)?.f_mul_scalar(1.0 / (1.0 - rate))
    }

    /// Returns attention weights [B, H, T, S] of the heads from `first_head` on behind dropout.
    pub(super) fn of_attention(
        &self,
        weights: &Tensor,
        layer: u32,
        first_head: i64,
    ) -> Result<Tensor, TchError> {
        let of_head = weights.size().iter().skip(2).product::<i64>();
        self.of_part(weights, Site::Weights(layer), (first_head * of_head) as u64)
    }

    /// Whether inputs of adapters have dropout.
    pub(super) fn drops_inputs(&self) -> bool {
        self.rates.adapter > 0.0
    }

    /// Whether attention weights have dropout.
    pub(super) fn drops_attention(&self) -> bool {
        self.rates.attention > 0.0
    }

    fn rate(&self, site: Site) -> f64 {
        match site {
            Site::Embedding | Site::Attention(_) | Site::FeedForward(_) => self.rates.hidden,
            Site::Weights(_) => self.rates.attention,
            Site::Adapter(_) => self.rates.adapter,
            Site::Classes(_) => self.rates.classifier,
        }
    }

    /// Returns what stays of x [B, ..]: 0 or 1 in uint8.
    fn mask(&self, x: &Tensor, site: Site, rate: f64, first: u64) -> Result<Tensor, TchError> {
        let each = x.numel() / self.seeds.len();
        if x.size().first() != Some(&(self.seeds.len() as i64)) {
            return Err(TchError::Shape(format!("{x:?} is not of {} sequences", self.seeds.len())));
        }
        // Above the share p of 32-bit words.
        let least = (rate * 2f64.powi(32)) as u32;
        let keys: Vec<[u32; 2]> = self.seeds.iter().map(|seed| keys(*seed, site)).collect();
        let mask = match x.device() {
            Device::Cpu => on_host(&keys, each, first as u32, least)?,
            device => on_device(&keys, each, first as u32, least, device)?,
        };
        mask.f_view(x.size().as_slice())
    }
}

/// Returns the keys of a sample's words at a site.
fn keys(seed: u64, site: Site) -> [u32; 2] {
    let key = longhaul_common::sampler::seed_at(seed, site.number());
    [key as u32, (key >> 32) as u32]
}

/// Ellis' `lowbias32` (<https://nullprogram.com/blog/2018/07/31/>): a bijection whose output bits depend on each input bit about equally.
fn mixed(mut word: u32) -> u32 {
    word ^= word >> 16;
    word = word.wrapping_mul(FACTORS[0]);
    word ^= word >> 15;
    word = word.wrapping_mul(FACTORS[1]);
    word ^ word >> 16
}

const FACTORS: [u32; 2] = [0x7feb_352d, 0x846c_a68b];

/// Returns the mask [B, each]: 1 where the word of a value, of index `first` and following, is not below `least`.
fn on_host(keys: &[[u32; 2]], each: usize, first: u32, least: u32) -> Result<Tensor, TchError> {
    let mut mask = vec![0_u8; keys.len() * each];
    for (part, [one, other]) in mask.chunks_mut(each.max(1)).zip(keys) {
        for (at, kept) in (0_u32..).zip(part) {
            let word = mixed(mixed(first.wrapping_add(at) ^ one) ^ other);
            *kept = u8::from(word >= least);
        }
    }
    Tensor::f_from_slice(&mask)
}

/// The same, computed there in pieces: 64-bit numbers hold the words.
fn on_device(
    keys: &[[u32; 2]],
    each: usize,
    first: u32,
    least: u32,
    device: Device,
) -> Result<Tensor, TchError> {
    let key = |at: usize| {
        let keys: Vec<i64> = keys.iter().map(|keys| i64::from(keys[at])).collect();
        Tensor::f_from_slice(&keys)?.f_to_device(device)?.f_view([-1, 1]) // [B, 1]
    };
    let keys_there = [key(0)?, key(1)?];
    let length = (WORDS_AT_ONCE / keys.len().max(1)).max(1);
    let pieces = (0..each).step_by(length).map(|start| {
        let from = i64::from(first) + start as i64;
        let at = from..from + length.min(each - start) as i64;
        piece(&keys_there, at, least, device)
    });
    Tensor::f_cat(&pieces.collect::<Result<Vec<_>, TchError>>()?, 1)
}

/// Words computed at once on a device, which take 24 bytes each meanwhile.
const WORDS_AT_ONCE: usize = 1 << 22;

/// Returns the mask [B, indices] of some values.
fn piece(keys: &[Tensor; 2], indices: Range<i64>, least: u32, device: Device) -> Result<Tensor, TchError> {
    let word = |x: Tensor| x.f_bitwise_and(i64::from(u32::MAX));
    let shifted = |x: &Tensor, by: i64| x.f_bitwise_xor_tensor(&x.f_bitwise_right_shift_tensor_scalar(by)?);
    let mixed = |x: Tensor| {
        let x = word(shifted(&x, 16)?.f_mul_scalar(i64::from(FACTORS[0]))?)?;
        let x = word(shifted(&x, 15)?.f_mul_scalar(i64::from(FACTORS[1]))?)?;
        shifted(&x, 16)
    };
    let at = Tensor::f_arange_start(indices.start, indices.end, (Kind::Int64, device))?;
    let words = mixed(word(at)?.f_bitwise_xor_tensor(&keys[0])?)?; // [B, indices]
    mixed(words.f_bitwise_xor_tensor(&keys[1])?)?.f_ge(i64::from(least))?.f_to_kind(Kind::Uint8)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dropout(rate: f64, seeds: &[u64]) -> Dropout {
        DropoutRates { hidden: rate, attention: rate, adapter: rate, classifier: rate }.of(seeds).unwrap()
    }

    fn values(x: &Tensor) -> Vec<f32> {
        Vec::try_from(x.contiguous().view(-1)).unwrap()
    }

    #[test]
    fn the_share_of_zeros_is_the_rate_and_the_mean_stays() {
        let ones = Tensor::ones([4, 50, 400], (Kind::Float, Device::Cpu));
        for rate in [0.05, 0.1, 0.5, 0.9] {
            let dropped = dropout(rate, &[3, 1, 4, 159]).applied(&ones, Site::FeedForward(7)).unwrap();
            let values = values(&dropped);
            let kept = 1.0 / (1.0 - rate) as f32;
            assert!(values.iter().all(|value| *value == 0.0 || (value - kept).abs() < 1e-6));
            // Within five standard deviations, in all and in each sequence, row and column.
            let sums =
                |dims: &[i64]| Vec::<f32>::try_from(dropped.mean_dim(dims, false, Kind::Float).view(-1));
            for (dims, count) in
                [(&[0_i64, 1, 2][..], 80_000.0), (&[1, 2], 20_000.0), (&[0, 2], 1_600.0), (&[0, 1], 200.0)]
            {
                let deviation = (rate / (1.0 - rate) / count).sqrt();
                for mean in sums(dims).unwrap() {
                    assert!((f64::from(mean) - 1.0).abs() < 5.0 * deviation, "{mean} at {rate} of {count}");
                }
            }
        }
    }

    #[test]
    fn masks_depend_on_seed_and_site_alone_and_are_equal_on_devices() {
        let x = Tensor::ones([3, 6, 40], (Kind::Float, Device::Cpu));
        let (all, one) = (dropout(0.4, &[7, 8, 9]), dropout(0.4, &[8]));
        let site = Site::Attention(2);
        let whole = all.applied(&x, site).unwrap();
        assert_eq!(whole.narrow(0, 1, 1), one.applied(&x.narrow(0, 0, 1), site).unwrap());
        assert_eq!(whole, all.applied(&x, site).unwrap());
        let sites = [
            Site::Embedding,
            Site::Attention(3),
            Site::FeedForward(2),
            Site::Weights(2),
            Site::Adapter(2),
            Site::Classes(2),
        ];
        for other in sites {
            let other = all.applied(&x, other).unwrap();
            let equal = other.eq_tensor(&whole).to_kind(Kind::Float).mean(Kind::Float).double_value(&[]);
            // Independent masks agree at .4² + .6² of the places.
            assert!((equal - 0.52).abs() < 0.1, "{equal}");
        }
        let keys: Vec<[u32; 2]> = [7, 8].map(|seed| keys(seed, site)).to_vec();
        for (first, least) in [(0, 1 << 30), (u32::MAX - 100, 3 << 30)] {
            let here = on_host(&keys, 200, first, least).unwrap().view([2, 200]);
            assert_eq!(here, on_device(&keys, 200, first, least, Device::Cpu).unwrap());
        }
        // In two pieces.
        let many = WORDS_AT_ONCE / 2 + 9;
        let here = on_host(&keys, many, 5, 1 << 31).unwrap().view([2, -1]);
        assert_eq!(here, on_device(&keys, many, 5, 1 << 31, Device::Cpu).unwrap());
    }

    #[test]
    fn heads_of_a_share_have_the_masks_of_the_whole() {
        let weights = Tensor::ones([2, 4, 5, 5], (Kind::Float, Device::Cpu));
        let dropout = dropout(0.3, &[1, 2]);
        let whole = dropout.of_attention(&weights, 1, 0).unwrap();
        let part = dropout.of_attention(&weights.narrow(1, 0, 2), 1, 2).unwrap();
        assert_eq!(whole.narrow(1, 2, 2), part);
        assert_ne!(whole.narrow(1, 0, 2), part);
    }
}
