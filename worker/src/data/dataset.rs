//! The samples of a run.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use longhaul_common::config::{DataConfig, DataSource};
use longhaul_common::mixture::Mixture;
use longhaul_common::sampler::{sample_at, source_seed};

use super::cache::Cache;
use super::lease::Lease;
use super::prepared::Maker;
use super::recipe::PIECE_BYTES;
use super::side_by_side::{Plan, prepare};
use super::source::{Source, SourceSize, files_of};
use super::{Batch, DataError, Recipe, Tokenizer, Work};

/// Sources as samples: sample i of a source is the T tokens from i·T on, and the one after them as the last target. The end of each source, or
/// other sources, are held out for validation.
#[derive(Debug)]
pub struct Dataset {
    training: Vec<Part>,
    held_out: Vec<Part>,
    mixture: Mixture,
    length: u64,
}

/// Tokens of a source that are used as samples.
#[derive(Debug)]
struct Part {
    source: Arc<Source>,
    tokens: Range<u64>,
    length: u64,
}

/// A source as people ask for it.
#[derive(Clone, Debug, PartialEq)]
pub struct SourceSummary {
    /// Its path or pattern.
    pub name: String,
    /// What was found of it.
    pub size: SourceSize,
    /// Samples of it that are trained on.
    pub samples: u64,
    /// The share of the run's samples that come from it; none: it is held out.
    pub share: Option<f64>,
}

/// A file of a source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceFile {
    /// Where it is: its path, or its URL without what only opens it.
    pub path: PathBuf,
    /// Its bytes.
    pub bytes: u64,
    /// Whether its tokens are in the cache.
    pub is_prepared: bool,
}

/// A sample as the model sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample {
    /// The source that it is of.
    pub source: String,
    /// Which one of the source.
    pub index: u64,
    /// T + 1 tokens.
    pub tokens: Vec<u32>,
}

/// Which sample stands at a position, and for which time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Visit {
    /// Its number among all samples that are trained on, from 0.
    pub sample: u64,
    /// How often its source was gone through before.
    pub epoch: u64,
}

impl Dataset {
    /// The data of a run. What is not prepared yet is prepared, and kept in the worker's folder `cache`.
    ///
    /// # Errors
    /// [`DataError`] names the file and what to do.
    pub fn open(
        config: &DataConfig,
        tokenizer: &Tokenizer,
        cache: &Path,
        work: &Work,
    ) -> Result<Self, DataError> {
        Self::open_within(config, tokenizer, (cache, None), work)
    }

    /// The same with a folder that may hold so many bytes: what has not been used for longest is thrown away for what is prepared.
    ///
    /// # Errors
    /// As [`Self::open`], and [`DataError::NoRoom`].
    pub fn open_within(
        config: &DataConfig,
        tokenizer: &Tokenizer,
        (cache, bytes_max): (&Path, Option<u64>),
        work: &Work,
    ) -> Result<Self, DataError> {
        let cache = Cache::open(cache, bytes_max)?;
        Self::prepared_by(config, Maker { cache: &cache, tokenizer, work, piece_bytes: PIECE_BYTES })
    }

    pub(super) fn prepared_by(config: &DataConfig, maker: Maker<'_>) -> Result<Self, DataError> {
        maker.cache.sweep()?;
        let (sources, lease) = (config.training(), Arc::new(Lease::new(maker.cache)?));
        let plans = sources.iter().chain(&config.validation).map(|source| Plan::new(source, config, &maker));
        let opened = prepare(plans.collect::<Result<_, _>>()?, maker, &lease)?;
        let mut training: Vec<Arc<Source>> = opened.into_iter().map(Arc::new).collect();
        let validation = training.split_off(sources.len());
        Self::of(config, &sources, training, validation)
    }

    fn of(
        config: &DataConfig,
        sources: &[DataSource],
        training: Vec<Arc<Source>>,
        validation: Vec<Arc<Source>>,
    ) -> Result<Self, DataError> {
        let length = u64::from(config.sequence_length);
        let part = |source: &Arc<Source>, tokens| Part { source: Arc::clone(source), tokens, length };
        let share = config.held_out_share();
        // A float that is too large becomes the largest integer.
        let kept = |tokens: u64| tokens - (tokens as f64 * share) as u64;
        let data: Vec<Part> = training.iter().map(|source| part(source, 0..kept(source.tokens()))).collect();
        let ends = training.iter().map(|source| part(source, kept(source.tokens())..source.tokens()));
        let others = validation.iter().map(|source| part(source, 0..source.tokens()));
        let held_out = ends.chain(others).collect();
        let mixture = mixture(sources, &data)?;
        Ok(Self { training: data, held_out, mixture, length })
    }

    /// Samples for training, at least one.
    #[must_use]
    pub fn samples(&self) -> u64 {
        self.training.iter().map(Part::samples).sum()
    }

    /// Names the samples: equal where sources, weights, tokenizer, sequence length and validation share are.
    #[must_use]
    pub fn data_hash(&self) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new();
        for (part, weight) in self.training.iter().zip(self.mixture.weights()) {
            part.source.hash_into(&mut hasher);
            hasher.update(&part.tokens.end.to_le_bytes());
            hasher.update(&weight.to_le_bytes());
        }
        hasher.update(&self.length.to_le_bytes());
        *hasher.finalize().as_bytes()
    }

    /// The samples at these positions of the run's stream: see [`Mixture`] and [`sample_at`].
    ///
    /// # Errors
    /// Prepared data is damaged, and cannot be made again.
    pub fn batch(&self, positions: impl IntoIterator<Item = u64>, seed: u64) -> Result<Batch, DataError> {
        let mut batch = Batch::new(self.length as usize);
        for position in positions {
            batch.push(self.sample(position, seed)?.tokens);
        }
        Ok(batch)
    }

    /// Up to `batches` batches of `sequences` held-out sequences, spread evenly; the same at each call. None when less than a
    /// sequence is held out.
    ///
    /// # Errors
    /// Prepared data is damaged, and cannot be made again.
    pub fn validation(&self, batches: usize, sequences: usize) -> Result<Vec<Batch>, DataError> {
        let there: u64 = self.held_out.iter().map(Part::samples).sum();
        let wanted = (batches as u64 * sequences as u64).min(there);
        let windows: Vec<u64> = (0..wanted).map(|i| i * there / wanted).collect();
        let batch = |windows: &[u64]| {
            let (mut batch, mut tokens) = (Batch::new(self.length as usize), Vec::new());
            for window in windows {
                self.read_held_out(*window, &mut tokens)?;
                batch.push(tokens.drain(..));
            }
            Ok(batch)
        };
        windows.chunks(sequences.max(1)).map(batch).collect()
    }

    /// Tells the system that the sample at a position of the run's stream is read soon, and answers how many bytes that may bring into memory.
    pub(super) fn expect(&self, position: u64, seed: u64) -> u64 {
        let (part, index) = self.find(position, seed);
        part.source.expect(part.range(index))
    }

    /// The sample at a position of the run's stream.
    ///
    /// # Errors
    /// Prepared data is damaged, and cannot be made again.
    pub fn sample(&self, position: u64, seed: u64) -> Result<Sample, DataError> {
        let (part, index) = self.find(position, seed);
        let mut tokens = Vec::new();
        part.read(index, &mut tokens)?;
        Ok(Sample { source: part.source.name.clone(), index, tokens })
    }

    /// Which sample stands at a position of the run's stream, and in which epoch of its source.
    #[must_use]
    pub fn visit(&self, position: u64, seed: u64) -> Visit {
        let place = self.mixture.place(position);
        let samples = self.training[place.source].samples();
        let before: u64 = self.training[..place.source].iter().map(Part::samples).sum();
        let index = sample_at(source_seed(seed, place.source), samples, place.index);
        Visit { sample: before + index, epoch: place.index / samples }
    }

    /// The part that a position's sample is of, and which one of it.
    fn find(&self, position: u64, seed: u64) -> (&Part, u64) {
        let place = self.mixture.place(position);
        let part = &self.training[place.source];
        (part, sample_at(source_seed(seed, place.source), part.samples(), place.index))
    }

    /// The files of a run's sources, and whether they are prepared. Nothing is prepared.
    ///
    /// # Errors
    /// [`DataError`] names the file and what to do.
    pub fn look(
        config: &DataConfig,
        tokenizer: &Tokenizer,
        cache: &Path,
    ) -> Result<Vec<SourceFile>, DataError> {
        let (cache, work) = (Cache::open(cache, None)?, Work::default());
        let maker = Maker { cache: &cache, tokenizer, work: &work, piece_bytes: PIECE_BYTES };
        let mut files = Vec::new();
        for source in config.training().iter().chain(&config.validation) {
            let recipe = Recipe::new(source, config, &maker);
            for file in files_of(source, &cache)? {
                let bytes = file.bytes()?;
                let is_prepared = maker.find(&file, &recipe)?.is_some();
                files.push(SourceFile { path: file.path().to_owned(), bytes, is_prepared });
            }
        }
        Ok(files)
    }

    /// Up to `tokens` tokens at the beginning of a source, as they are trained on.
    ///
    /// # Errors
    /// Prepared data is damaged, and cannot be made again.
    pub fn peek(&self, source: usize, tokens: u64) -> Result<Vec<u32>, DataError> {
        let mut found = Vec::new();
        if let Some(part) = self.training.get(source) {
            part.source.read(0..part.tokens.end.min(tokens), &mut found)?;
        }
        Ok(found)
    }

    fn read_held_out(&self, mut window: u64, into: &mut Vec<u32>) -> Result<(), DataError> {
        for part in &self.held_out {
            if window < part.samples() {
                return part.read(window, into);
            }
            window -= part.samples();
        }
        Ok(())
    }

    /// The sources, those that are held out last.
    #[must_use]
    pub fn sources(&self) -> Vec<SourceSummary> {
        let all: u64 = self.mixture.weights().sum();
        let summary = |part: &Part, share| SourceSummary {
            name: part.source.name.clone(),
            size: part.source.size(),
            samples: part.samples(),
            share,
        };
        let training = self.training.iter().zip(self.mixture.weights());
        let training = training.map(|(part, weight)| summary(part, Some(weight as f64 / all as f64)));
        training.chain(self.others().map(|part| summary(part, None))).collect()
    }

    /// Makes every shard that is missing again, so that nothing is left to do when a run starts.
    ///
    /// # Errors
    /// [`DataError`] names the file and what to do.
    pub fn complete(&self) -> Result<(), DataError> {
        self.all().try_for_each(|part| part.source.complete())
    }

    /// Reads every byte of what is prepared, makes damaged shards again, and returns how many those were. `checked` is told of bytes as they are checked.
    ///
    /// # Errors
    /// [`DataError`] names the file and what to do.
    pub fn verify(&self, mut checked: impl FnMut(u64)) -> Result<u64, DataError> {
        self.all().map(|part| part.source.verify(&mut checked)).sum()
    }

    /// One part of each source.
    fn all(&self) -> impl Iterator<Item = &Part> {
        self.training.iter().chain(self.others())
    }

    /// Sources of which nothing is trained on.
    fn others(&self) -> impl Iterator<Item = &Part> {
        self.held_out[self.training.len()..].iter()
    }
}

impl Part {
    /// Whole samples.
    fn samples(&self) -> u64 {
        (self.tokens.end - self.tokens.start).saturating_sub(1) / self.length
    }

    /// T + 1 tokens.
    fn read(&self, sample: u64, into: &mut Vec<u32>) -> Result<(), DataError> {
        self.source.read(self.range(sample), into)
    }

    /// Where a sample is in the source.
    fn range(&self, sample: u64) -> Range<u64> {
        let start = self.tokens.start + sample * self.length;
        start..start + self.length + 1
    }
}

/// How sources are mixed: each must have a sample where it has a weight, and one of them at least where none has.
fn mixture(sources: &[DataSource], training: &[Part]) -> Result<Mixture, DataError> {
    let too_short = |source_name: String, parts: &[Part]| DataError::TooShort {
        source_name,
        tokens: parts.iter().map(|part| part.source.tokens()).sum(),
        training: parts.iter().map(|part| part.tokens.end).sum(),
        needed: parts.first().map_or(0, |part| part.length) + 1,
    };
    let weights: Vec<f64> = sources.iter().filter_map(|source| source.weight).collect();
    if weights.is_empty() {
        let samples: Vec<u64> = training.iter().map(Part::samples).collect();
        let names: Vec<&str> = training.iter().map(|part| part.source.name.as_str()).collect();
        return Mixture::by_samples(&samples).ok_or_else(|| too_short(names.join(", "), training));
    }
    if let Some(at) = training.iter().position(|part| part.samples() == 0) {
        return Err(too_short(training[at].source.name.clone(), &training[at..=at]));
    }
    Mixture::by_weights(&weights).ok_or_else(|| too_short("data.sources".to_owned(), training))
}
