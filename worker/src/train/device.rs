//! The device thread: computes steps, contributes at the end of each round and applies results as scheduled.

mod evaluating;
mod group;
mod learning;
mod selecting;
mod state;
mod tasks;

use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::Instant;

use anyhow::{Result, bail, ensure};
use longhaul_common::config::{Application, RunConfig, Source};
use longhaul_common::id::{Round, WorkerId};
use longhaul_common::model::{Evaluation, SynchronisedLayout};
use longhaul_common::plan::FragmentLayout;
use longhaul_common::schedule::RoundSchedule;
use longhaul_data::{Dataset, ReadAhead};
use longhaul_engine::{Batch, Engine, EngineError, LowRank};
use longhaul_flight::{Awaited, Progress, Tokens};
use longhaul_member::activity::Activity;
use longhaul_member::message::{
    Applied, Enter, FromDevice, Load, LocalUpdate, PutBack, RoundUpdate, ToDevice,
};
use longhaul_member::sparse_ranges::SparseRanges;
use longhaul_member::step_barrier::{Entry, StepBarrier};
use longhaul_peer::Network;
use longhaul_proto::codec::ColumnGradient;

use self::group::Moment;
pub use self::tasks::RunTasks;
use super::selection::Selector;
use super::spare::SpareCores;
use super::tally::Tally;

/// The state of the device thread.
pub struct Device<'a> {
    /// The worker whose samples are trained on here.
    pub worker: WorkerId,
    /// The run's configuration.
    pub config: RunConfig,
    /// The model and its optimiser.
    pub engine: Engine,
    /// The share of the engine's values that this device synchronises.
    pub share: SynchronisedLayout,
    /// Low-rank compression of gradients, if configured.
    pub low_rank: Option<LowRank>,
    /// Selects the samples to train on; `None`: all.
    pub selector: Option<Selector>,
    /// The training data.
    pub data: &'a Dataset,
    /// Questions that are scored with evaluations; `None`: there are none.
    pub tasks: Option<RunTasks>,
    /// Reads the data ahead.
    pub read_ahead: &'a ReadAhead<Batch>,
    /// The network to the other workers of this copy of the model; `None`: the device works alone.
    pub network: Option<Arc<Network>>,
    /// Consulted before each round.
    pub barrier: Arc<StepBarrier>,
    /// Counters.
    pub progress: Arc<Progress>,
    /// Messages from the synchroniser.
    pub inbox: &'a Receiver<ToDevice>,
    /// Messages to the synchroniser; bounded, so that the device cannot run ahead of it.
    pub outbox: &'a DeviceSender,
    /// The first round that the device's state does not include.
    pub next_round: Round,
}

/// Sends a message to the synchroniser. Blocks while the synchroniser is behind; returns false once it has stopped.
pub type DeviceSender = Box<dyn Fn(FromDevice) -> bool + Send>;

/// The end of a stretch of training.
enum Outcome {
    /// A new entry arrived.
    Again(Box<Enter>),
    /// The synchroniser has stopped, or the barrier stops the device.
    Over,
    /// The epoch ended; the next message is an entry.
    Outlived,
    /// The end of the run is reached and reported.
    Ended,
    /// The device builds another part of the model.
    Rebuild(u32),
}

/// A stretch of training from an entry to its end.
struct Stretch {
    epoch: u64,
    schedule: RoundSchedule,
    round: Round,
    /// The first step of `round` to compute, if not all.
    from_step: u64,
    /// The round contributed but not yet applied, and the step before which it must be applied.
    pending: Option<(Round, u64)>,
    trained: Vec<Vec<u64>>,
    /// Samples covered by the last exchange; later exchanges of the round cover the same steps.
    exchanged: u32,
    /// The gradient contributed last, for look-ahead.
    own_gradient: Vec<f32>,
    /// Of applied values, for the next contribution.
    memory: Vec<f32>,
    /// With column gradients: that of the present round's step.
    columns: Option<ColumnGradient>,
    /// Spare cores during the warm-up, in which the frequency and content of exchanges are decided.
    spare: SpareCores,
}

impl Device<'_> {
    /// Trains until the barrier stops it, the synchroniser stops, or another part of the model replaces this one; returns that part. Failures are reported to
    /// the synchroniser,
    /// not returned.
    pub fn run(mut self) -> Option<u32> {
        loop {
            let error = match self.follow() {
                Ok(rebuild) => return rebuild,
                Err(error) => error,
            };
            let is_interrupted = error.downcast_ref().is_some_and(EngineError::is_of_others);
            let reason = format!("{error:#}");
            // The synchroniser may have stopped already.
            if !is_interrupted {
                let _ = (self.outbox)(FromDevice::Failed(reason));
                return None;
            }
            if !(self.outbox)(FromDevice::Interrupted(reason)) {
                return None;
            }
        }
    }

    fn follow(&mut self) -> Result<Option<u32>> {
        let mut next = None;
        loop {
            let enter = match next.take() {
                Some(enter) => enter,
                None => match self.inbox.recv() {
                    Ok(ToDevice::Build { rank }) => return Ok(Some(rank)),
                    Ok(ToDevice::Enter(enter)) => *enter,
                    Ok(ToDevice::Export) => {
                        self.export()?;
                        continue;
                    }
                    // Belongs to a past epoch.
                    Ok(ToDevice::Apply { .. }) => continue,
                    Err(_) => return Ok(None),
                },
            };
            match self.train(enter)? {
                Outcome::Again(enter) => next = Some(*enter),
                Outcome::Outlived | Outcome::Ended => {}
                Outcome::Rebuild(rank) => return Ok(Some(rank)),
                Outcome::Over => return Ok(None),
            }
        }
    }

    fn train(&mut self, enter: Enter) -> Result<Outcome> {
        let mut stretch = self.start(enter)?;
        loop {
            match self.barrier.enter(stretch.epoch) {
                Entry::Begun(round) => stretch.round = round,
                Entry::AtEnd(round) => return self.end(&mut stretch, round),
                Entry::Outlived => return Ok(Outcome::Outlived),
                Entry::Stopped => return Ok(Outcome::Over),
            }
            stretch.schedule = self.schedule();
            self.tell(FromDevice::Begun(stretch.round))?;
            if let Some(outcome) = self.compute_round(&mut stretch)? {
                return Ok(outcome);
            }
        }
    }

    /// Loads the state of the entry.
    fn start(&mut self, enter: Enter) -> Result<Stretch> {
        let schedule = self.schedule();
        let is_new = enter.place.is_some();
        if let Some(place) = enter.place {
            self.join(*place)?;
        }
        self.score_again_after(enter.round);
        let first = schedule.steps_of(enter.round).start;
        let (mut from_step, mut resumed) = (first, Vec::new());
        match enter.load {
            Load::Nothing => {}
            Load::Parameters(values) => self.load_parameters(&values)?,
            Load::All(state) => self.import(&state)?,
            Load::Private { state, synchronised, trained } => {
                self.import(&state)?;
                // Other ranks may lack this worker's private state; a divided model restarts the round.
                let goes_on = !self.config.parallel.is_divided();
                if goes_on && self.has_trained(first, &trained) {
                    from_step = first + trained.len() as u64;
                    resumed = trained;
                } else {
                    self.load_parameters(&synchronised)?;
                }
            }
        }
        if let Some(selector) = self.selector.as_mut().filter(|_| resumed.is_empty()) {
            // The round restarts.
            selector.contributed();
        }
        self.put_back(enter.put_back);
        if is_new {
            self.share_state(enter.round)?;
        }
        let Enter { epoch, round, replay, .. } = enter;
        let last = replay.last().map(|(last, _)| *last);
        for (round, mean) in replay {
            self.apply_mean(&schedule, round, mean)?;
        }
        self.next_round = round;
        if let Some(last) = last {
            self.tell_applied(last, None, Vec::new())?;
        }
        Ok(Stretch {
            epoch,
            schedule,
            round,
            from_step,
            pending: None,
            trained: resumed,
            exchanged: 0,
            own_gradient: Vec::new(),
            memory: Vec::new(),
            columns: None,
            spare: SpareCores::beside(self.engine.cores()),
        })
    }

    /// Computes a round's steps and contributes. `None`: the next round follows.
    fn compute_round(&mut self, stretch: &mut Stretch) -> Result<Option<Outcome>> {
        // A member delayed by the barrier or a result is awaited here, not within a step.
        self.meet(Moment::Begins, stretch.round)?;
        let span = stretch.schedule.steps_of(stretch.round);
        let is_warmup = stretch.schedule.is_warmup(stretch.round);
        self.barrier.forget_before(span.start);
        // Samples of this round in a checkpoint's state count towards the round.
        let given = self.counted_in(&stretch.trained)?;
        let counted = self.selector.as_ref().map_or(given, |selector| selector.counted_before(given));
        let mut tally = Tally::resumed(counted);
        let mut gradient = Vec::new();
        for step in span.start.max(stretch.from_step)..span.end {
            if let Some(outcome) = self.apply_if_due(stretch, step)? {
                return Ok(Some(outcome));
            }
            if let Some((pending, _)) = stretch.pending
                && self.config.sync.look_ahead
                && !stretch.own_gradient.is_empty()
            {
                self.engine.look_ahead(stretch.schedule.step_of(pending), &stretch.own_gradient)?;
            }
            let positions = self.positions(step);
            let is_redundant = self.config.sync.is_redundant_in(is_warmup);
            if is_warmup && (is_redundant || self.config.sync.measures(stretch.round, is_warmup)) {
                stretch.spare.begin();
            }
            let computed = self.computed(step, is_warmup, &positions);
            self.step(stretch, step, &computed, &mut gradient, &mut tally)?;
            if is_redundant {
                // Others count the rest.
                tally.keep_share(positions.len(), computed.len());
            }
            stretch.spare.end();
            self.engine.step_back()?;
            stretch.trained.push(positions);
        }
        // From the momentum that is sent, before a due result replaces it.
        let repeated = match self.config.sync.source_in(is_warmup) {
            Source::Momentum => self.share.synchronised(self.engine.decayed_momentum()?),
            Source::Gradient | Source::CorrectedGradient | Source::Delta => Vec::new(),
        };
        // A round shorter than the overlap, such as the last, has no later steps for its result.
        if let Some(outcome) = self.apply_if_due(stretch, u64::MAX)? {
            return Ok(Some(outcome));
        }
        if stretch.schedule.exchange_of(stretch.round) == 0 {
            stretch.exchanged = tally.samples;
        }
        if self.config.sync.look_ahead && tally.samples > 0 {
            stretch.own_gradient.clone_from(&gradient);
        }
        self.contribute(stretch, gradient, repeated, &tally)?;
        stretch.trained.clear();
        // With gradients, the warm-up is plain `dense`: an early model does not tolerate a delayed mean.
        let is_plain = is_warmup && self.config.sync.opens_with_gradients();
        let overlap = if is_plain { 0 } else { stretch.schedule.pace_in(stretch.round).overlap };
        stretch.pending = Some((stretch.round, span.end + overlap));
        stretch.from_step = 0;
        if overlap == 0 { self.apply_if_due(stretch, span.end) } else { Ok(None) }
    }

    #[allow(clippy::disallowed_methods, reason = "measures what the device spends on computing")]
    fn step(
        &mut self,
        stretch: &mut Stretch,
        step: u64,
        positions: &[u64],
        gradient: &mut Vec<f32>,
        tally: &mut Tally,
    ) -> Result<()> {
        let round = stretch.round;
        let all = self.batch(round, step, positions)?;
        let _computing = self.progress.begin(Activity::Compute { round, step });
        let _in_step = self.progress.begin_step();
        let began = Instant::now();
        let waited = self.progress.waited_so_far();
        let samples = self.samples(all, positions)?;
        let outcome = self.learn_from(stretch, step, &samples, gradient)?;
        if !outcome.loss.is_finite() {
            bail!(
                "the loss became {} at step {step}: training diverged; a lower train.learning_rate, a longer \
                 train.warmup_steps or a smaller train.gradient_clip may help",
                outcome.loss
            );
        }
        if !positions.is_empty() {
            self.learn(&samples, &outcome);
            let took = began.elapsed();
            tally.add(samples.counted, outcome.loss, outcome.gradient_norm, took);
            let is_told = self.config.reports_losses() && outcome.tokens > 0;
            let told = if is_told { outcome.loss } else { f32::NAN };
            // Ranks of a pipeline wait for each other within a step. This is time for sending, not computation.
            let waited = self.progress.waited_so_far().saturating_sub(waited);
            let tokens = Tokens { given: samples.tokens, selected: outcome.tokens };
            self.progress.step(step, tokens, told, took.saturating_sub(waited));
        }
        Ok(())
    }

    fn contribute(
        &mut self,
        stretch: &mut Stretch,
        gradient: Vec<f32>,
        repeated: Vec<f32>,
        tally: &Tally,
    ) -> Result<()> {
        let _contributing = self.progress.begin(Activity::Contribute { round: stretch.round });
        let weight = stretch.exchanged;
        self.selector.iter_mut().for_each(Selector::contributed);
        let is_warmup = stretch.schedule.is_warmup(stretch.round);
        let low_rank = self.low_rank.as_mut().filter(|_| !is_warmup && weight > 0);
        let columns = stretch.columns.take();
        let values = match low_rank {
            _ if columns.is_some() => SparseRanges::default(),
            Some(low_rank) if stretch.schedule.exchange_of(stretch.round) == 0 => {
                SparseRanges::whole(low_rank.first(&self.share.synchronised(gradient)))
            }
            Some(low_rank) => SparseRanges::whole(low_rank.second()),
            None if self.config.sync.source_in(is_warmup).is_gradient() => {
                SparseRanges::whole(self.share.synchronised(gradient))
            }
            None => self.due_parameters(stretch)?,
        };
        let (steps, compute) = (tally.steps, tally.compute);
        let update = LocalUpdate {
            round: stretch.round,
            values,
            columns,
            repeated,
            weight,
            steps,
            compute,
            loss: tally.loss(),
            gradient_norm: tally.gradient_norm(),
            spare_cores: stretch.spare.count(),
        };
        self.tell(FromDevice::Contribute(update))
    }

    /// Restores values that are in no result.
    fn put_back(&mut self, parts: Vec<PutBack>) {
        let Some(low_rank) = &mut self.low_rank else { return };
        for PutBack { exchange, start, values } in parts {
            match exchange {
                Some(exchange) => low_rank.put_back(exchange, start, &values),
                None => low_rank.add_error(start, &values),
            }
        }
    }

    /// Applies the pending result if it is due at `step`, and waits for it if necessary.
    fn apply_if_due(&mut self, stretch: &mut Stretch, step: u64) -> Result<Option<Outcome>> {
        let Some((round, due)) = stretch.pending else { return Ok(None) };
        if step < due {
            return Ok(None);
        }
        let update = match self.wait_for(round)? {
            Ok(update) => update,
            Err(outcome) => return Ok(Some(outcome)),
        };
        stretch.pending = None;
        self.next_round = round.next();
        let applying = self.progress.begin(Activity::Apply { round });
        match update {
            RoundUpdate::Parameters(change) => {
                stretch.memory = self.mix(change)?;
                self.share_parameters(round)?;
            }
            RoundUpdate::Mean(mean) => self.apply_mean(&stretch.schedule, round, mean)?,
        }
        drop(applying);
        let validation = self.evaluate_after(round)?;
        self.tell_applied(round, validation, stretch.trained.clone())?;
        self.score_after(round)?;
        Ok(None)
    }

    /// Applies the step that is identical on all members.
    fn apply_mean(&mut self, schedule: &RoundSchedule, round: Round, mean: Vec<f32>) -> Result<()> {
        let (step, is_warmup) = (schedule.step_of(round), schedule.is_warmup(round));
        if let Some(low_rank) = self.low_rank.as_mut().filter(|_| !is_warmup) {
            if schedule.exchange_of(round) == 0 {
                low_rank.take_first(&mean);
            } else {
                let gradient = low_rank.take_second(&mean);
                let gradient = self.shared_mean(round, gradient)?;
                self.engine.apply_gradient(step, &gradient)?;
            }
            return Ok(());
        }
        let mean = &self.shared_mean(round, mean)?;
        match self.config.sync.application_in(is_warmup) {
            Application::Inner => self.engine.apply_gradient(step, mean)?,
            Application::Sgd => self.engine.apply_sgd(step, mean)?,
            Application::Sign => self.engine.apply_sign(step, mean)?,
            Application::FrozenAdamw => self.engine.apply_frozen_adamw(step, mean)?,
            Application::Outer => bail!("a mean that is not a delta was to be applied as one"),
        }
        Ok(())
    }

    fn tell_applied(
        &self,
        round: Round,
        validation: Option<Evaluation>,
        trained: Vec<Vec<u64>>,
    ) -> Result<()> {
        let is_warmup = self.config.round_schedule().is_warmup(round);
        let is_common = self.config.sync.source_in(is_warmup).is_gradient();
        let parameters = if is_common { Some(self.parameters()?) } else { None };
        let state = if self.is_checkpoint(round) { Some(self.state_for_checkpoint()?) } else { None };
        // A gradient leaves the parameters unchanged: an interrupted step is repeated.
        let trained = if is_common { Vec::new() } else { trained };
        self.tell(FromDevice::Applied(Applied { round, validation, parameters, state, trained }))
    }

    /// Waits for a round's result. The wait is counted as network time.
    #[allow(clippy::disallowed_methods, reason = "measures what the device waits for the network")]
    fn wait_for(&mut self, round: Round) -> Result<Result<RoundUpdate, Outcome>> {
        let _waiting = self.progress.begin(Activity::WaitForResult { round });
        self.progress.begins_to_wait(Awaited::Result, Instant::now());
        let answer = loop {
            match self.inbox.recv() {
                Ok(ToDevice::Apply { round: got, update, put_back }) if got == round => {
                    self.put_back(put_back);
                    break Ok(update);
                }
                // A result of a past epoch.
                Ok(ToDevice::Apply { .. }) => {}
                Ok(ToDevice::Enter(enter)) => break Err(Outcome::Again(enter)),
                Ok(ToDevice::Build { rank }) => break Err(Outcome::Rebuild(rank)),
                Ok(ToDevice::Export) => self.export()?,
                Err(_) => break Err(Outcome::Over),
            }
        };
        self.progress.waited(Instant::now());
        Ok(answer)
    }

    /// Returns the schedule of rounds as far as known.
    fn schedule(&self) -> RoundSchedule {
        self.barrier.schedule().for_fragments(self.layout().count())
    }

    fn layout(&self) -> FragmentLayout {
        self.config.sync.layout(self.share.synchronised_len() as u64)
    }

    fn end(&mut self, stretch: &mut Stretch, next_round: Round) -> Result<Outcome> {
        if let Some(outcome) = self.apply_if_due(stretch, u64::MAX)? {
            return Ok(outcome);
        }
        let validation = self.evaluate()?;
        self.score(next_round)?;
        let state = self.state()?;
        self.tell(FromDevice::Ended { next_round, state, validation })?;
        Ok(Outcome::Ended)
    }

    fn tell(&self, message: FromDevice) -> Result<()> {
        ensure!((self.outbox)(message), "the synchroniser is gone");
        Ok(())
    }
}
