//! Counts of the device and the network, read twice a second for the heartbeat.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use longhaul_member::activity::Activity;
use longhaul_proto::control::message::{Encoding, Heartbeat};

pub use super::waits::Awaited;
use super::waits::Waits;
use super::{Doing, Recorder};

/// Counters updated by several threads, and the record of their activities.
#[derive(Debug, Default)]
pub struct Progress {
    recorder: Arc<Recorder>,
    counts: Mutex<Heartbeat>,
    waits: Mutex<Waits>,
}

/// Tokens of a step.
#[derive(Clone, Copy, Debug)]
pub struct Tokens {
    /// Of all samples assigned to this worker.
    pub given: u64,
    /// Of the samples trained on.
    pub selected: u64,
}

/// Encoding or decoding of updates, until dropped.
#[derive(Debug)]
pub struct Coding {
    progress: Arc<Progress>,
    _recorded: Doing,
}

impl Drop for Coding {
    #[allow(clippy::disallowed_methods, reason = "measures the time of encoding")]
    fn drop(&mut self) {
        let took = self.progress.waits().end_coding(Instant::now());
        self.progress.lock().time.encode_s += took.as_secs_f64();
    }
}

/// A step in computation, until dropped.
#[derive(Debug)]
pub struct InStep(Arc<Progress>);

impl Drop for InStep {
    fn drop(&mut self) {
        self.0.waits().set_in_step(false);
    }
}

impl Progress {
    /// Creates zero counts with this recorder.
    #[must_use]
    pub fn recorded_by(recorder: Arc<Recorder>) -> Self {
        Self { recorder, ..Self::default() }
    }

    /// Begins an activity, which ends when the returned guard is dropped. It is recorded, and not counted.
    #[must_use = "the activity ends when this is dropped"]
    pub fn begin(&self, what: Activity) -> Doing {
        self.recorder.begin(what)
    }

    /// Begins encoding or decoding of updates, which is recorded and counted.
    #[must_use = "the activity ends when this is dropped"]
    #[allow(clippy::disallowed_methods, reason = "measures the time of encoding")]
    pub fn begin_coding(self: &Arc<Self>, what: Activity) -> Coding {
        self.waits().begin_coding(Instant::now());
        Coding { progress: Arc::clone(self), _recorded: self.begin(what) }
    }

    /// Begins a step: waits for neighbours in a pipeline until its end are bubble.
    #[must_use = "the activity ends when this is dropped"]
    pub fn begin_step(self: &Arc<Self>) -> InStep {
        self.waits().set_in_step(true);
        InStep(Arc::clone(self))
    }

    /// Records an instant, which is not counted.
    pub fn note(&self, what: Activity) {
        self.recorder.note(what);
    }

    /// Counts a finished step of the run.
    pub fn step(&self, step: u64, tokens: Tokens, loss: f32, compute: Duration) {
        let mut heartbeat = self.lock();
        heartbeat.step = step;
        heartbeat.tokens += tokens.given;
        heartbeat.selected_tokens += tokens.selected;
        heartbeat.loss = loss;
        heartbeat.time.compute_s += compute.as_secs_f64();
    }

    /// Notes that the device begins to wait for other workers; [`Self::waited`] follows.
    pub fn begins_to_wait(&self, awaited: Awaited, now: Instant) {
        self.waits().begin(awaited, now);
    }

    /// Counts the device's wait for other workers.
    pub fn waited(&self, now: Instant) {
        let waited = self.waits().end(now);
        let mut heartbeat = self.lock();
        heartbeat.time.wait_s += waited.all.as_secs_f64();
        heartbeat.time.encode_s += waited.coded.as_secs_f64();
        heartbeat.time.encode_wait_s += waited.encoding.as_secs_f64();
        heartbeat.time.bubble_s += waited.bubble.as_secs_f64();
    }

    /// Returns the start of the device's present wait for other workers, if any.
    #[must_use]
    pub fn waits_since(&self) -> Option<Instant> {
        self.waits().since()
    }

    /// Counts a wait of the device for samples.
    pub fn waited_for_data(&self, wait: Duration) {
        self.lock().time.data_wait_s += wait.as_secs_f64();
    }

    /// Counts a pause of training for a checkpoint.
    pub fn stood_still_for_checkpoint(&self, time: Duration) {
        self.lock().time.checkpoint_s += time.as_secs_f64();
    }

    /// Returns the device's total wait for the network since the session began.
    #[must_use]
    pub fn waited_so_far(&self) -> Duration {
        Duration::from_secs_f64(self.lock().time.wait_s)
    }

    /// Counts a sent frame; `wan`: to another site.
    pub fn sent(&self, bytes: u64, wan: bool) {
        let mut heartbeat = self.lock();
        *(if wan { &mut heartbeat.traffic.wan_sent_bytes } else { &mut heartbeat.traffic.lan_sent_bytes }) +=
            bytes;
    }

    /// Counts a received frame from another site.
    pub fn received_over_wan(&self, bytes: u64) {
        self.lock().traffic.wan_received_bytes += bytes;
    }

    /// Counts training data from another worker; `wan`: of another site.
    pub fn fetched_data(&self, bytes: u64, wan: bool) {
        let mut heartbeat = self.lock();
        *(if wan { &mut heartbeat.traffic.data_wan_bytes } else { &mut heartbeat.traffic.data_lan_bytes }) +=
            bytes;
    }

    /// Notes the present encoding of this worker's own traffic to other sites.
    pub fn encodes(&self, encoding: Option<Encoding>) {
        self.lock().encoding = encoding;
    }

    /// Counts the bytes of a dense f32 exchange in place of a frame sent to another site.
    pub fn dense_equivalent(&self, bytes: u64) {
        self.lock().traffic.dense_bytes += bytes;
    }

    /// Returns the present counts.
    #[must_use]
    pub fn heartbeat(&self) -> Heartbeat {
        self.lock().clone()
    }

    fn waits(&self) -> MutexGuard<'_, Waits> {
        self.waits.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> MutexGuard<'_, Heartbeat> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
