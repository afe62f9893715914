//! Text from a model.

use std::collections::VecDeque;
use std::num::NonZeroU32;

use longhaul_common::config::Precision;
use longhaul_common::model::ModelSpec;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use tch::{Device, Kind, Tensor};

use super::sampling::{draw, penalise};
use super::{Engine, EngineError, Sampling, set_threads, to_host};
use crate::models::{Cache, Model, Parameters};

/// Number format of generation, independent of training.
const PRECISION: Precision = Precision::F32;

/// A model that continues text, without the state of training.
#[derive(Debug)]
pub struct Generator {
    spec: ModelSpec,
    device: Device,
    model: Model,
}

/// The endless tokens after a prompt, drawn one by one; see [`Continuations`].
#[derive(Debug)]
pub struct Continuation<'a>(Continuations<'a>);

/// The endless tokens after several prompts, drawn by one pass for all: prompts need not be equally long, as a longer one's next token takes the place of a
/// drawn one until the prompt ends.
///
/// The model sees a window of the newest tokens, which grows to the whole context. A token without room leaves only the newest half, which is read anew,
/// because positions change. Otherwise a token costs one position, and the model always knows at least half a context, or all tokens.
#[derive(Debug)]
pub struct Continuations<'a> {
    generator: &'a Generator,
    rows: Vec<Row>,
    /// The windows' first tokens, as far as read by the model.
    cache: Cache,
    sampling: Sampling,
}

/// A text.
#[derive(Debug)]
struct Row {
    /// As long as that of every other text.
    window: Vec<i64>,
    /// Tokens of the prompt that come next.
    given: VecDeque<i64>,
    rng: ChaCha8Rng,
}

impl Generator {
    /// Creates a model of this specification with `parameters` in the order of [`ModelSpec::parameters`].
    ///
    /// `threads` sets libtorch's threads for the whole process; `None` leaves them unchanged.
    ///
    /// # Errors
    /// The number of `parameters` is wrong, or the model is no language model; or libtorch fails: out of memory, mostly.
    pub fn new(
        spec: &ModelSpec,
        parameters: &[f32],
        device: Device,
        threads: Option<NonZeroU32>,
    ) -> Result<Self, EngineError> {
        if spec.classifier.is_some() || spec.encoder.is_some() {
            return Err(EngineError::NoText);
        }
        set_threads(threads);
        let model = Model::of_all(spec, &Parameters::new(spec, parameters, device)?, PRECISION)?;
        Ok(Self { spec: spec.clone(), device, model })
    }

    /// Creates the model of an engine on its tensors, with their present values and future ones. It computes in f32.
    ///
    /// # Errors
    /// The engine has a part of the model alone, or the model is no language model; or libtorch fails.
    pub fn of(engine: &Engine) -> Result<Self, EngineError> {
        let spec = engine.spec();
        if spec.classifier.is_some() || spec.encoder.is_some() {
            return Err(EngineError::NoText);
        }
        engine.whole()?;
        let model = Model::of_all(spec, &engine.parameters, PRECISION)?;
        Ok(Self { spec: spec.clone(), device: engine.device(), model })
    }

    /// Continues `prompt`, of which the model sees the last tokens that fit its context.
    ///
    /// # Errors
    /// The prompt is empty, or has a token outside the vocabulary; or libtorch fails.
    pub fn continuation(&self, prompt: &[u32], sampling: Sampling) -> Result<Continuation<'_>, EngineError> {
        self.continuations(&[prompt], sampling).map(Continuation)
    }

    /// Continues each prompt as [`Self::continuation`] does, with the same seed for each. Memory: a cache of a whole context for each.
    ///
    /// # Errors
    /// There is no prompt, or one is empty, or has a token outside the vocabulary; or libtorch fails.
    pub fn continuations<P: AsRef<[u32]>>(
        &self,
        prompts: &[P],
        sampling: Sampling,
    ) -> Result<Continuations<'_>, EngineError> {
        let vocabulary = self.spec.vocabulary;
        let newest = |prompt: &P| {
            let prompt = prompt.as_ref();
            if let Some(&token) = prompt.iter().find(|&&token| token >= vocabulary) {
                return Err(EngineError::Token { token, vocabulary });
            }
            let newest = &prompt[prompt.len().saturating_sub(self.context())..];
            Ok(newest.iter().map(|&token| i64::from(token)).collect::<VecDeque<_>>())
        };
        let prompts = prompts.iter().map(newest).collect::<Result<Vec<_>, _>>()?;
        let common = prompts.iter().map(VecDeque::len).min().filter(|length| *length > 0);
        let common = common.ok_or(EngineError::EmptyPrompt)?;
        let row = |mut prompt: VecDeque<i64>| {
            let given = prompt.split_off(common);
            Row { window: prompt.into(), given, rng: ChaCha8Rng::seed_from_u64(sampling.seed) }
        };
        let cache = Cache::new(&self.spec, prompts.len() as i64, PRECISION, self.device)?;
        Ok(Continuations { generator: self, rows: prompts.into_iter().map(row).collect(), cache, sampling })
    }

    /// Returns the most tokens that the model sees at once.
    #[must_use]
    pub fn context(&self) -> usize {
        self.spec.context as usize
    }

    pub(super) fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    pub(super) fn device(&self) -> Device {
        self.device
    }

    pub(super) fn model(&self) -> &Model {
        &self.model
    }
}

impl Iterator for Continuation<'_> {
    type Item = Result<u32, EngineError>;

    /// Fails with libtorch.
    fn next(&mut self) -> Option<Self::Item> {
        // A single prompt is read as a whole: each pass draws a token.
        let drawn = self.0.draw_next();
        drawn.map(|tokens| tokens.into_iter().next().flatten()).transpose()
    }
}

impl Continuations<'_> {
    /// Draws a token of each text; `None`: its prompt goes on.
    ///
    /// # Errors
    /// Logits are no numbers, or libtorch fails.
    pub fn draw_next(&mut self) -> Result<Vec<Option<u32>>, EngineError> {
        let logits = self.next_logits()?;
        let (sampling, vocabulary) = (self.sampling, logits.len() / self.rows.len());
        let all = self.rows.iter_mut().zip(logits.chunks(vocabulary));
        all.map(|(row, logits)| row.next(logits, sampling)).collect()
    }

    /// Returns the logits [B, V] of the tokens after the windows.
    fn next_logits(&mut self) -> Result<Vec<f32>, EngineError> {
        let (context, length) = (self.generator.context(), self.rows[0].window.len());
        if length > context {
            let leaving = length - (context / 2).max(1);
            self.rows.iter_mut().for_each(|row| drop(row.window.drain(..leaving)));
            self.cache.clear();
        }
        let read = self.cache.len();
        let unread: Vec<i64> = self.rows.iter().flat_map(|row| &row.window[read..]).copied().collect();
        let unread = Tensor::f_from_slice(&unread)?.f_view([self.rows.len() as i64, -1])?; // [B, T]
        let unread = unread.f_to_device(self.generator.device)?;
        let logits = self.generator.model.next_logits(&unread, &mut self.cache)?; // [B, V]
        let mut host = Vec::new();
        to_host(&logits.f_view([-1])?.f_to_kind(Kind::Float)?, &mut host)?;
        Ok(host)
    }
}

impl Row {
    /// Adds the next token of the prompt, or one that it draws, and returns the latter.
    fn next(&mut self, logits: &[f32], sampling: Sampling) -> Result<Option<u32>, EngineError> {
        if let Some(token) = self.given.pop_front() {
            self.window.push(token);
            return Ok(None);
        }
        if logits.iter().any(|logit| logit.is_nan()) {
            return Err(EngineError::NotANumber);
        }
        let mut logits = logits.to_vec();
        penalise(&mut logits, &self.window, sampling);
        let token = draw(&logits, sampling, &mut self.rng);
        self.window.push(token as i64);
        Ok(Some(token as u32))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::test_device;
    use longhaul_common::model::draw_parameters;
    use longhaul_common::model::tiny::{tiny_gpt2, tiny_llama};

    const GREEDY: Sampling =
        Sampling { temperature: 0.0, top_k: None, top_p: 1.0, repetition_penalty: 1.0, seed: 0 };
    const PROMPT: [u32; 3] = [7, 3, 50];

    /// Weights large enough for uneven attention.
    fn generator(spec: &ModelSpec) -> Generator {
        let values: Vec<f32> = draw_parameters(spec, 3).iter().map(|value| value * 8.0).collect();
        Generator::new(spec, &values, test_device(), NonZeroU32::new(1)).unwrap()
    }

    /// Returns the number of the newest of `count` tokens that the model sees, after a prompt of `prompt` tokens.
    fn window(context: usize, prompt: usize, count: usize) -> usize {
        let first_without_room = context.max(prompt) + 1;
        if count < first_without_room {
            return count.min(context);
        }
        // From half a context up to a whole one, over and over.
        let half = context / 2;
        half + (count - first_without_room) % (context - half + 1)
    }

    /// Returns the logits of the next token, by one pass over the whole window.
    fn recomputed(generator: &Generator, tokens: &[i64]) -> Vec<f32> {
        let input = Tensor::from_slice(tokens).view([1, -1]).to_device(test_device());
        let logits = tch::no_grad(|| generator.model.logits(&input)).unwrap(); // [1, T, V]
        Vec::try_from(logits.select(1, -1).view([-1])).unwrap()
    }

    #[test]
    fn each_token_is_drawn_from_the_logits_of_a_pass_over_the_whole_window() {
        for spec in [tiny_gpt2(), tiny_llama()] {
            let (generator, context) = (generator(&spec), spec.context as usize);
            // Shorter than the context, as long, and longer.
            for length in [3, context, context + 5] {
                let prompt: Vec<u32> = PROMPT.iter().copied().cycle().take(length).collect();
                let mut all: Vec<i64> = prompt.iter().map(|&token| i64::from(token)).collect();
                let mut continuation = generator.continuation(&prompt, GREEDY).unwrap();
                for _ in 0..3 * context {
                    let seen = window(context, length, all.len());
                    let expected = recomputed(&generator, &all[all.len() - seen..]);
                    let logits = continuation.0.next_logits().unwrap();
                    let scale = expected.iter().fold(0f32, |max, logit| max.max(logit.abs()));
                    for (one, other) in logits.iter().zip(&expected) {
                        let off = (one - other).abs() / scale;
                        assert!(off < 2e-5, "{:?}, {seen} of {}: {off}", spec.kind, all.len());
                    }
                    let likeliest = (0..expected.len()).max_by(|&a, &b| expected[a].total_cmp(&expected[b]));
                    continuation.0.rows[0].window.push(likeliest.unwrap() as i64);
                    all.push(likeliest.unwrap() as i64);
                }
            }
        }
    }

    #[test]
    fn logits_that_are_no_numbers_are_an_error() {
        let spec = tiny_llama();
        let values = vec![f32::NAN; spec.parameter_count() as usize];
        let generator = Generator::new(&spec, &values, test_device(), NonZeroU32::new(1)).unwrap();
        let drawn = generator.continuation(&PROMPT, GREEDY).unwrap().next().unwrap();
        assert!(matches!(drawn, Err(EngineError::NotANumber)), "{drawn:?}");
    }

    #[test]
    fn greedy_tokens_are_those_that_recomputing_every_window_gives() {
        for spec in [tiny_gpt2(), tiny_llama()] {
            let (generator, context) = (generator(&spec), spec.context as usize);
            let mut all: Vec<i64> = PROMPT.map(i64::from).to_vec();
            for token in generator.continuation(&PROMPT, GREEDY).unwrap().take(3 * context) {
                let seen = window(context, PROMPT.len(), all.len());
                let expected = recomputed(&generator, &all[all.len() - seen..]);
                let likeliest = (0..expected.len()).max_by(|&a, &b| expected[a].total_cmp(&expected[b]));
                assert_eq!(token.unwrap() as usize, likeliest.unwrap(), "{:?} at {}", spec.kind, all.len());
                all.push(likeliest.unwrap() as i64);
            }
            let mut different = all.clone();
            different.sort_unstable();
            different.dedup();
            assert!(different.len() > 5, "{:?} repeats itself: {all:?}", spec.kind);
        }
    }

    /// Prompts of unlike lengths, one of them longer than the context, past the context's end.
    #[test]
    fn texts_drawn_together_are_those_drawn_one_by_one() {
        for spec in [tiny_gpt2(), tiny_llama()] {
            let (generator, context) = (generator(&spec), spec.context as usize);
            let prompts: Vec<Vec<u32>> = [3, 1, context + 2, 7]
                .into_iter()
                .map(|length| (0..length as u32).map(|at| (at * 7 + length as u32) % 64).collect())
                .collect();
            let sampling = Sampling { temperature: 0.7, seed: 5, ..Sampling::default() };
            let mut together = generator.continuations(&prompts, sampling).unwrap();
            let mut texts = vec![Vec::new(); prompts.len()];
            while texts.iter().any(|text| text.len() < 2 * context) {
                for (text, drawn) in texts.iter_mut().zip(together.draw_next().unwrap()) {
                    text.extend(drawn);
                }
            }
            for (prompt, text) in prompts.iter().zip(texts) {
                let alone = generator.continuation(prompt, sampling).unwrap();
                let alone: Vec<u32> = alone.take(2 * context).map(Result::unwrap).collect();
                assert_eq!(text[..2 * context], alone, "{:?}, after {} tokens", spec.kind, prompt.len());
            }
        }
    }

    #[test]
    fn the_same_seed_draws_the_same_tokens() {
        let generator = generator(&tiny_llama());
        let draw = |seed| -> Vec<u32> {
            let sampling = Sampling { seed, ..Sampling::default() };
            generator.continuation(&PROMPT, sampling).unwrap().take(40).map(Result::unwrap).collect()
        };
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
    }

    #[test]
    fn a_context_of_one_token_is_enough() {
        let generator = generator(&ModelSpec { context: 1, ..tiny_gpt2() });
        assert_eq!(generator.continuation(&PROMPT, GREEDY).unwrap().take(4).filter(Result::is_ok).count(), 4);
    }

    #[test]
    fn what_cannot_be_continued_is_an_error() {
        let generator = generator(&tiny_gpt2());
        assert!(matches!(generator.continuation(&[], GREEDY), Err(EngineError::EmptyPrompt)));
        assert!(matches!(generator.continuations::<&[u32]>(&[], GREEDY), Err(EngineError::EmptyPrompt)));
        let outside = generator.continuation(&[63, 64, 65], GREEDY);
        assert!(matches!(outside, Err(EngineError::Token { token: 64, vocabulary: 64 })));
        assert!(Generator::new(&tiny_gpt2(), &[0.0; 3], test_device(), None).is_err());
    }
}
