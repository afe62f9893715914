//! The task that owns the run, its register and its store. It never waits for a peer.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use longhaul_common::id::WorkerId;
use longhaul_proto::control::message::ToWorker;
use longhaul_proto::control::{
    CertificateIssuer, CloseCode, ControlSender, EnrolRefusal, EnrolReply, EnrolRequest, Visitor,
};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::{JoinSet, block_in_place};
use tokio::time::{MissedTickBehavior, interval, sleep_until, timeout};

use super::clock::Clock;
use super::curves::Curves;
use super::history_recorder::HistoryRecorder;
use super::telemetry::Exports;
use crate::inbox::Input;
use crate::journal::Journal;
use crate::record::Recorder;
use crate::store::{Store, StoreError};
use longhaul_plan::Answer;
use longhaul_run::{Command, ConnectionId, Event, Notice, Phase, Record, Run, Severity, Status, Suspended};

/// How often the published status is renewed, in milliseconds: often enough for a person and a scraper.
const STATUS_INTERVAL_MS: u64 = 250;
/// How long dismissed workers may take to hear it, in seconds.
const FAREWELL_S: u64 = 5;
/// Connections of joined workers: more than a run has, so that forgotten ones cannot pile up.
const CONNECTIONS_MAX: usize = 16_384;

/// Why the owner stopped, other than for the better.
#[derive(Debug, thiserror::Error)]
pub enum OwnerError {
    /// Nothing may be decided that cannot be written down.
    #[error("{0}. Workers train on; fix this and start the coordinator again with the same command")]
    Store(StoreError),
    /// Another coordinator may lead now.
    #[error("{0}")]
    Deposed(StoreError),
}

impl From<StoreError> for OwnerError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Deposed { .. } => Self::Deposed(error),
            error => Self::Store(error),
        }
    }
}

/// Why the owner stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The run is finished.
    Finished,
    /// Everybody has left: the run goes on when all are started again.
    Suspended(Suspended),
    /// The coordinator was stopped, and the run goes on without it.
    Stopped,
}

/// The owner of the run.
#[derive(Debug)]
pub struct Owner {
    /// The decisions.
    pub run: Run,
    /// The register.
    pub issuer: CertificateIssuer,
    /// The disk.
    pub store: Store,
    /// The time.
    pub clock: Clock,
    /// Recorder of decisions.
    pub recorder: Recorder,
    /// And how the run goes, for the dashboard.
    pub history: HistoryRecorder,
    /// Address in `worker join` lines.
    pub advertised: String,
    /// For the HTTP API, like the next.
    pub journal: Arc<Journal>,
    /// How it goes.
    pub status: watch::Sender<Arc<Status>>,
    /// Whether to stay when the run is finished.
    pub stay: bool,
    /// The open connections.
    pub open: BTreeMap<ConnectionId, Open>,
    /// Connections that are being closed.
    pub farewells: JoinSet<()>,
    /// Plans that are worked out: one at a time.
    pub plans: JoinSet<Answer>,
}

/// An open control connection.
#[derive(Debug)]
pub struct Open {
    pub(super) worker: WorkerId,
    sender: ControlSender<ToWorker>,
    pub(super) quic: quinn::Connection,
}

impl Owner {
    /// Has the run's curves written into a folder of `dir`, for TensorBoard.
    ///
    /// # Errors
    /// The folder cannot be written to.
    pub fn draw_curves(&mut self, dir: &Path) -> io::Result<()> {
        let curves = Curves::begin(dir, &self.run, self.clock.unix_ms())?;
        self.history.draw(curves);
        Ok(())
    }

    /// Tells a collector of OpenTelemetry how the run goes, if there is one.
    pub fn export(&mut self, exports: &Exports) {
        if let Some(exported) = exports.begin(&self.run, self.clock.unix_ms()) {
            self.history.export(exported);
        }
    }

    /// Runs until the run is finished or `stop` resolves.
    ///
    /// # Errors
    /// The store cannot be written: the coordinator must not make decisions that it would forget.
    pub async fn own(
        mut self,
        mut inputs: mpsc::Receiver<Input>,
        stop: impl Future<Output = ()>,
    ) -> Result<Ended, OwnerError> {
        let mut stop = std::pin::pin!(stop);
        let mut publish = interval(Duration::from_millis(STATUS_INTERVAL_MS));
        publish.set_missed_tick_behavior(MissedTickBehavior::Delay);
        self.take_up_revocations()?;
        self.step(Event::Timer)?;
        let ended = loop {
            if self.run.state().phase == Phase::Finished && !self.stay {
                break Ended::Finished;
            }
            if let Some(how) = self.run.suspended() {
                break Ended::Suspended(how);
            }
            let timeout = self.run.next_timeout().map(|at| self.clock.at(at));
            tokio::select! {
                () = &mut stop => break Ended::Stopped,
                input = inputs.recv() => match input {
                    Some(input) => self.take(input)?,
                    None => break Ended::Stopped,
                },
                () = async { sleep_until(timeout.unwrap_or_else(|| self.clock.at(Duration::MAX / 4))).await },
                    if timeout.is_some() => self.step(Event::Timer)?,
                _ = publish.tick() => {
                    self.store.check_lead()?;
                    if let Some(moved_ms) = self.clock.follow() {
                        tell_calendar(moved_ms);
                    }
                    self.publish();
                    self.recorder.flush();
                }
                Some(answer) = self.plans.join_next() => {
                    let failed = |error| Answer::Stay(format!("the plan stays, because no other could be computed: {error}"));
                    self.step(Event::Planned(Box::new(answer.unwrap_or_else(failed))))?;
                }
                Some(_) = self.farewells.join_next() => {}
            }
        };
        self.publish();
        self.recorder.flush();
        let status = Arc::clone(&self.status.borrow());
        self.history.write_last(self.clock.unix_ms(), &status);
        Box::pin(self.part(ended)).await;
        Ok(ended)
    }

    /// Lets everybody hear the last words.
    async fn part(mut self, ended: Ended) {
        let reason = match ended {
            Ended::Finished => "the run is finished",
            Ended::Suspended(_) => "the run stops for now",
            Ended::Stopped => "the coordinator stops; train on, it will be back",
        };
        for connection in self.open.keys().copied().collect::<Vec<_>>() {
            self.close(connection, reason);
        }
        // A worker that does not react by then is left behind.
        let _ = timeout(Duration::from_secs(FAREWELL_S), async {
            while self.farewells.join_next().await.is_some() {}
        })
        .await;
        block_in_place(|| drop(self.history));
    }

    fn take(&mut self, input: Input) -> Result<(), OwnerError> {
        match input {
            Input::Opened { connection, worker, address, sender, quic } => {
                if !self.issuer.is_welcome(worker) {
                    CloseCode::Stranger.close(&quic, "this worker was revoked, or is not registered here");
                    return Ok(());
                }
                if self.open.len() >= CONNECTIONS_MAX {
                    CloseCode::TooSlow.close(&quic, "too many connections; try again later");
                    return Ok(());
                }
                self.open.insert(connection, Open { worker, sender, quic });
                self.step(Event::Opened { connection, worker, address })
            }
            Input::Event(event) => {
                if let Event::Closed { connection } = event {
                    self.open.remove(&connection);
                }
                self.step(event)
            }
            Input::Enrol { request, visitor, reply } => self.enrol(&request, &visitor, reply),
            Input::Call(call) => self.call(call),
        }
    }

    pub(super) fn step(&mut self, event: Event) -> Result<(), OwnerError> {
        self.store.check_lead()?;
        let (now, before) = (self.clock.now(), self.run.state().phase);
        self.recorder.before(now, &event);
        let commands = self.run.handle(now, event);
        self.recorder.after(&self.run, &commands);
        for command in commands {
            match command {
                Command::Send { connection, message } => self.send(connection, &message),
                Command::Close { connection, reason } => self.close(connection, &reason),
                Command::Persist(Record::State(state)) => block_in_place(|| self.store.put_state(&state))?,
                Command::Persist(Record::Round(summary)) => {
                    block_in_place(|| self.store.push_round(&summary))?;
                    self.history.note_round(self.clock.unix_ms(), &self.run, &summary);
                }
                Command::Plan(question) => {
                    self.plans.spawn_blocking(move || question.answer());
                }
                Command::Report(notice) => {
                    log(&notice);
                    self.journal.add(&notice, self.clock.unix_ms());
                }
            }
        }
        if self.run.state().phase != before {
            self.publish();
        }
        Ok(())
    }

    fn send(&mut self, connection: ConnectionId, message: &ToWorker) {
        let Some(open) = self.open.get(&connection) else { return };
        // A connection that fails here is closed, which its reader reports as an event.
        if let Err(error) = open.sender.send(message) {
            tracing::warn!(worker = %open.worker, %error, "cannot send to a worker");
            CloseCode::TooSlow.close(&open.quic, &error.to_string());
        }
    }

    fn close(&mut self, connection: ConnectionId, reason: &str) {
        let Some(Open { sender, quic, .. }) = self.open.remove(&connection) else { return };
        let reason = reason.to_owned();
        let is_replaced = [Command::REPLACED, Command::RESTARTED].contains(&reason.as_str());
        let code = if is_replaced { CloseCode::Replaced } else { CloseCode::Done };
        self.farewells.spawn(async move {
            sender.finish().await;
            code.close(&quic, &reason);
        });
    }

    pub(super) fn publish(&mut self) {
        let mut status = self.run.status(self.clock.started_unix_ms());
        // With the time of their own day, where the calendar has moved since.
        status.events = self.journal.newest(status.events.len());
        status.stays = self.stay;
        status.suspended = self.run.suspended();
        let status = Arc::new(status);
        self.history.note(self.clock.unix_ms(), &self.run, &status);
        self.status.send_replace(status);
    }

    fn enrol(
        &mut self,
        request: &EnrolRequest,
        visitor: &Visitor,
        reply: oneshot::Sender<EnrolReply>,
    ) -> Result<(), OwnerError> {
        let decision = self.issuer.decide(request, visitor, self.clock.unix_s());
        match &decision {
            EnrolReply::Admitted { .. } => {
                block_in_place(|| self.store.put_enrolment(self.issuer.state()))?;
                tracing::info!(site = %request.site, "a worker enrolled");
            }
            EnrolReply::Refused(refusal) => log_refusal(refusal),
        }
        // The applicant may have hung up.
        let _ = reply.send(decision);
        Ok(())
    }
}

fn tell_calendar(moved_ms: i64) {
    let (hours, way) = (moved_ms as f64 / 3_600_000.0, if moved_ms < 0 { "back" } else { "forward" });
    tracing::warn!(
        "this machine's clock has moved {way} by {:.1} h: it slept, or its clock was set. Certificates and join tokens \
         follow it from now on; `coordinator token create` replaces an expired token",
        hours.abs()
    );
}

fn log(notice: &Notice) {
    let Notice { severity, worker, text, .. } = notice;
    let text = match worker {
        Some(worker) => format!("{worker} {text}"),
        None => text.clone(),
    };
    match severity {
        Severity::Info => tracing::info!("{text}"),
        Severity::Warning => tracing::warn!("{text}"),
        Severity::Error => tracing::error!("{text}"),
    }
}

fn log_refusal(refusal: &EnrolRefusal) {
    tracing::warn!(reason = %refusal, "refused to enrol a worker");
}
