//! Log-likelihoods of continuations.

use std::collections::BTreeMap;
use std::ops::Range;

use longhaul_common::config::RopeScaling;
use longhaul_common::model::ModelSpec;
use tch::{Kind, TchError, Tensor};

use super::{EngineError, Generator, to_host};

/// Tokens of a batch, padding included, unless one sequence has more: enough for full use of a device.
const BATCH_TOKENS: usize = 4096;
/// Logits computed at once: 256 MiB in f32.
const LOGITS_MAX: usize = 1 << 26;

/// A sequence of tokens whose end is scored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scored<'a> {
    /// All tokens: at most one more than the model's context, as the last one is no input.
    pub tokens: &'a [u32],
    /// Index of the first scored token: 1 at least, as the first token follows nothing.
    pub from: usize,
}

/// The likelihood of a token, given all tokens before it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TokenLikelihood {
    /// Logarithm of its probability, in nats.
    pub log: f32,
    /// Whether it is the likeliest token.
    pub is_likeliest: bool,
}

/// The likelihood of a continuation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LogLikelihood {
    /// Sum of the logarithms of its tokens' probabilities, each given all tokens before it, in nats.
    pub sum: f64,
    /// Whether each of its tokens is the likeliest one.
    pub is_greedy: bool,
}

impl Generator {
    /// Returns the log-likelihood of the end of each sequence.
    ///
    /// # Errors
    /// As [`Self::token_likelihoods`].
    pub fn log_likelihoods(&self, sequences: &[Scored<'_>]) -> Result<Vec<LogLikelihood>, EngineError> {
        let of = |tokens: Vec<TokenLikelihood>| LogLikelihood {
            sum: tokens.iter().map(|token| f64::from(token.log)).sum(),
            is_greedy: tokens.iter().all(|token| token.is_likeliest),
        };
        Ok(self.token_likelihoods(sequences)?.into_iter().map(of).collect())
    }

    /// Returns the likelihoods of the scored tokens of each sequence, in order. Sequences are batched by length and padded on the right, where causal attention does not look;
    /// those with equal inputs are computed once. The softmax is in f32.
    ///
    /// # Errors
    /// A sequence is longer than the context, has nothing to score, or a token outside the vocabulary; or libtorch fails: out of memory, mostly.
    pub fn token_likelihoods(
        &self,
        sequences: &[Scored<'_>],
    ) -> Result<Vec<Vec<TokenLikelihood>>, EngineError> {
        sequences.iter().try_for_each(|sequence| self.check(sequence))?;
        let mut inputs = BTreeMap::<&[u32], Vec<usize>>::new();
        for (at, sequence) in sequences.iter().enumerate() {
            let (_, input) = sequence.tokens.split_last().ok_or(EngineError::EmptyPrompt)?;
            inputs.entry(input).or_default().push(at);
        }
        let mut rows: Vec<Row<'_>> =
            inputs.into_iter().map(|(input, scored)| Row { input, scored }).collect();
        rows.sort_by_key(|row| std::cmp::Reverse(row.input.len()));
        let mut found = vec![Vec::new(); sequences.len()];
        for batch in batches(&rows, short_length(self.spec())) {
            tch::no_grad(|| self.score(&rows[batch], sequences, &mut found))?;
        }
        Ok(found)
    }

    fn check(&self, sequence: &Scored<'_>) -> Result<(), EngineError> {
        let Scored { tokens, from } = *sequence;
        let (context, vocabulary) = (self.context(), self.spec().vocabulary);
        if tokens.len() > context + 1 || !(1..tokens.len()).contains(&from) {
            return Err(EngineError::Unscorable { tokens: tokens.len(), from, context });
        }
        match tokens.iter().find(|token| **token >= vocabulary) {
            Some(&token) => Err(EngineError::Token { token, vocabulary }),
            None => Ok(()),
        }
    }

    /// Adds the likelihoods of the rows of one batch.
    fn score(
        &self,
        rows: &[Row<'_>],
        sequences: &[Scored<'_>],
        found: &mut [Vec<TokenLikelihood>],
    ) -> Result<(), EngineError> {
        let length = rows.iter().map(|row| row.input.len()).max().unwrap_or(0);
        let mut tokens = Vec::with_capacity(rows.len() * length);
        let mut places = Vec::new();
        for (row, Row { input, scored }) in rows.iter().enumerate() {
            tokens.extend(input.iter().map(|token| i64::from(*token)));
            tokens.resize((row + 1) * length, 0);
            for &sequence in scored {
                let Scored { tokens, from } = sequences[sequence];
                let place = |at: usize| Place { sequence, at: row * length + at - 1, token: tokens[at] };
                places.extend((from..tokens.len()).map(place));
            }
        }
        let tokens = Tensor::f_from_slice(&tokens)?.f_view([rows.len() as i64, -1])?;
        let x = self.model().forward(&tokens.f_to_device(self.device())?)?; // [B, T, D]
        let x = x.f_flatten(0, 1)?; // [B·T, D]
        let step = (LOGITS_MAX / self.spec().vocabulary.max(1) as usize).max(1);
        for places in places.chunks(step) {
            self.add(&x, places, found)?;
        }
        Ok(())
    }

    /// Adds the likelihoods at these places of x [B·T, D].
    fn add(
        &self,
        x: &Tensor,
        places: &[Place],
        found: &mut [Vec<TokenLikelihood>],
    ) -> Result<(), EngineError> {
        let column = |value: fn(&Place) -> i64| -> Result<Tensor, TchError> {
            Tensor::f_from_slice(&places.iter().map(value).collect::<Vec<_>>())?.f_to_device(x.device())
        };
        let (at, tokens) = (column(|place| place.at as i64)?, column(|place| i64::from(place.token))?); // [N]
        let logits = self.model().logits_behind(&x.f_index_select(0, &at)?.f_unsqueeze(0)?)?; // [1, N, V]
        let logits = logits.f_squeeze_dim(0)?.f_log_softmax(-1, Kind::Float)?; // [N, V]
        let likeliest = logits.f_argmax(-1, false)?.f_eq_tensor(&tokens)?.f_to_kind(Kind::Float)?; // [N]
        let chosen = logits.f_gather(-1, &tokens.f_unsqueeze(-1)?, false)?.f_squeeze_dim(-1)?; // [N]
        let (mut logs, mut hits) = (Vec::new(), Vec::new());
        to_host(&chosen, &mut logs)?;
        to_host(&likeliest, &mut hits)?;
        if logs.iter().any(|log| log.is_nan()) {
            return Err(EngineError::NotANumber);
        }
        for ((place, log), hit) in places.iter().zip(logs).zip(hits) {
            found[place.sequence].push(TokenLikelihood { log, is_likeliest: hit != 0.0 });
        }
        Ok(())
    }
}

/// An input, and the sequences that have it.
struct Row<'a> {
    input: &'a [u32],
    scored: Vec<usize>,
}

/// A scored token.
struct Place {
    sequence: usize,
    /// Index of the token before it among those of the batch.
    at: usize,
    token: u32,
}

/// Divides rows of falling length into batches; none has rows on both sides of `short` tokens.
fn batches(rows: &[Row<'_>], short: usize) -> Vec<Range<usize>> {
    let (mut batches, mut start) = (Vec::new(), 0);
    for at in 0..rows.len() {
        let longest = rows[start].input.len();
        let is_full = (at - start + 1) * longest > BATCH_TOKENS;
        let is_short = longest > short && rows[at].input.len() <= short;
        if at > start && (is_full || is_short) {
            batches.push(start..at);
            start = at;
        }
    }
    if start < rows.len() {
        batches.push(start..rows.len());
    }
    batches
}

/// Returns the length up to which sequences have other rotary frequencies: padding must not change them. 0: none.
fn short_length(spec: &ModelSpec) -> usize {
    let Some(of) = &spec.decoder else { return 0 };
    let rotaries = (0..spec.layers).filter_map(|layer| of.rotary_of(layer));
    let shorts = rotaries.filter_map(|rotary| match &rotary.scaling {
        Some(RopeScaling::LongRope { original, .. }) => Some(*original as usize),
        _ => None,
    });
    shorts.max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use longhaul_common::model::draw_parameters;
    use longhaul_common::model::tiny::{tiny_gpt2, tiny_llama};

    use super::*;
    use crate::testing::test_device;

    #[test]
    fn logits_that_are_no_numbers_have_no_likelihood() {
        let spec = tiny_llama();
        let values = vec![f32::NAN; spec.parameter_count() as usize];
        let generator = Generator::new(&spec, &values, test_device(), NonZeroU32::new(1)).unwrap();
        let scored = generator.log_likelihoods(&[Scored { tokens: &[3, 4, 5], from: 1 }]);
        assert!(matches!(scored, Err(EngineError::NotANumber)), "{scored:?}");
    }

    fn generator(spec: &ModelSpec) -> Generator {
        let values: Vec<f32> = draw_parameters(spec, 3).iter().map(|value| value * 8.0).collect();
        Generator::new(spec, &values, test_device(), NonZeroU32::new(1)).unwrap()
    }

    fn sequence(seed: u32, length: usize) -> Vec<u32> {
        (0..length as u32).map(|at| (at * at * 7 + seed * 13 + at) % 64).collect()
    }

    /// Returns the same one by one, from the logits of the whole pass, in f64.
    fn expected(generator: &Generator, scored: &Scored<'_>) -> LogLikelihood {
        let tokens: Vec<i64> = scored.tokens.iter().map(|token| i64::from(*token)).collect();
        let input = Tensor::from_slice(&tokens[..tokens.len() - 1]).view([1, -1]).to_device(test_device());
        let logits = tch::no_grad(|| generator.model().logits(&input)).unwrap().squeeze_dim(0);
        let (mut sum, mut is_greedy) = (0.0, true);
        for at in scored.from..tokens.len() {
            let row: Vec<f32> = Vec::try_from(logits.get(at as i64 - 1)).unwrap();
            let largest = row.iter().copied().fold(f32::MIN, f32::max);
            let total: f64 = row.iter().map(|logit| f64::from(logit - largest).exp()).sum();
            let logit = row[tokens[at] as usize];
            sum += f64::from(logit - largest) - total.ln();
            is_greedy &= logit == largest;
        }
        LogLikelihood { sum, is_greedy }
    }

    #[test]
    fn batches_of_unlike_lengths_score_as_each_sequence_alone() {
        for spec in [tiny_gpt2(), tiny_llama()] {
            let (generator, context) = (generator(&spec), spec.context as usize);
            let mut all: Vec<(Vec<u32>, usize)> = Vec::new();
            for (seed, length) in [2, 3, 9, context + 1, 5, context, 3].into_iter().enumerate() {
                all.push((sequence(seed as u32, length), 1 + seed % (length - 1)));
            }
            // Equal inputs with other last tokens, and another start.
            let mut other = all[2].0.clone();
            other[8] = (other[8] + 1) % 64;
            all.extend([(other, 8), (all[2].0.clone(), 1)]);
            // A continuation that the model itself gives.
            let mut greedy = all[0].0.clone();
            let sampling = crate::Sampling { temperature: 0.0, ..crate::Sampling::default() };
            let own = generator.continuation(&greedy, sampling).unwrap().take(3).map(Result::unwrap);
            greedy.extend(own.collect::<Vec<_>>());
            all.push((greedy, 2));
            let scored: Vec<Scored<'_>> =
                all.iter().map(|(tokens, from)| Scored { tokens, from: *from }).collect();
            let found = generator.log_likelihoods(&scored).unwrap();
            for (one, found) in scored.iter().zip(&found) {
                let expected = expected(&generator, one);
                assert!((found.sum - expected.sum).abs() < 1e-4, "{one:?}: {found:?}, {expected:?}");
                assert_eq!(found.is_greedy, expected.is_greedy, "{one:?}");
            }
            assert!(found.last().unwrap().is_greedy && !found[2].is_greedy);
        }
    }

    #[test]
    fn batches_are_cut_by_tokens_and_where_frequencies_change() {
        let inputs: Vec<Vec<u32>> = [3000, 1100, 1000, 900, 9, 8, 4].map(|length| vec![0; length]).into();
        let rows: Vec<Row<'_>> = inputs.iter().map(|input| Row { input, scored: Vec::new() }).collect();
        assert_eq!(batches(&rows, 0), [0..1, 1..4, 4..7].map(|range| range));
        assert_eq!(batches(&rows, 8), [0..1, 1..4, 4..5, 5..7].map(|range| range));
        assert_eq!(batches(&[], 8), Vec::<Range<usize>>::new());
    }

    #[test]
    fn what_cannot_be_scored_is_an_error() {
        let generator = generator(&tiny_gpt2());
        let long = vec![1; tiny_gpt2().context as usize + 2];
        for (tokens, from) in [(&long[..], 1), (&[1, 2], 0), (&[1, 2], 2), (&[1], 1), (&[], 0)] {
            let found = generator.log_likelihoods(&[Scored { tokens, from }]);
            assert!(matches!(found, Err(EngineError::Unscorable { .. })), "{found:?}");
        }
        let outside = generator.log_likelihoods(&[Scored { tokens: &[1, 64], from: 1 }]);
        assert!(matches!(outside, Err(EngineError::Token { token: 64, vocabulary: 64 })));
        assert_eq!(generator.log_likelihoods(&[]).unwrap(), []);
    }
}
