//! Distance between rounds: decided in the warm-up from the members' measurements, and again when links have changed.

mod rule;
mod watch;

use std::collections::BTreeMap;

use longhaul_common::config::RunConfig;
use longhaul_common::id::{Round, WorkerId};
use longhaul_common::schedule::{Pace, RoundSchedule, turns_max};
use longhaul_proto::control::message::Measured;
use rule::Bounds;
use serde::{Deserialize, Serialize};
use watch::{Hysteresis, Verdict, WINDOW_ROUNDS, Window};

use crate::run::accounting::Accounting;
use crate::run::accounting::progress::Totals;
use crate::run::command::Severity;
use crate::run::core::Core;
use crate::run::generations::generation_config::GenerationConfig;
use crate::run::machine::Run;

/// Share of the warm-up after which the measurements count as typical of the links.
const MEASURED_AFTER: f64 = 0.5;
/// Share of it after which the members that have measured decide: one without samples never measures.
const LAST_CALL: f64 = 0.75;

/// Measurements of the pace that links allow. A restarted coordinator begins to watch anew.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Watch {
    window: Window,
    /// Where the window began; none: it has not.
    from: Option<Began>,
    hysteresis: Hysteresis,
    /// The pace that links call for, until a generation begins with it.
    wanted: Option<ProposedPace>,
}

/// The start of a window.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Began {
    round: Round,
    /// Each member's totals at that time.
    totals: BTreeMap<WorkerId, Totals>,
}

/// Another pace, and why.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct ProposedPace {
    pace: Pace,
    why: String,
}

impl Watch {
    /// Nothing is known.
    pub fn new(config: &RunConfig) -> Self {
        let hysteresis = Hysteresis::new(config.checkpoint_spacing(), config.checkpoint.keep);
        Self { window: Window::default(), from: None, hysteresis, wanted: None }
    }

    /// A member has reported a round.
    pub fn note(&mut self, worker: WorkerId, round: Round, measured: Option<Measured>) {
        let is_of_window = self.from.as_ref().is_none_or(|from| round >= from.round);
        if let Some(measured) = measured.filter(|_| is_of_window) {
            self.window.push(worker, measured);
        }
    }

    /// Forgets a worker that has left.
    pub fn forget(&mut self, worker: WorkerId) {
        self.window.forget(worker);
    }
}

impl Accounting {
    /// Whether rounds should have another pace than they have, and still can.
    pub(crate) fn pace_is_due(&self, core: &Core) -> bool {
        self.wanted_pace(core).is_some()
    }

    fn wanted_pace(&self, core: &Core) -> Option<ProposedPace> {
        if !core.pace_follows() {
            return None;
        }
        match core.state.rounds.schedule.is_warmup(core.state.rounds.ledger.through()) {
            true => self.wanted_in_warmup(core),
            false => self.watch.wanted.clone(),
        }
    }

    /// Returns the pace for the rest of the run; `None`: not known yet, or decided already.
    fn wanted_in_warmup(&self, core: &Core) -> Option<ProposedPace> {
        let schedule = core.state.rounds.schedule;
        let through = core.state.rounds.ledger.through().0 as f64 / schedule.warmup_rounds as f64;
        if core.state.rounds.paced_from.is_some() || through < MEASURED_AFTER {
            return None;
        }
        let members = core.present_members();
        let measured = self.watch.window.medians(&members);
        if measured.is_empty() || measured.len() < members.len() && through < LAST_CALL {
            return None;
        }
        let pace = rule::wanted(core.bounds(), core.present_pace(), &core.config.sync, &measured);
        (pace != core.present_pace()).then(|| ProposedPace { pace, why: self.inputs(&measured, None) })
    }

    fn begin_window(&mut self, core: &mut Core, round: Round) {
        let totals =
            |worker: WorkerId| Some((worker, Totals::of(core.peers.get(&worker)?.progress.meter.latest()?)));
        let totals = core.present_members().into_iter().filter_map(totals).collect();
        self.watch.from = Some(Began { round, totals });
        self.watch.window.clear();
    }

    /// Describes the members' measurements: of each value the one that calls for the slowest pace.
    fn inputs(&self, measured: &[Measured], waited: Option<f64>) -> String {
        let most = |value: fn(&Measured) -> f32| measured.iter().map(value).fold(0.0, f32::max);
        let least =
            |value: fn(&Measured) -> f32| measured.iter().map(value).min_by(f32::total_cmp).unwrap_or(0.0);
        let waited = waited.map(|share| {
            format!("; the worker that waited least waited for {:.0} % of the time", 100.0 * share)
        });
        format!(
            "a step takes {:.3} s or more, a round trip up to {:.0} ms, one bit per parameter up to {:.3} s, and {:.1} cores or more are idle, as {} workers measured \
             (medians of {} reports){}",
            least(|one| one.step_s),
            most(|one| one.round_trip_s) * 1e3,
            most(|one| one.bit_s),
            least(|one| one.spare_cores),
            measured.len(),
            self.watch.window.reports(),
            waited.unwrap_or_default()
        )
    }

    /// Puts the wanted pace into effect from `first_round` on, which has not begun, or from the warm-up's end on.
    pub(crate) fn fix_pace(&mut self, core: &mut Core, old: &mut GenerationConfig, first_round: Round) {
        let Some(ProposedPace { pace, why }) = self.wanted_pace(core) else { return };
        self.watch.wanted = None;
        let (before, present) = (core.state.rounds.schedule, core.present_pace());
        let schedule = before.changed_at(first_round, pace);
        if schedule == before {
            return;
        }
        let from = Round(first_round.0.max(before.warmup_rounds));
        if old.until.0 == before.rounds() {
            old.until = Round(schedule.rounds());
        }
        self.follow_schedule(core, schedule, from);
        let text = format!(
            "from {from} on rounds are {} steps apart, results {} steps late, and each value is exchanged every {} steps (before: {}, {} and {}), as links and cores allow it: {why}",
            pace.every,
            pace.overlap,
            pace.turn(),
            present.every,
            present.overlap,
            present.turn()
        );
        core.notice(Severity::Info, None, text);
    }

    /// Keeps the last decided pace where the run begins from a state before `round`.
    pub(crate) fn keep_pace(&mut self, core: &mut Core, round: Round) {
        let schedule = core.state.rounds.schedule;
        if schedule.changes.kept().last().is_some_and(|last| last.round > round) {
            self.follow_schedule(core, schedule.changed_at(round, schedule.last_pace()), round);
        }
    }

    fn follow_schedule(&mut self, core: &mut Core, schedule: RoundSchedule, from: Round) {
        core.state.rounds.schedule = schedule;
        core.state.rounds.paced_from = Some(from);
        core.state.rounds.ledger.follow(schedule);
        self.begin_window(core, from);
    }
}

impl Core {
    /// Whether the pace follows the links, within the user's bounds.
    fn pace_follows(&self) -> bool {
        let sync = &self.config.sync;
        sync.adapt && !sync.source.is_gradient() && sync.every_max > sync.every && !self.is_closing()
    }

    /// Share of its time since then that a member has waited; `None`: not reported.
    fn waited(&self, worker: WorkerId, since: &Began) -> Option<f64> {
        let before = since.totals.get(&worker)?;
        let now = Totals::of(self.peers.get(&worker)?.progress.meter.latest()?);
        let done = now.continues(before).then(|| now.since(before))?;
        Some(1.0 - done.share_of_local_speed()?)
    }

    /// As the user has it.
    fn bounds(&self) -> Bounds {
        let fragments = self.fragments_min();
        let configured = self.config.round_schedule().for_fragments(fragments).last_pace();
        Bounds { configured, closest: self.config.closest_rounds(), turns_max: turns_max(fragments) }
    }

    fn present_pace(&self) -> Pace {
        self.state.rounds.schedule.for_fragments(self.fragments_min()).last_pace()
    }
}

impl Run {
    /// Rounds were counted: judges a window of them, when it is full.
    pub(crate) fn watch_pace(&mut self) {
        let (schedule, through) = (self.core.state.rounds.schedule, self.core.state.rounds.ledger.through());
        if !self.core.pace_follows() || self.generations.is_settling() || schedule.is_warmup(through) {
            return;
        }
        let Some(from) = &self.accounting.watch.from else {
            return self.accounting.begin_window(&mut self.core, through);
        };
        if through.0 < from.round.0 + WINDOW_ROUNDS {
            return;
        }
        let members = self.core.present_members();
        let measured = self.accounting.watch.window.medians(&members);
        if !measured.is_empty() {
            let waited = members.iter().filter_map(|worker| self.core.waited(*worker, from)).reduce(f64::min);
            let pace = self.core.present_pace();
            let wanted = rule::wanted(self.core.bounds(), pace, &self.core.config.sync, &measured);
            let paced_from =
                self.core.state.rounds.paced_from.map_or(schedule.warmup_rounds, |round| round.0);
            let rounds = through.0.saturating_sub(paced_from);
            let verdict = Verdict { pace, wanted, waited, rounds };
            let decided = self.accounting.watch.hysteresis.judge(verdict);
            self.accounting.watch.wanted =
                decided.map(|pace| ProposedPace { pace, why: self.accounting.inputs(&measured, waited) });
        }
        self.accounting.begin_window(&mut self.core, through);
    }
}
