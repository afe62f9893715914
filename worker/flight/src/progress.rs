//! What the device and the network count, read twice a second for the heartbeat.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use longhaul_member::activity::Activity;
use longhaul_proto::control::message::{Encoding, Heartbeat};

pub use super::waits::Awaited;
use super::waits::Waits;
use super::{Doing, Recorder};

/// Counters that several threads add to, and the record of what each of them does.
#[derive(Debug, Default)]
pub struct Progress {
    recorder: Arc<Recorder>,
    counts: Mutex<Heartbeat>,
    waits: Mutex<Waits>,
}

/// Tokens of a step.
#[derive(Clone, Copy, Debug)]
pub struct Tokens {
    /// Of all samples that this worker was given.
    pub given: u64,
    /// Of those that it trained on.
    pub selected: u64,
}

/// Updates are encoded or decoded, until this is dropped.
#[derive(Debug)]
pub struct Coding {
    progress: Arc<Progress>,
    _recorded: Doing,
}

impl Drop for Coding {
    #[allow(clippy::disallowed_methods, reason = "measures what encoding takes")]
    fn drop(&mut self) {
        let took = self.progress.waits().end_coding(Instant::now());
        self.progress.lock().encode_s += took.as_secs_f64();
    }
}

/// The device computes a step, until this is dropped.
#[derive(Debug)]
pub struct InStep(Arc<Progress>);

impl Drop for InStep {
    fn drop(&mut self) {
        self.0.waits().set_in_step(false);
    }
}

impl Progress {
    /// Nothing yet, of a process that has this record of what it does.
    #[must_use]
    pub fn recorded_by(recorder: Arc<Recorder>) -> Self {
        Self { recorder, ..Self::default() }
    }

    /// Something begins that may take time; it ends when what is returned is dropped. It is recorded, and not counted.
    #[must_use = "it ends when this is dropped"]
    pub fn begin(&self, what: Activity) -> Doing {
        self.recorder.begin(what)
    }

    /// Updates begin to be encoded or decoded: that is recorded, and counted.
    #[must_use = "it ends when this is dropped"]
    #[allow(clippy::disallowed_methods, reason = "measures what encoding takes")]
    pub fn begin_coding(self: &Arc<Self>, what: Activity) -> Coding {
        self.waits().begin_coding(Instant::now());
        Coding { progress: Arc::clone(self), _recorded: self.begin(what) }
    }

    /// A step begins: what the device waits for its neighbours in a pipeline until it ends is bubble.
    #[must_use = "it ends when this is dropped"]
    pub fn begin_step(self: &Arc<Self>) -> InStep {
        self.waits().set_in_step(true);
        InStep(Arc::clone(self))
    }

    /// Something happens that takes no time. It is recorded, and not counted.
    pub fn note(&self, what: Activity) {
        self.recorder.note(what);
    }

    /// A finished step of the run.
    pub fn step(&self, step: u64, tokens: Tokens, loss: f32, compute: Duration) {
        let mut heartbeat = self.lock();
        heartbeat.step = step;
        heartbeat.tokens += tokens.given;
        heartbeat.selected_tokens += tokens.selected;
        heartbeat.loss = loss;
        heartbeat.compute_s += compute.as_secs_f64();
    }

    /// The device begins to wait for what other workers send; [`Self::waited`] follows.
    pub fn begins_to_wait(&self, awaited: Awaited, now: Instant) {
        self.waits().begin(awaited, now);
    }

    /// The device has waited for what other workers send.
    pub fn waited(&self, now: Instant) {
        let waited = self.waits().end(now);
        let mut heartbeat = self.lock();
        heartbeat.wait_s += waited.all.as_secs_f64();
        heartbeat.encode_s += waited.coded.as_secs_f64();
        heartbeat.encode_wait_s += waited.encoding.as_secs_f64();
        heartbeat.bubble_s += waited.bubble.as_secs_f64();
    }

    /// Since when the device waits for what other workers send, if it does.
    #[must_use]
    pub fn waits_since(&self) -> Option<Instant> {
        self.waits().since()
    }

    /// The device waited for samples.
    pub fn waited_for_data(&self, wait: Duration) {
        self.lock().data_wait_s += wait.as_secs_f64();
    }

    /// Training stood still for a checkpoint.
    pub fn stood_still_for_checkpoint(&self, time: Duration) {
        self.lock().checkpoint_s += time.as_secs_f64();
    }

    /// How long the device has waited for the network since the session began.
    #[must_use]
    pub fn waited_so_far(&self) -> Duration {
        Duration::from_secs_f64(self.lock().wait_s)
    }

    /// A frame went out; `wan`: to another site.
    pub fn sent(&self, bytes: u64, wan: bool) {
        let mut heartbeat = self.lock();
        *(if wan { &mut heartbeat.wan_sent_bytes } else { &mut heartbeat.lan_sent_bytes }) += bytes;
    }

    /// A frame came in from another site.
    pub fn received_over_wan(&self, bytes: u64) {
        self.lock().wan_received_bytes += bytes;
    }

    /// Training data came in from another worker; `wan`: of another site.
    pub fn fetched_data(&self, bytes: u64, wan: bool) {
        let mut heartbeat = self.lock();
        *(if wan { &mut heartbeat.data_wan_bytes } else { &mut heartbeat.data_lan_bytes }) += bytes;
    }

    /// What goes to other sites as this worker's own is encoded so now.
    pub fn encodes(&self, encoding: Option<Encoding>) {
        self.lock().encoding = encoding;
    }

    /// What a dense f32 exchange would have sent to other sites in place of a frame that was sent.
    pub fn dense_equivalent(&self, bytes: u64) {
        self.lock().dense_bytes += bytes;
    }

    /// The present counts.
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
