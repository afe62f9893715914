//! The status of the run as of its last event.

use longhaul_common::config::TaskKind;
use longhaul_common::id::{Round, SiteId, WorkerId};
use longhaul_proto::control::message::{DataAt, Hash};

use crate::run::accounting::Accounting;
use crate::run::accounting::progress::Totals;
use crate::run::accounting::tasks::Scored;
use crate::run::core::Core;
use crate::run::encoding::plausible;
use crate::run::machine::Run;
use crate::run::peer::{Peer, Standing};
use crate::run::planning::Planning;
use crate::run::state::{Checkpoint, Phase, RoundsState};
use crate::run::views::member_status::{Health, MemberPlace, MemberStatus, MemberWork};
use crate::run::views::snapshot::Snapshot;
use crate::run::views::status::{
    AccountingStatus, CheckpointStatus, ClusterStatus, EventStatus, LedgerStatus, OverheadStatus,
    ParityStatus, ProgressStatus, RunStatus, SamplesStatus, ScoreStatus, Status, ThroughputStatus,
    TrafficStatus, TrainingStatus,
};

impl Run {
    /// The run as of its last event. `clock_started_unix_ms` is the Unix time at which the run's clock was zero.
    #[must_use]
    pub fn status(&self, clock_started_unix_ms: u64) -> Status {
        let totals = self.core.state.tally.totals();
        let through = self.core.state.rounds.ledger.through();
        let step = through
            .0
            .checked_sub(1)
            .map_or(0, |last| self.core.state.rounds.schedule.steps_of(Round(last)).end);
        let snapshot = self.core.state.end.last_snapshot.clone().unwrap_or_else(|| self.snapshot());
        let Snapshot {
            loss,
            gradient_norm,
            validation_loss,
            validation_accuracy,
            residual_ratio,
            tokens_per_s,
            share_of_local_speed,
            members,
            parity,
        } = snapshot;
        let evaluations = &self.core.state.evaluations;
        Status {
            run: RunStatus {
                id: self.core.state.run.to_string(),
                name: self.core.config.run.name.clone(),
                phase: self.core.state.phase,
                stopping: self.core.state.requests.drain,
                paused: self.core.is_paused(),
                fork: self.core.state.lineage.fork.map(|fork| format!("{} at step {}", fork.of, fork.step)),
                ended_early: evaluations.ended().map(str::to_owned),
            },
            progress: ProgressStatus {
                generation: self.core.state.generations.present.as_ref().map(|lineup| lineup.generation.0),
                round: through.0,
                rounds: self.core.state.rounds.schedule.rounds(),
                step,
                steps: self.core.state.rounds.schedule.steps,
            },
            training: TrainingStatus {
                loss,
                gradient_norm,
                validation_loss,
                validation_accuracy,
                images: self.core.config.data.image.is_some(),
                residual_ratio,
                best: evaluations.best(),
                best_checkpoint: evaluations.kept().filter(|_| self.core.config.evaluate.keep_best),
                evaluations_without_improvement: evaluations.without_improvement() as u64,
                scores: self.core.state.tasks.newest().map(score_statuses).unwrap_or_default(),
            },
            throughput: ThroughputStatus {
                tokens: totals.tokens,
                selected_share: totals.selected_share(),
                tokens_per_s,
                tokens_per_s_mean: self.core.state.tally.tokens_per_s(),
                share_of_local_speed,
                share_of_local_speed_mean: totals.share_of_local_speed(),
            },
            overhead: OverheadStatus::of(&totals),
            traffic: TrafficStatus::of(&totals),
            eta_s: self.core.eta_s(step),
            samples: self.samples_status(),
            cluster: ClusterStatus {
                parts: self.core.ranks(),
                plan: self.core.plan_status(),
                members,
                gone: self.liveness.gone_statuses(&self.core),
                parity_from: self.core.compared_from().filter(|_| parity.is_none()),
                parity,
                links: self.core.link_statuses(),
            },
            stays: false,
            suspended: None,
            checkpoints: self.core.checkpoint_statuses(),
            events: self.core.event_statuses(clock_started_unix_ms),
            accounting: AccountingStatus {
                refused: self.accounting.refusal_statuses(&self.core),
                refused_unnamed: self.accounting.refused_unnamed(),
                residuals_lost: self.core.state.residuals.lost,
                privacy: self.core.privacy_status(),
            },
            problems: self.problems(),
        }
    }

    fn samples_status(&self) -> SamplesStatus {
        let RoundsState { ledger: books, late, .. } = &self.core.state.rounds;
        let late = books.counted_of(late.waiting());
        let ledger = LedgerStatus {
            positions_applied: books.counted().len(),
            duplicates: books.duplicates(),
            pending: books.pending(),
            given_out: books.given_out(),
            waiting: books.waiting().len(),
        };
        SamplesStatus {
            counted: ledger.positions_applied.saturating_sub(late),
            late,
            pending: ledger.pending,
            ledger,
            audit: self.accounting.audits().status(),
        }
    }
}

impl OverheadStatus {
    fn of(totals: &Totals) -> Self {
        Self {
            data_wait_ms: 1e3 * totals.data_wait_s,
            data_wait_share: totals.data_wait_share(),
            encode_ms: 1e3 * totals.encode_s,
            encode_wait_share: totals.encode_wait_share(),
            bubble_ms: 1e3 * totals.bubble_s,
            bubble_share: totals.bubble_share(),
            data_wan_bytes: totals.data_wan_bytes,
            data_lan_bytes: totals.data_lan_bytes,
            checkpoint_stall_share: totals.checkpoint_stall_share(),
        }
    }
}

impl TrafficStatus {
    fn of(totals: &Totals) -> Self {
        let Totals { wan_bytes, dense_bytes, .. } = *totals;
        let is_known = wan_bytes > 0 && dense_bytes > 0;
        let bytes_ratio = is_known.then(|| dense_bytes as f64 / wan_bytes as f64);
        Self { wan_bytes, dense_bytes, bytes_ratio }
    }
}

impl Accounting {
    pub(crate) fn parity_status(&self) -> Option<ParityStatus> {
        let latest = self.verdicts();
        // Of several parts of the model, one that is broken, or the one that is furthest behind.
        let verdict = latest.min_by_key(|verdict| (verdict.odd.is_empty(), verdict.round))?;
        let equal = verdict.odd.is_empty();
        Some(ParityStatus { round: verdict.round.0, hash: hex(&verdict.hash), equal })
    }
}

impl Core {
    /// Returns the last round of a redundant warm-up: until then, members' states are not compared.
    fn compared_from(&self) -> Option<u64> {
        let is_redundant = self.config.sync.is_redundant_in(true) && self.state.phase == Phase::Training;
        self.state.rounds.schedule.warmup_rounds.checked_sub(1).filter(|_| is_redundant)
    }

    fn checkpoint_statuses(&self) -> Vec<CheckpointStatus> {
        let status = |checkpoint: &Checkpoint| CheckpointStatus {
            worker: checkpoint.worker.to_string(),
            next_round: checkpoint.report.next_round.0,
            path: checkpoint.report.path.clone(),
            state_hash: checkpoint.report.outcome.as_ref().ok().map(hex),
            error: checkpoint.report.outcome.clone().err(),
        };
        self.state.checkpoints.newest.iter().map(status).collect()
    }

    fn event_statuses(&self, clock_started_unix_ms: u64) -> Vec<EventStatus> {
        self.notices.iter().map(|notice| EventStatus::of(notice, clock_started_unix_ms)).collect()
    }

    pub(crate) fn site_name(&self, site: SiteId) -> String {
        self.state.roster.sites.get(site.0 as usize).cloned().unwrap_or_default()
    }

    /// Work of all workers over the last interval.
    pub(crate) fn recent(&self) -> Totals {
        let recent = self.peers.values().filter_map(|peer| peer.progress.meter.recent());
        recent.fold(Totals::default(), |sum, (_, done)| sum.plus(&done))
    }

    pub(crate) fn sum_of_speeds(&self) -> Option<f64> {
        let speeds = self.peers.values().filter_map(|peer| peer.progress.meter.recent());
        speeds.map(|(seconds, done)| done.tokens as f64 / seconds).reduce(|a, b| a + b)
    }

    fn eta_s(&self, step: u64) -> Option<f64> {
        let end = self.state.until().map(|until| self.state.rounds.schedule.steps_of(until).start)?;
        let members = self.peers.values().filter(|peer| peer.is_present_member());
        let pace = members.filter_map(|peer| peer.progress.meter.steps_per_s()).reduce(f64::min)?;
        (pace > 0.0).then(|| end.saturating_sub(step) as f64 / pace)
    }
}

impl Planning {
    pub(crate) fn member_status(&self, core: &Core, worker: WorkerId, peer: &Peer) -> MemberStatus {
        let state = match peer.standing {
            Standing::Waiting => "waiting",
            Standing::Preparing => "preparing",
            Standing::Healing => "healing",
            Standing::Ready => "ready",
            Standing::Member if peer.is_awaited() => "awaited",
            Standing::Member if peer.progress.finished.is_some() => "finished",
            Standing::Member => "training",
        };
        let health = match peer.progress.punctuality.is_slow() {
            _ if peer.connection.is_some() && peer.silence.is_unusual(core.now) => Health::Silent,
            true => Health::Slow,
            false => Health::Steady,
        };
        let counted = peer.progress.meter.recent().filter(|_| peer.slot.is_none_or(|slot| slot.rank == 0));
        let tokens_per_s = counted.map(|(seconds, done)| done.tokens as f64 / seconds);
        let encoding = peer.progress.meter.latest().and_then(|heartbeat| plausible(heartbeat.encoding));
        let place = MemberPlace {
            id: worker.to_string(),
            site: core.site_name(peer.known.site),
            part: peer.slot.map(|slot| slot.rank + 1),
            copy: peer.slot.map(|slot| slot.replica),
            device: peer.known.device.clone(),
        };
        let work = MemberWork {
            state: state.to_owned(),
            health,
            data: peer.data.at.map(|at| data_word(at).to_owned()),
            step: peer.progress.meter.latest().map_or(0, |heartbeat| heartbeat.step),
            tokens_per_s,
            state_hash: peer.progress.state_hash.as_ref().map(hex),
            contributed: peer.progress.contributed.map(|round| round.0),
            speed: self.known_speed(worker),
            density: encoding.map(|encoding| encoding.density.into()),
            value_bits: encoding.map(|encoding| encoding.value_bits.into()),
            last_seen_s: core.now.saturating_sub(peer.silence.last()).as_secs_f64(),
        };
        MemberStatus { place, work }
    }
}

fn score_statuses(scored: &Scored) -> Vec<ScoreStatus> {
    let of = |(kind, measure, value, questions): (TaskKind, &str, f64, u64)| ScoreStatus {
        task: kind.name().to_owned(),
        measure: measure.to_owned(),
        value,
        questions,
        step: scored.step,
    };
    scored.measures().map(of).collect()
}

fn data_word(at: DataAt) -> &'static str {
    match at {
        DataAt::Nowhere => "none",
        DataAt::Here(_) => "here",
        DataAt::Fetched(_) => "fetched",
    }
}

/// A hash in the form for display.
fn hex(hash: &Hash) -> String {
    hash.iter().map(|byte| format!("{byte:02x}")).collect()
}
