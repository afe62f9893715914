//! A site's contribution: the mean of its members, error feedback, encoding.

mod columns;
mod mean;
mod undecided;

use std::borrow::Cow;
use std::collections::BTreeMap;

use bytes::Bytes;
use longhaul_common::config::{SelectionRule, Source, SyncConfig};
use longhaul_common::id::{FragmentId, Round, RunId};
use longhaul_proto::codec::chain::{random_mask, seed_of, uplink, warmup};
use longhaul_proto::codec::{CodecSpec, ColumnUpdate, Decoder, EncodeError, Encoder, SpecError};
use longhaul_proto::control::message::Encoding;

use self::columns::ColumnTask;
use self::mean::{outgoing_mean, same_length, weighted_mean};
use self::undecided::UndecidedMemories;
use crate::encode::audit::{self, Books, Findings};
use crate::encode::error_feedback::ErrorFeedback;
use crate::encode::mechanism::GaussianMechanism;
use crate::encode::pool::CodecPool;
use crate::encode::tiling::TILE_VALUES;
use crate::encode::visible::Base;
use crate::layouts::Layouts;

/// Encodes the site's contributions, with a memory of unsent values for each fragment that this worker uploads.
pub struct Compressor {
    run: RunId,
    config: SyncConfig,
    layouts: Layouts,
    /// Whole tiles of the cosine transform at the start of the exchanged vector.
    tiles: usize,
    pool: CodecPool,
    lanes: Vec<Lane>,
    memories: BTreeMap<FragmentId, ErrorFeedback>,
    /// Whether the memories hold gradients, which are useless after the warm-up.
    keeps_gradients: bool,
    /// Memories before the compression of a round that is not decided yet.
    before: UndecidedMemories,
    /// The same two for updates of columns.
    columns: ColumnMemories,
    /// In place of the configured chains.
    adapted: Option<CodecSpec>,
    /// Set in private runs.
    mechanism: Option<GaussianMechanism>,
    /// For the mechanism: number of values due in the latest round.
    due: Option<(Round, usize)>,
    scratch: Vec<f32>,
    audit: Findings,
}

/// Unsent columns by fragment.
#[derive(Default)]
struct ColumnMemories {
    kept: BTreeMap<FragmentId, ColumnUpdate>,
    /// Columns before a round that is not decided yet.
    before: BTreeMap<FragmentId, (Round, Option<ColumnUpdate>)>,
}

/// Workspace of one thread of the pool.
struct Lane {
    encoder: Encoder,
    scratch: Vec<f32>,
    /// Values that are visible in bf16.
    visible: Vec<f32>,
    /// The frame under construction; a copy of exact length is sent.
    frame: Vec<u8>,
    /// For audited frames.
    decoder: Decoder,
}

impl Lane {
    fn new(config: &SyncConfig) -> Result<Self, SpecError> {
        let (encoder, decoder) = (Encoder::new(uplink(config, 0))?, Decoder::default());
        Ok(Self { encoder, scratch: Vec::new(), visible: Vec::new(), frame: Vec::new(), decoder })
    }
}

/// A fragment to compress, with the weighted updates of the site's members.
pub struct Job<'a> {
    /// Fragment.
    pub fragment: FragmentId,
    /// In order of addition.
    pub locals: Vec<(u32, Local<'a>)>,
    /// The fragment's parameters, where only visible changes are sent.
    pub base: Option<Base<'a>>,
}

/// A member's update of one fragment.
pub enum Local<'a> {
    /// In this process.
    Own(&'a [f32]),
    /// From another member's frame: f32, little-endian.
    Received(&'a [u8]),
    /// Columns from either.
    Columns(ColumnUpdate),
}

/// Failed compression of a fragment.
#[derive(Debug, thiserror::Error)]
pub enum CompressError {
    /// Training diverged: the update is not finite.
    #[error(transparent)]
    Encode(#[from] EncodeError),
    /// Invalid chain.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// Updates of different matrices, or partly not of columns.
    #[error("updates of different kinds for one fragment")]
    Kinds,
    /// Another member's update has the wrong length.
    #[error("an update of {got} values for a fragment of {expected}")]
    Length {
        /// Received length.
        got: usize,
        /// Length of the fragment.
        expected: usize,
    },
}

impl Compressor {
    /// Creates the compressor of a run, for vectors that begin with this many whole tiles.
    ///
    /// # Errors
    /// The codec lacks this combination of selection and format.
    pub fn new(
        run: RunId,
        config: &SyncConfig,
        layouts: Layouts,
        tiles: usize,
        pool: CodecPool,
    ) -> Result<Self, SpecError> {
        Ok(Self {
            run,
            config: config.clone(),
            layouts,
            tiles,
            lanes: (0..pool.threads()).map(|_| Lane::new(config)).collect::<Result<_, _>>()?,
            pool,
            memories: BTreeMap::new(),
            keeps_gradients: config.changes_kind_after_the_warmup(),
            before: UndecidedMemories::default(),
            columns: ColumnMemories::default(),
            adapted: None,
            mechanism: None,
            due: None,
            scratch: Vec::new(),
            audit: Findings::default(),
        })
    }

    /// Makes the site's mean private before any other use. All sent and kept values derive from the mechanism's output, so neither selection nor residual
    /// reveals more.
    #[must_use]
    pub fn with_mechanism(self, mechanism: Option<GaussianMechanism>) -> Self {
        Self { mechanism, ..self }
    }

    /// Returns the site's contributions to some fragments, in order: the weighted mean of its members' updates through error feedback. The bits do not depend
    /// on the number of threads.
    ///
    /// # Errors
    /// [`CompressError`] for a fragment; its memory is then unchanged.
    pub fn compress(&mut self, round: Round, jobs: &[Job<'_>]) -> Vec<Result<Bytes, CompressError>> {
        let mut bodies = Vec::with_capacity(jobs.len());
        let mut lanes = std::mem::take(&mut self.lanes);
        for jobs in jobs.chunks(lanes.len()) {
            let tasks = jobs.iter().zip(&mut lanes).map(|(job, lane)| self.task(round, job, lane));
            let mut tasks: Vec<Task<'_>> = tasks.collect();
            self.pool.run(&mut tasks, Task::run);
            bodies.extend(tasks.into_iter().map(|task| self.finish(round, task)));
        }
        self.lanes = lanes;
        bodies
    }

    /// Returns the number of fragments compressed side by side.
    #[must_use]
    pub fn lanes(&self) -> usize {
        self.lanes.len()
    }

    /// Returns the threads for work beside training.
    #[must_use]
    pub fn pool(&self) -> &CodecPool {
        &self.pool
    }

    /// Takes out the inputs of a fragment's compression.
    fn task<'a>(&mut self, round: Round, job: &'a Job<'a>, lane: &'a mut Lane) -> Task<'a> {
        let fragment = job.fragment;
        let len = self.layouts.of(round).range(fragment).len();
        let is_warmup = self.layouts.schedule().is_warmup(round);
        let chain = self.chain(is_warmup, fragment);
        let share = self.share(round, fragment);
        // Noise is drawn in the order of the fragments, independent of threads.
        let released = self.mechanism.as_mut().map(|mechanism| {
            weighted_mean(&job.locals, len, &mut lane.scratch).map(<[f32]>::to_vec).map(|mut mean| {
                mechanism.release(&mut mean, share);
                mean
            })
        });
        let is_corrected = self.config.source_in(is_warmup) == Source::CorrectedGradient;
        let is_of_columns = self.is_of_columns();
        let columns = is_of_columns.then(|| self.take_up_columns(fragment));
        let is_exact = chain.is_lossless() && !self.memories.contains_key(&fragment);
        let kept = (self.config.has_residual() && !is_exact && !is_of_columns).then(|| {
            let mut memory =
                self.memories.remove(&fragment).unwrap_or_else(|| ErrorFeedback::new(len, is_corrected));
            if is_corrected && memory.velocity.is_empty() {
                memory.velocity.resize(len, 0.0);
            }
            // An older copy's buffers take the new values.
            let mut before = self.before.take_buffer(fragment);
            std::mem::swap(&mut before, &mut memory);
            memory.velocity.clone_from(&before.velocity);
            memory.residual.resize(before.residual.len(), 0.0);
            CompressedMemory { memory, before, is_corrected }
        });
        let seed = seed_of(self.run, round, fragment);
        let SyncConfig { momentum, error_decay, .. } = self.config;
        Task {
            job,
            lane,
            len,
            chain,
            released,
            kept,
            columns,
            seed,
            momentum,
            error_decay,
            is_audited: audit::is_due(seed),
            difference: None,
            body: Ok(Bytes::new()),
        }
    }

    /// Puts back the changed memories.
    fn finish(&mut self, round: Round, task: Task<'_>) -> Result<Bytes, CompressError> {
        let Task { job, kept, columns, difference, body, .. } = task;
        if let Some(difference) = difference {
            self.audit.note(round, job.fragment, difference);
        }
        if let Some(columns) = columns {
            self.put_down_columns((round, job.fragment), columns, body.is_ok());
        }
        if let Some(CompressedMemory { memory, before, .. }) = kept {
            if body.is_ok() {
                self.memories.insert(job.fragment, memory);
                self.before.insert(round, job.fragment, before);
            } else {
                self.memories.insert(job.fragment, before);
            }
        }
        body
    }

    /// Returns the site's summand of a masked sum: the weighted mean of its members, after the mechanism. Where a random mask chooses positions, p =
    /// residual·decay + mean there, clipped to ±`range`; the rest of p stays, because it cannot be sent again.
    ///
    /// # Errors
    /// [`CompressError`]; the memory is then unchanged.
    pub fn summand<'a>(
        &'a mut self,
        round: Round,
        fragment: FragmentId,
        locals: &[(u32, Local<'a>)],
        range: f32,
    ) -> Result<Cow<'a, [f32]>, CompressError> {
        let positions = self.public_positions(round, fragment);
        let len = self.layouts.of(round).range(fragment).len();
        let share = self.share(round, fragment);
        let mean = outgoing_mean(locals, len, self.mechanism.as_mut(), share, &mut self.scratch)?;
        let Some(positions) = positions else { return Ok(Cow::Borrowed(mean)) };
        if let Some(index) = mean.iter().position(|value| !value.is_finite()) {
            return Err(EncodeError::NonFinite { index }.into());
        }
        let memory = self.memories.entry(fragment).or_insert_with(|| ErrorFeedback::new(len, false));
        let mut before = self.before.take_buffer(fragment);
        before.clone_from(memory);
        self.before.insert(round, fragment, before);
        let decay = self.config.error_decay;
        memory.residual.iter_mut().zip(mean).for_each(|(rest, value)| *rest = *rest * decay + value);
        let take = |&at: &u32| {
            let rest = &mut memory.residual[at as usize];
            let taken = rest.clamp(-range, range);
            *rest -= taken;
            taken
        };
        Ok(Cow::Owned(positions.iter().map(take).collect()))
    }

    /// Returns the ascending positions contributed by all sites; `None`: all.
    #[must_use]
    pub fn public_positions(&self, round: Round, fragment: FragmentId) -> Option<Vec<u32>> {
        let mask = random_mask(&self.config).filter(|_| !self.layouts.schedule().is_warmup(round))?;
        let len = self.layouts.of(round).range(fragment).len();
        Some(mask.positions(seed_of(self.run, round, fragment), len))
    }

    /// Switches to other layouts of rounds.
    pub fn follow(&mut self, layouts: Layouts) {
        self.layouts = layouts;
        self.due = None;
    }

    /// Returns this fragment's share of all values due in a round; 1 without a mechanism, its only user.
    fn share(&mut self, round: Round, fragment: FragmentId) -> f64 {
        if self.mechanism.is_none() {
            return 1.0;
        }
        let known = self.due.filter(|(of, _)| *of == round);
        let (_, due) = *self.due.insert(known.unwrap_or_else(|| (round, self.layouts.values_in(round))));
        self.layouts.of(round).range(fragment).len() as f64 / due.max(1) as f64
    }

    /// Replaces the configured chains by this one.
    pub fn adapt(&mut self, chain: CodecSpec) {
        self.adapted = Some(chain);
    }

    /// Returns the outer learning rate in a round that sends visible changes only.
    #[must_use]
    pub fn visible_rate(&self, round: Round) -> Option<f32> {
        let is_visible = self.config.selection == SelectionRule::Visible;
        let is_in_effect = is_visible && !self.layouts.schedule().is_warmup(round);
        is_in_effect.then_some(self.config.outer_learning_rate)
    }

    /// Returns the encoding of a round's contribution to a fragment; `None` where the number of values varies by step.
    #[must_use]
    pub fn encoding(&self, round: Round, fragment: FragmentId) -> Option<Encoding> {
        let chain = self.chain(self.layouts.schedule().is_warmup(round), fragment);
        let [density, value_bits] =
            [chain.density(), chain.bits_per_kept_value()].map(|number| number as f32);
        let is_fixed = !self.is_of_columns() && self.visible_rate(round).is_none();
        is_fixed.then_some(Encoding { density, value_bits })
    }

    fn chain(&self, is_warmup: bool, fragment: FragmentId) -> CodecSpec {
        if let Some(adapted) = self.adapted {
            return adapted;
        }
        if is_warmup {
            return warmup(&self.config);
        }
        let range = self.layouts.model().range(fragment);
        let tiles = self.tiles.saturating_sub(range.start / TILE_VALUES).min(range.len() / TILE_VALUES);
        uplink(&self.config, tiles as u32)
    }

    /// Notes that no round up to this one can become void: the memories before them leave their buffers to others.
    pub fn decided(&mut self, round: Round) {
        self.before.decided(round);
    }

    /// Restores a memory to its state before the compression of this round, bit for bit: the round did not count.
    pub fn retract(&mut self, round: Round, fragment: FragmentId) {
        if let Some(before) = self.before.take(round, fragment) {
            self.memories.insert(fragment, before);
        }
        self.retract_columns(round, fragment);
    }

    /// Hands over the unsent values of a fragment to its next uploader, in the form of an update.
    pub fn take_residual(&mut self, fragment: FragmentId) -> Option<Vec<f32>> {
        self.before.forget(fragment);
        Some(self.memories.remove(&fragment)?.into_update(self.config.momentum))
    }

    /// Drops the warm-up's memories if the next phase exchanges other quantities. Returns `true` the first time.
    pub fn leave_warmup(&mut self) -> bool {
        let keeps_gradients = std::mem::take(&mut self.keeps_gradients);
        if keeps_gradients {
            self.memories.clear();
            self.before = UndecidedMemories::default();
        }
        keeps_gradients
    }

    /// Returns the audit's findings, for a report.
    pub fn audit(&mut self) -> &mut Findings {
        &mut self.audit
    }

    /// Returns this worker's unsent values, by fragment.
    #[must_use]
    pub fn memories(&self) -> &BTreeMap<FragmentId, ErrorFeedback> {
        &self.memories
    }

    /// Replaces all memories by those of a checkpoint; those of a wrong length are left out.
    pub fn restore(&mut self, memories: BTreeMap<FragmentId, ErrorFeedback>) {
        let fits = |fragment: &FragmentId, memory: &mut ErrorFeedback| {
            let len = self.layouts.model().range(*fragment).len();
            memory.residual.len() == len && (memory.velocity.is_empty() || memory.velocity.len() == len)
        };
        self.before = UndecidedMemories::default();
        self.memories = memories;
        self.memories.retain(fits);
    }
}

/// A fragment's memory during compression.
struct CompressedMemory {
    memory: ErrorFeedback,
    before: ErrorFeedback,
    is_corrected: bool,
}

/// The compression of one fragment with all its inputs, for any thread.
struct Task<'a> {
    job: &'a Job<'a>,
    lane: &'a mut Lane,
    len: usize,
    chain: CodecSpec,
    /// The mean, if already made private.
    released: Option<Result<Vec<f32>, CompressError>>,
    /// `None`: nothing is remembered.
    kept: Option<CompressedMemory>,
    /// `None`: updates are not of columns.
    columns: Option<ColumnTask>,
    seed: u64,
    momentum: f32,
    error_decay: f32,
    is_audited: bool,
    /// Result of the audit.
    difference: Option<f32>,
    body: Result<Bytes, CompressError>,
}

impl Task<'_> {
    fn run(&mut self) {
        self.body = self.compress();
    }

    fn compress(&mut self) -> Result<Bytes, CompressError> {
        let Lane { encoder, scratch, visible, frame, decoder } = &mut *self.lane;
        encoder.set_spec(self.chain)?;
        if let Some(columns) = &mut self.columns {
            columns.compress(self.job, self.len, encoder, (self.seed, self.error_decay), frame)?;
            return Ok(Bytes::copy_from_slice(frame));
        }
        let released = self.released.take().transpose()?;
        let mean = match &released {
            Some(mean) => mean,
            None => weighted_mean(&self.job.locals, self.len, scratch)?,
        };
        frame.clear();
        let Some(CompressedMemory { memory, before, is_corrected }) = &mut self.kept else {
            encoder.encode(self.seed, mean, frame)?;
            return Ok(Bytes::copy_from_slice(frame));
        };
        let (update, residual) = memory.accelerate(self.momentum, mean);
        match self.job.base {
            None => {
                let (before, decay) = (&before.residual, self.error_decay);
                encoder.encode_with_feedback_from(self.seed, update, before, decay, residual, frame)?;
            }
            Some(base) => {
                same_length(update.len(), self.len)?;
                same_length(base.parameters.len(), self.len)?;
                same_length(before.residual.len(), self.len)?;
                let sums = before.residual.iter().zip(update);
                let sums = sums.map(|(rest, value)| rest * self.error_decay + value);
                residual.iter_mut().zip(sums).for_each(|(rest, sum)| *rest = sum);
                base.take_visible(residual, visible);
                // The rounding of sent values joins those that wait.
                encoder.encode_chosen(self.seed, visible, residual, frame)?;
            }
        }
        if self.is_audited {
            let books =
                Books { before: &before.residual, decay: self.error_decay, added: update, left: residual };
            self.difference = Some(audit::difference(books, frame, decoder));
        }
        if *is_corrected {
            memory.mask(encoder.sent_positions());
        }
        Ok(Bytes::copy_from_slice(frame))
    }
}
