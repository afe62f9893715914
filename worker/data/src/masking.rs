//! Masks of masked language modelling (Devlin et al. 2018, arXiv 1810.04805), drawn anew at each visit of a sample (Liu et al. 2019, arXiv 1907.11692).

use longhaul_common::config::DataConfig;
use rand::SeedableRng;
use rand::rand_core::RngCore;
use rand_chacha::ChaCha8Rng;

use super::{DataError, Tokenizer};

/// Draws masks.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Masker {
    /// Share of the ordinary tokens that are predicted.
    share: f64,
    /// Of those, shares with the mask token and with a random token in their place.
    masked: f64,
    random: f64,
    mask: u32,
    /// Tokens that are never predicted nor drawn, in order: special ones, and the mask.
    special: Vec<u32>,
    /// Tokens of the tokenizer.
    vocabulary: u32,
}

/// A visit of a sample. Equal visits have equal masks, on all workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MaskVisit {
    /// In training, with the run's seed.
    Trained { seed: u64, sample: u64, epoch: u64 },
    /// In an evaluation: each of a held-out sample, in every run.
    HeldOut { sample: u64 },
}

/// A token of a masked sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Masked {
    /// The token that the model sees.
    pub input: u32,
    /// The token that it predicts there, if any.
    pub label: Option<u32>,
}

impl Masker {
    /// Returns the masks of a run; `None`: it has none.
    ///
    /// # Errors
    /// The tokenizer has no mask token.
    pub fn of(config: &DataConfig, tokenizer: &Tokenizer) -> Result<Option<Self>, DataError> {
        let Some(masking) = &config.masking else { return Ok(None) };
        let mask = tokenizer.mask_token(masking.token.as_ref())?;
        let mut special = tokenizer.special_tokens();
        special.push(mask);
        special.sort_unstable();
        special.dedup();
        let (share, masked, random) = (masking.share, masking.masked, masking.random);
        Ok(Some(Self { share, masked, random, mask, special, vocabulary: tokenizer.vocabulary() }))
    }

    /// Masks a sample. Its number of predicted tokens is the share of its ordinary ones, rounded up or down at random, so that it is right on average; but at
    /// least one.
    pub fn draw(&self, tokens: &[u32], visit: MaskVisit) -> impl Iterator<Item = Masked> {
        let mut chances = Chances(visit.generator());
        let ordinary = tokens.iter().filter(|token| self.is_ordinary(**token)).count();
        let wanted = (self.share * ordinary as f64 + chances.next()) as usize;
        let mut wanted = wanted.max(1).min(ordinary);
        let mut left = ordinary;
        // Selection sampling: Knuth, The Art of Computer Programming, volume 2, 3.4.2, algorithm S.
        tokens.iter().map(move |&token| {
            let is_ordinary = self.is_ordinary(token);
            let is_predicted = is_ordinary && chances.next() * (left as f64) < wanted as f64;
            left -= usize::from(is_ordinary);
            if !is_predicted {
                return Masked { input: token, label: None };
            }
            wanted -= 1;
            Masked { input: self.input_for(token, &mut chances), label: Some(token) }
        })
    }

    /// Returns what stands in the place of a predicted token.
    fn input_for(&self, token: u32, chances: &mut Chances) -> u32 {
        let chance = chances.next();
        if chance < self.masked {
            self.mask
        } else if chance < self.masked + self.random {
            self.ordinary_at(chances.next()).unwrap_or(token)
        } else {
            token
        }
    }

    fn is_ordinary(&self, token: u32) -> bool {
        self.special.binary_search(&token).is_err()
    }

    /// Returns the ordinary token at a place from [0, 1) among all; `None`: there is none.
    fn ordinary_at(&self, place: f64) -> Option<u32> {
        let special = self.special.iter().filter(|token| **token < self.vocabulary);
        let count = self.vocabulary - special.clone().count() as u32;
        let start = (count > 0).then(|| (place * f64::from(count)) as u32)?;
        Some(special.fold(start, |token, special| token + u32::from(token >= *special)))
    }

    pub fn hash_into(&self, hasher: &mut blake3::Hasher) {
        for share in [self.share, self.masked, self.random] {
            hasher.update(&share.to_le_bytes());
        }
        hasher.update(&(self.special.len() as u64).to_le_bytes());
        for token in [self.mask, self.vocabulary].iter().chain(&self.special) {
            hasher.update(&token.to_le_bytes());
        }
    }
}

impl MaskVisit {
    fn generator(self) -> ChaCha8Rng {
        let mut hasher = blake3::Hasher::new();
        let numbers = match self {
            Self::Trained { seed, sample, epoch } => {
                hasher.update(b"mask");
                [seed, sample, epoch]
            }
            Self::HeldOut { sample } => {
                hasher.update(b"held-out mask");
                [0, sample, 0]
            }
        };
        for number in numbers {
            hasher.update(&number.to_le_bytes());
        }
        ChaCha8Rng::from_seed(*hasher.finalize().as_bytes())
    }
}

/// Numbers from [0, 1).
struct Chances(ChaCha8Rng);

impl Chances {
    fn next(&mut self) -> f64 {
        /// Bits of an f64's mantissa.
        const BITS: u32 = 53;
        (self.0.next_u64() >> (64 - BITS)) as f64 / (1_u64 << BITS) as f64
    }
}
