//! The samples of a run.

use std::path::Path;
use std::sync::Arc;

use longhaul_common::config::{DataConfig, DataSource};
use longhaul_common::mixture::Mixture;
use longhaul_common::sampler::{sample_at, seed_at, source_seed};
use longhaul_proto::little_endian::tokens;

use super::cache::Cache;
use super::counted::{are, counted};
use super::filling::Coming;
use super::image::augment;
use super::lease::Lease;
use super::lent::{BlockStore, Catalogue, LentBlock, Supply};
use super::masking::MaskVisit;
use super::mixed::mixture;
use super::part::{SourcePart, bring, gaps};
use super::prepared::Maker;
use super::recipe::PIECE_BYTES;
use super::sample::SampleShape;
use super::side_by_side::{Plan, When, check_classes, check_held_out, prepare, tell_held_out};
use super::source::Source;
use super::source_size::SourceSize;
use super::{ClassGaps, DataError, HostBatch, SameContent, Sample, Tokenizer, Work, built};

/// Sources as samples: sample i of a source is the T tokens from i·T and the next one as the last target, or its image i. A part of each
/// source, or whole sources, are held out for validation.
#[derive(Debug)]
pub struct Dataset {
    training: Vec<SourcePart>,
    held_out: Vec<SourcePart>,
    mixture: Mixture,
    shape: SampleShape,
    gaps: ClassGaps,
}

/// Summary of a source, for messages.
#[derive(Clone, Debug, PartialEq)]
pub struct SourceSummary {
    /// Its path or pattern.
    pub name: String,
    /// Its size.
    pub size: SourceSize,
    /// Its training samples.
    pub samples: u64,
    /// Its share of the run's samples; `None`: it is held out.
    pub share: Option<f64>,
}

/// The sample at a position of the stream, and its epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Visit {
    /// Its number among all training samples, from 0.
    pub sample: u64,
    /// Completed passes over its source.
    pub epoch: u64,
}

impl Dataset {
    /// Opens the data of a run, and prepares missing data in the worker's folder `cache`.
    ///
    /// # Errors
    /// [`DataError`] names the file and the remedy.
    pub fn open(
        config: &DataConfig,
        tokenizer: &Tokenizer,
        cache: &Path,
        work: &Work,
    ) -> Result<Self, DataError> {
        Self::open_within(config, tokenizer, (cache, None), work)
    }

    /// The same with a cache of limited size: the least recently used data is evicted to make room.
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

    /// The same, but folders of images are decoded during training: requested images first, the rest in the background.
    ///
    /// # Errors
    /// As [`Self::open_within`]; errors of an image are reported when it is read.
    pub fn begin_within(
        config: &DataConfig,
        tokenizer: &Tokenizer,
        (cache, bytes_max): (&Path, Option<u64>),
        work: &Work,
    ) -> Result<Self, DataError> {
        let cache = Cache::open(cache, bytes_max)?;
        let maker = Maker { cache: &cache, tokenizer, work, piece_bytes: PIECE_BYTES };
        Self::opened_by(config, maker, When::Meanwhile)
    }

    pub(super) fn prepared_by(config: &DataConfig, maker: Maker<'_>) -> Result<Self, DataError> {
        Self::opened_by(config, maker, When::First)
    }

    pub(super) fn opened_by(config: &DataConfig, maker: Maker<'_>, when: When) -> Result<Self, DataError> {
        built::check(config)?;
        check_separator(config, maker.tokenizer)?;
        let shape = SampleShape::of(config, maker.tokenizer)?;
        let (sources, lease) = (config.training(), Arc::new(Lease::new(maker.cache)?));
        let plans = sources.iter().chain(&config.validation).map(|source| Plan::new(source, config, &maker));
        let plans: Vec<Plan<'_>> = plans.collect::<Result<_, _>>()?;
        check_classes(&plans)?;
        check_held_out(&plans, sources.len())?;
        let opened = prepare(plans, when, maker, &lease)?;
        let mut training: Vec<Arc<Source>> = opened.into_iter().map(Arc::new).collect();
        let validation = training.split_off(sources.len());
        tell_held_out(&training, &validation);
        let data = Self::of(shape, config, &sources, training, validation)?;
        let same = data.copies();
        if same.count() > 0 {
            tracing::warn!(%same, "sources have duplicate files");
        }
        Ok(data)
    }

    /// Opens the data of a run without local files: blocks are fetched from other workers on demand.
    ///
    /// # Errors
    /// The catalogue does not match the configuration, or has too few items.
    pub fn elsewhere(
        config: &DataConfig,
        tokenizer: &Tokenizer,
        catalogue: &Catalogue,
        stock: &Arc<BlockStore>,
        supply: &Arc<dyn Supply>,
    ) -> Result<Self, DataError> {
        let sources = config.training();
        let wanted: Vec<&DataSource> = sources.iter().chain(&config.validation).collect();
        if catalogue.tokenizer.is_some() != (config.tokenizer != DataConfig::BYTES) {
            return Err(Catalogue::refused("it is of another tokenizer"));
        }
        if wanted.len() != catalogue.sources.len() {
            return Err(Catalogue::refused("it has another number of sources"));
        }
        let opened = wanted.into_iter().zip(&catalogue.sources).map(|(source, listed)| {
            Source::elsewhere(source, listed, Arc::clone(stock), Arc::clone(supply)).map(Arc::new)
        });
        let mut training: Vec<Arc<Source>> = opened.collect::<Result<_, _>>()?;
        let validation = training.split_off(sources.len());
        Self::of(SampleShape::of(config, tokenizer)?, config, &sources, training, validation)
    }

    /// Returns the parts that are prepared while they are in use.
    #[must_use]
    pub fn coming(&self) -> Coming {
        Coming::new(self.all().filter_map(|part| part.source.filling()).cloned().collect())
    }

    /// Returns the catalogue of the prepared data, made with this tokenizer.
    pub(super) fn catalogue(&self, tokenizer: &Tokenizer) -> Catalogue {
        let tokenizer = tokenizer.json().map(|json| *blake3::hash(&json).as_bytes());
        Catalogue { tokenizer, sources: self.all().map(SourcePart::listed).collect() }
    }

    /// Returns a block of a source's shard with the shard's head; `None`: it is not here.
    pub(super) fn lend(
        &self,
        source: usize,
        shard: usize,
        block: usize,
    ) -> Result<Option<LentBlock>, DataError> {
        self.all().nth(source).map_or(Ok(None), |part| part.source.lend(shard, block))
    }

    fn of(
        shape: SampleShape,
        config: &DataConfig,
        sources: &[DataSource],
        training: Vec<Arc<Source>>,
        validation: Vec<Arc<Source>>,
    ) -> Result<Self, DataError> {
        let share = config.held_out_share();
        let divided = training.iter().zip(sources);
        let divided = divided.map(|(source, of)| SourcePart::divided(source, of.format(), share, &shape));
        let (data, mut held_out): (Vec<SourcePart>, Vec<SourcePart>) = divided.unzip();
        held_out.extend(validation.iter().map(|source| SourcePart::whole(source, &shape)));
        let is_asked_for = share > 0.0 || !validation.is_empty();
        if is_asked_for && held_out.iter().all(|part| part.samples() == 0) {
            let left_out = |source: &Arc<Source>| source.size().conversations.left_out;
            let left_out = (!validation.is_empty()).then(|| validation.iter().map(left_out).sum());
            tracing::warn!("{}", nothing_held_out(left_out));
        }
        let mixture = mixture(config, sources, &data)?;
        let gaps = gaps(&data, &held_out);
        if gaps.has_untrained() {
            tracing::warn!(%gaps, "not all classes are trained on");
        } else if !gaps.are_none() {
            tracing::info!(%gaps, "not all classes are held out");
        }
        Ok(Self { training: data, held_out, mixture, shape, gaps })
    }

    /// Returns the classes whose images are all trained on or all held out, as far as this worker has the data.
    #[must_use]
    pub fn class_gaps(&self) -> &ClassGaps {
        &self.gaps
    }

    /// Returns the files of training sources with the content of files of other ones, as far as this worker has the data.
    #[must_use]
    pub fn copies(&self) -> SameContent {
        SameContent::across(self.training.iter().map(|part| part.source.contents()))
    }

    /// Returns the number of training samples, at least one.
    #[must_use]
    pub fn samples(&self) -> u64 {
        self.training.iter().map(SourcePart::samples).sum()
    }

    /// Returns the number of held-out samples.
    #[must_use]
    pub fn held_out_samples(&self) -> u64 {
        self.held_out.iter().map(SourcePart::samples).sum()
    }

    /// Identifies the samples: equal for equal sources, weights, tokenizer, sequence length or image shape, and validation share.
    #[must_use]
    pub fn data_hash(&self) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new();
        for (part, weight) in self.training.iter().zip(self.mixture.weights()) {
            part.source.hash_into(&mut hasher);
            part.hash_into(&mut hasher);
            hasher.update(&weight.to_le_bytes());
        }
        self.shape.hash_into(&mut hasher);
        *hasher.finalize().as_bytes()
    }

    /// Identifies the held-out samples, as [`Self::data_hash`] those for training.
    #[must_use]
    pub fn held_out_hash(&self) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new();
        for part in &self.held_out {
            part.source.hash_into(&mut hasher);
            part.hash_into(&mut hasher);
        }
        self.shape.hash_into(&mut hasher);
        *hasher.finalize().as_bytes()
    }

    /// Returns the samples at these positions of the run's stream: see [`Mixture`] and [`sample_at`].
    ///
    /// # Errors
    /// Prepared data is damaged and cannot be rebuilt.
    pub fn batch(&self, positions: impl IntoIterator<Item = u64>, seed: u64) -> Result<HostBatch, DataError> {
        let (mut batch, mut sample) = (self.shape.batch(), Vec::new());
        let positions: Vec<u64> = positions.into_iter().collect();
        bring(positions.iter().map(|position| self.find(*position, seed)))?;
        let seeds = positions.iter().map(|position| seed_at(seed, *position)).collect();
        for position in positions {
            let part = self.read(position, seed, &mut sample)?.0;
            let visit = self.mask_visit(position, seed);
            self.shape.push(&sample, part.source.item_bytes(), visit, &mut batch);
        }
        Ok(batch.seeded(seeds))
    }

    /// Returns up to `batches` batches of `sequences` held-out samples, spread evenly: equal at each call, without augmentation. Empty if less
    /// than a sample is held out. Batches are read lazily, as all of them may exceed memory.
    ///
    /// # Errors
    /// Of each: prepared data is damaged and cannot be rebuilt.
    pub fn validation(
        &self,
        batches: usize,
        sequences: usize,
    ) -> impl Iterator<Item = Result<HostBatch, DataError>> {
        let there = self.held_out_samples();
        let wanted = (batches as u64 * sequences as u64).min(there);
        let sequences = sequences.max(1);
        let held_out = move |at: u64| self.find_held_out(at * there / wanted);
        let batch_from = move |first: u64| first..wanted.min(first + sequences as u64);
        (0..wanted).step_by(sequences).map(move |first| {
            let next = batch_from(first + sequences as u64);
            let soon = if first == 0 { first..next.end } else { next };
            for (part, sample) in soon.filter_map(held_out) {
                part.source.expect(part.range(sample));
            }
            let (mut batch, mut sample) = (self.shape.batch(), Vec::new());
            bring(batch_from(first).filter_map(held_out))?;
            for at in batch_from(first) {
                if let Some((part, index)) = held_out(at) {
                    part.read(index, &mut sample)?;
                    let visit = MaskVisit::HeldOut { sample: at * there / wanted };
                    self.shape.push(&sample, part.source.item_bytes(), visit, &mut batch);
                }
            }
            Ok(batch)
        })
    }

    /// Announces upcoming reads of the samples at these positions to the operating system, decodes images where needed, and returns the bytes that
    /// may come into memory. Decoding errors are left to the reader.
    pub(super) fn expect(&self, positions: &[u64], seed: u64) -> u64 {
        let found = || positions.iter().map(|position| self.find(*position, seed));
        let bytes = found().map(|(part, index)| part.source.expect(part.range(index))).sum();
        let _ = bring(found().filter(|(part, _)| part.source.keeps()));
        bytes
    }

    /// Returns the sample at a position of the run's stream.
    ///
    /// # Errors
    /// Prepared data is damaged and cannot be rebuilt.
    pub fn sample(&self, position: u64, seed: u64) -> Result<Sample, DataError> {
        let mut sample = Vec::new();
        let (part, index) = self.read(position, seed, &mut sample)?;
        let visit = self.mask_visit(position, seed);
        let content = self.shape.content(sample, part.source.item_bytes(), visit);
        Ok(Sample { source: part.source.name.clone(), index, content })
    }

    /// Replaces `into` with the sample at a position as stored in the shard, before augmentation.
    fn read(&self, position: u64, seed: u64, into: &mut Vec<u8>) -> Result<(&SourcePart, u64), DataError> {
        let (part, index) = self.find(position, seed);
        part.read(index, into)?;
        if let SampleShape::Image(shape) = &self.shape {
            augment(&mut into[..shape.values() as usize], shape, seed, position);
        }
        Ok((part, index))
    }

    /// Returns the sample at a position of the run's stream, and the epoch of its source.
    #[must_use]
    pub fn visit(&self, position: u64, seed: u64) -> Visit {
        let place = self.mixture.place(position);
        let samples = self.training[place.source].samples();
        let before: u64 = self.training[..place.source].iter().map(SourcePart::samples).sum();
        let index = sample_at(source_seed(seed, place.source), samples, place.index);
        Visit { sample: before + index, epoch: place.index / samples }
    }

    fn mask_visit(&self, position: u64, seed: u64) -> MaskVisit {
        let Visit { sample, epoch } = self.visit(position, seed);
        MaskVisit::Trained { seed, sample, epoch }
    }

    /// Returns the part of a position's sample, and the index in it.
    fn find(&self, position: u64, seed: u64) -> (&SourcePart, u64) {
        let place = self.mixture.place(position);
        let part = &self.training[place.source];
        (part, sample_at(source_seed(seed, place.source), part.samples(), place.index))
    }

    /// Returns up to `count` tokens from the start of a source; none for images.
    ///
    /// # Errors
    /// Prepared data is damaged and cannot be rebuilt.
    pub fn peek(&self, source: usize, count: u64) -> Result<Vec<u32>, DataError> {
        match (self.training.get(source), &self.shape) {
            (Some(part), SampleShape::Tokens(_) | SampleShape::Masked(..)) => {
                let mut bytes = Vec::new();
                part.source.read(0..part.items().min(count), &mut bytes)?;
                Ok(tokens(&bytes, part.source.item_bytes()))
            }
            _ => Ok(Vec::new()),
        }
    }

    /// Returns the part of a held-out sample, and the index in it.
    fn find_held_out(&self, mut window: u64) -> Option<(&SourcePart, u64)> {
        for part in &self.held_out {
            if window < part.samples() {
                return Some((part, window));
            }
            window -= part.samples();
        }
        None
    }

    /// Returns the sources, held-out ones last.
    #[must_use]
    pub fn sources(&self) -> Vec<SourceSummary> {
        let all: u64 = self.mixture.weights().sum();
        let summary = |part: &SourcePart, share| SourceSummary {
            name: part.source.name.clone(),
            size: part.source.size(),
            samples: part.samples(),
            share,
        };
        let training = self.training.iter().zip(self.mixture.weights());
        let training = training.map(|(part, weight)| summary(part, Some(weight as f64 / all as f64)));
        training.chain(self.others().map(|part| summary(part, None))).collect()
    }

    /// Rebuilds every missing shard, so that a run can start at once.
    ///
    /// # Errors
    /// [`DataError`] names the file and the remedy.
    pub fn complete(&self) -> Result<(), DataError> {
        self.all().try_for_each(|part| part.source.complete())
    }

    /// Reads all prepared data, rebuilds damaged shards, and returns their number. `checked` receives the bytes checked since its last call.
    ///
    /// # Errors
    /// [`DataError`] names the file and the remedy.
    pub fn verify(&self, mut checked: impl FnMut(u64)) -> Result<u64, DataError> {
        self.all().map(|part| part.source.verify(&mut checked)).sum()
    }

    /// Returns the bytes of all shards, which [`Self::verify`] reads.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.all().map(|part| part.source.bytes()).sum()
    }

    /// Returns one part of each source.
    fn all(&self) -> impl Iterator<Item = &SourcePart> {
        self.training.iter().chain(self.others())
    }

    /// Returns the sources that are held out entirely.
    fn others(&self) -> impl Iterator<Item = &SourcePart> {
        self.held_out[self.training.len()..].iter()
    }
}

/// Returns why nothing is evaluated. Sources of held-out data have `left_out` records that are left out; `None`: there are no such sources.
fn nothing_held_out(left_out: Option<u64>) -> String {
    let remedy = match left_out {
        None => "raise data.validation_share, or set it to 0".to_owned(),
        Some(0) => "name more in data.validation".to_owned(),
        Some(count) => format!(
            "{} of data.validation {} left out, with nothing to score in a sequence: raise data.sequence_length, or say too_long = \"cut\"",
            counted(count, "record"),
            are(count)
        ),
    };
    format!("the held-out data is less than one sample, so nothing is evaluated: {remedy}")
}

/// Checks that a separator in use that looks like a special token is one.
pub(super) fn check_separator(config: &DataConfig, tokenizer: &Tokenizer) -> Result<(), DataError> {
    // Conversations end as their template says, and labelled texts as the tokenizer does.
    let is_ended = config.conversations.is_some() && config.separator.is_none();
    if is_ended || config.classification.is_some() {
        return Ok(());
    }
    let sources = config.training();
    let is_used = sources.iter().chain(&config.validation).any(DataSource::has_separators);
    if is_used { tokenizer.check_separator(config.separator()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn held_out_data_of_less_than_a_sample_is_told_with_the_cause() {
        for (left_out, words) in [
            (None, "raise data.validation_share"),
            (Some(0), "name more in data.validation"),
            (Some(1), "1 record of data.validation is left out"),
            (Some(1200), "1,200 records of data.validation are left out"),
        ] {
            let told = nothing_held_out(left_out);
            assert!(told.contains(&format!("so nothing is evaluated: {words}")), "{told}");
        }
    }
}
