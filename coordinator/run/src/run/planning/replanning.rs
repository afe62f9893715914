//! Changes of plan while a run goes on: when to plan again, and the move.
//!
//! A move is a generation that ends at a round, with a checkpoint of every part of the state. All workers then begin anew with another configuration, and each fetches
//! its part of the model from the disks of its holders. `coordinator/docs/coordinator.md` gives the reasons.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::Duration;

use longhaul_common::id::{Round, SiteId, WorkerId};
use longhaul_common::model::ModelSpec;
use longhaul_common::plan::Member;
use longhaul_proto::control::message::{ToWorker, Welcome};
use serde::{Deserialize, Serialize};

use crate::run::command::{Command, Severity};
use crate::run::core::Core;
use crate::run::generations::Generations;
use crate::run::machine::Run;
use crate::run::planning::Planning;
use crate::run::recovery::source::Source;
use crate::run::state::{Decided, Phase};
use longhaul_plan::{
    Answer, Choice, Device, DeviceId, Divisions, Link, Plan, Present, Question, in_place_of_groups,
};

/// A link's bandwidth or round trip, or a machine's speed, has changed when it differs from the last look at the plan by this factor.
const FACTOR: f64 = 2.0;
/// Shorter round trips all count as this long.
const ROUND_TRIP_MIN_S: f64 = 0.01;
/// Longest and shortest time between looks at the plan.
const LOOK_MAX: Duration = Duration::from_secs(10);
const LOOK_MIN: Duration = Duration::from_millis(100);
/// Time to begin a generation, until this coordinator has measured one.
const PAUSE_S: f64 = 30.0;
/// Beginnings that a move costs: itself, and before it the checkpoints, the leaving and the return of all workers.
const PAUSES: f64 = 2.0;
/// Time that a worker has to come back for a move, on top of `faults.reconnect_grace_ms`.
const COME_BACK: Duration = Duration::from_secs(60);

/// The conditions that a plan depends on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Conditions {
    workers: BTreeSet<WorkerId>,
    links: BTreeMap<(SiteId, SiteId), Link>,
    /// For workers that share a copy: speed relative to their first one.
    speeds: BTreeMap<WorkerId, f64>,
}

/// Use of the planner's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Purpose {
    /// A training run may move.
    Move,
    /// A run without workers for a copy goes on from the checkpoint before this round, if another plan suits the workers present.
    GoOn(Round),
}

/// State between two looks at the plan.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Replanning {
    /// Conditions at the last look.
    basis: Option<Conditions>,
    /// Conditions that have changed since, and the time of the change.
    changed: Option<(Duration, Conditions)>,
    /// Conditions of the open question, and its purpose.
    asked: Option<(Conditions, Purpose)>,
    /// Earliest time of the next look.
    next_look: Duration,
    /// Time at which workers received `Prepare`.
    pub began: Option<Duration>,
    /// Duration of that beginning.
    pub beginning: Option<Duration>,
    /// Time at which a generation ended so that all begin anew.
    pub stopped: Option<Duration>,
    /// Time without training after that.
    pub stood_still: Option<Duration>,
    /// Workers that a move waits for, and its deadline.
    pub coming_back: Option<(BTreeSet<WorkerId>, Duration)>,
}

/// A decided move, until the present generation has ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moving {
    /// The next plan.
    pub plan: Decided,
    /// Workers with a part in it.
    pub workers: BTreeSet<WorkerId>,
}

impl Conditions {
    /// Whether workers have come or left, or a link or a speed has changed.
    fn differ_from(&self, other: &Self) -> bool {
        let times = |one: f64, other: f64| (one / other).max(other / one) >= FACTOR;
        let is_other = |(pair, link): (&(SiteId, SiteId), &Link)| {
            other.links.get(pair).is_none_or(|before| {
                let long = |link: &Link| link.round_trip_s.max(ROUND_TRIP_MIN_S);
                times(link.bytes_per_s, before.bytes_per_s) || times(long(link), long(before))
            })
        };
        self.workers != other.workers
            || self.links.iter().any(is_other)
            || self.workers.iter().any(|&worker| times(self.speed(worker), other.speed(worker)))
    }

    fn speed(&self, worker: WorkerId) -> f64 {
        self.speeds.get(&worker).copied().unwrap_or(1.0)
    }

    /// Describes the workers that have become faster or slower since; `None`: no worker has.
    fn tell_speeds(&self, since: &Self) -> Option<String> {
        let changed = |worker: &WorkerId| {
            let times = self.speed(*worker) / since.speed(*worker);
            (times.max(1.0 / times) >= FACTOR).then(|| format!("{worker} computes {times:.2} times as fast"))
        };
        let told: Vec<String> = self.workers.iter().filter_map(changed).collect();
        (!told.is_empty())
            .then(|| format!("{} as when the plan was made: the plan is reconsidered", told.join(", ")))
    }
}

impl Run {
    /// Time of the next look at the plan; `None`: the plan is fixed.
    pub(crate) fn plan_is_looked_at(&self) -> Option<Duration> {
        self.core.replan_after().filter(|_| self.generations.may_be_planned_anew(&self.core))?;
        // Links change without an event that would trigger a look.
        Some(self.planning.replanning.next_look.max(self.core.now + LOOK_MIN))
    }

    /// Asks for another plan once the conditions of the present one have changed for long enough.
    pub(crate) fn look_at_plan(&mut self) {
        let Some(after) =
            self.core.replan_after().filter(|_| self.generations.may_be_planned_anew(&self.core))
        else {
            return;
        };
        if self.core.now < self.planning.replanning.next_look {
            return;
        }
        self.planning.replanning.next_look = self.core.now + after.min(LOOK_MAX);
        let (now, conditions) = (self.core.now, self.planning.conditions(&self.core));
        let Replanning { basis, changed, asked, .. } = &mut self.planning.replanning;
        let Some(basis) = basis else {
            *basis = Some(conditions);
            return;
        };
        if asked.is_some() || !conditions.differ_from(basis) {
            *changed = None;
            return;
        }
        match changed {
            Some((since, like)) if !conditions.differ_from(like) => {
                if *since + after > now {
                    return;
                }
            }
            _ => {
                *changed = Some((now, conditions));
                return;
            }
        }
        let speeds = conditions.tell_speeds(basis);
        if !self.planning.ask_for_plan(&mut self.core, Purpose::Move) {
            self.planning.settle_for(conditions);
        } else if let Some(text) = speeds {
            self.core.notice(Severity::Info, None, text);
        }
    }

    /// Handles the planner's answer. Its conditions may be outdated.
    pub(crate) fn handle_planned(&mut self, answer: Answer) {
        let Some((asked, purpose)) = self.planning.replanning.asked.take() else { return };
        if self.planning.conditions(&self.core).differ_from(&asked) {
            return;
        }
        match purpose {
            Purpose::Move if self.generations.may_be_planned_anew(&self.core) => {
                self.planning.settle_for(asked);
                self.planning.move_as_answered(&mut self.core, answer);
            }
            Purpose::GoOn(round) if self.planning.still_waits_before(&self.core, round) => {
                self.go_on_as_answered(answer, round);
            }
            Purpose::Move | Purpose::GoOn(_) => {}
        }
    }

    /// Carries out the move once all workers have done every round before it and have a checkpoint on disk. They begin anew under the new plan, or under the old one if a
    /// worker that the new one needs has left.
    pub(crate) fn carry_out_move(&mut self, round: Round) {
        let Some(Moving { plan, workers }) = self.core.state.plans.moving.take() else { return };
        let is_here =
            |worker: &WorkerId| self.core.peers.get(worker).is_some_and(|peer| peer.connection.is_some());
        let here = workers.iter().all(is_here);
        // Residuals of other parts of the model are of no use.
        let survivors = if here { BTreeSet::new() } else { self.core.keep_their_residuals(&[], round) };
        self.end_at(round, &survivors);
        if !here {
            let text = "a worker that the new plan needs has left: the run keeps its present plan".to_owned();
            self.core.notice(Severity::Warning, None, text);
        }
        self.begin_anew(here.then_some(plan), round);
    }

    /// Asks for another plan where the workers present cannot make a copy and none has joined for a while.
    pub(crate) fn replan_for_those_here(&mut self, round: Round) {
        let begun = self.core.state.lineage.facts.is_some()
            && self.core.state.plans.decided.is_some()
            && self.core.replan_after().is_some();
        let is_early = self.generations.gathering_ends(&self.core).is_none_or(|at| at > self.core.now);
        if begun && !is_early && self.planning.unfit.is_none() && self.planning.replanning.asked.is_none() {
            self.planning.ask_for_plan(&mut self.core, Purpose::GoOn(round));
        }
    }

    fn go_on_as_answered(&mut self, answer: Answer, round: Round) {
        match answer {
            Answer::Move(choice, why) => {
                let Some(plan) = self.planning.decided_for_those_here(&self.core, &choice, &why) else {
                    return;
                };
                self.core.notice(Severity::Warning, None, format!("the plan changes: {why}"));
                self.begin_anew(Some(plan), round);
            }
            Answer::Stay(why) => {
                let text = format!("{why}. The run waits for other workers");
                self.core.notice(Severity::Error, None, text.clone());
                self.planning.unfit = Some(text);
            }
        }
    }

    /// Has all workers leave and come back under `plan` (`None`: the present one), to go on from the checkpoint before `round`. The run waits for the workers in the new
    /// plan; under the present one, for all.
    pub(crate) fn begin_anew(&mut self, plan: Option<Decided>, round: Round) {
        let everybody = || self.core.peers.keys().copied().collect();
        let workers = plan.as_ref().map_or_else(everybody, |plan| self.core.workers_of(plan));
        if let Some(plan) = plan {
            self.core.count_what_does_not_fit();
            self.core.follow_plan(plan);
            self.core.state.cut_at = Some(round.max(self.core.state.rounds.ledger.through()));
            // Facts about the old parts do not hold for the new ones.
            self.core.state.lineage.milestones.clear();
            if let Some(facts) = &mut self.core.state.lineage.facts {
                facts.parameters.clear();
            }
        }
        self.planning.remember_speeds(&mut self.core);
        self.accounting.begin_anew(self.core.peers.keys().copied());
        self.recovery.begin_anew();
        self.generations.gather_anew(self.core.now);
        self.core.members_changed();
        self.core.state.generations.present = None;
        self.core.state.phase = Phase::Gathering;
        let here = |worker: &WorkerId| self.core.peers.contains_key(worker);
        let coming: BTreeSet<WorkerId> = workers.into_iter().filter(here).collect();
        self.planning.replanning = Replanning {
            beginning: self.planning.replanning.beginning,
            stopped: self.planning.replanning.stopped,
            stood_still: self.planning.replanning.stood_still,
            coming_back: Some((coming, self.core.now + COME_BACK)),
            ..Replanning::default()
        };
        self.core.persist();
        for (_, peer) in std::mem::take(&mut self.core.peers) {
            let Some(connection) = peer.connection else { continue };
            let (run, config, site) = (self.core.state.run, self.core.config_toml.clone(), peer.known.site);
            self.core.reply(connection, ToWorker::Welcome(Welcome { run, config, site, resumed: false }));
            self.core.close(connection, "the run restarts from the checkpoints of all workers");
        }
    }
}

impl Planning {
    /// Asks the planner about the workers present; it computes beside the run. Returns whether there was a question.
    fn ask_for_plan(&mut self, core: &mut Core, purpose: Purpose) -> bool {
        let Some(question) = self.question(core) else { return false };
        self.replanning.asked = Some((self.conditions(core), purpose));
        core.commands.push(Command::Plan(Box::new(question)));
        true
    }

    /// Whether the run is still gathering and has nothing newer to go on from.
    fn still_waits_before(&self, core: &Core, round: Round) -> bool {
        let is_newest = matches!(core.choose_source(), Source::Checkpoint(found) if found.round == round);
        core.state.phase == Phase::Gathering && self.unfit.is_none() && is_newest
    }

    fn move_as_answered(&mut self, core: &mut Core, answer: Answer) {
        match answer {
            Answer::Stay(why) => core.notice(Severity::Info, None, why),
            Answer::Move(choice, why) => {
                let Some(plan) = self.decided_for_those_here(core, &choice, &why) else { return };
                let workers = core.workers_of(&plan);
                core.notice(Severity::Info, None, format!("the plan changes: {why}"));
                core.state.plans.moving = Some(Moving { plan, workers });
                core.persist();
            }
        }
    }

    /// Whether a move still waits for a worker to come back.
    pub(crate) fn waits_for_a_move(&self, core: &Core) -> bool {
        self.replanning.coming_back.as_ref().is_some_and(|(workers, until)| {
            *until > core.now && !workers.iter().all(|worker| core.peers.contains_key(worker))
        })
    }

    /// Deadline until which a move waits.
    pub(crate) fn move_waits_until(&self, core: &Core) -> Option<Duration> {
        let (_, until) = self.replanning.coming_back.as_ref()?;
        Some(*until).filter(|_| core.state.phase == Phase::Gathering)
    }

    /// Whether all workers that a move waited for are present.
    pub(crate) fn move_is_complete(&self, core: &Core) -> bool {
        let complete = |(workers, _): &(BTreeSet<WorkerId>, Duration)| {
            !workers.is_empty() && workers.iter().all(|worker| core.peers.contains_key(worker))
        };
        self.replanning.coming_back.as_ref().is_some_and(complete)
    }

    /// Records the conditions of a finished look.
    fn settle_for(&mut self, conditions: Conditions) {
        self.replanning.basis = Some(conditions);
        self.replanning.changed = None;
    }

    fn conditions(&self, core: &Core) -> Conditions {
        let by_site = core.workers_by_site();
        let sites: Vec<SiteId> = by_site.keys().copied().collect();
        let name = |((a, b), link): ((usize, usize), Link)| ((sites[a], sites[b]), link);
        let links = self.links(core, &sites).into_iter().map(name).collect();
        let workers = by_site.into_values().flatten().collect();
        Conditions { workers, links, speeds: self.speeds.factors() }
    }

    /// Converts the answer to a question about the workers present to the run's form.
    fn decided_for_those_here(&self, core: &Core, choice: &Choice, why: &str) -> Option<Decided> {
        let by_site = core.workers_by_site();
        let topology = self.topology_of(core, &by_site, |worker| self.known_device(core, worker))?;
        Some(core.decided_of(choice, &topology, &by_site, why.to_owned()))
    }

    /// Returns the known capacity of a machine. A machine without a measurement counts as slow as the slowest measured
    /// one.
    fn known_device(&self, core: &Core, worker: WorkerId) -> Option<Device> {
        let slowest = core.state.roster.workers.values().filter_map(|known| known.flops_per_s).min()?;
        let known = &core.peers.get(&worker)?.known;
        let flops_per_s = known.flops_per_s.unwrap_or(slowest) as f64 * self.speeds.factor(worker);
        Some(Device::told(flops_per_s, (known.memory_bytes, known.host_memory_bytes)))
    }

    /// Returns the question for the planner; `None`: no worker has a measurement, or the model is unknown.
    pub(crate) fn question(&self, core: &Core) -> Option<Question> {
        let by_site = core.workers_by_site();
        let topology = self.topology_of(core, &by_site, |worker| self.known_device(core, worker))?;
        let spec = self.spec(core)?;
        let divisions = Divisions::of(&core.config, &spec);
        let through = core.state.rounds.ledger.through();
        let done =
            through.0.checked_sub(1).map_or(0, |last| core.state.rounds.schedule.steps_of(Round(last)).end);
        let beginning_s = self.replanning.beginning.map_or(PAUSE_S, |took| took.as_secs_f64());
        Some(Question {
            present: core.present_plan(&by_site, &spec, &divisions),
            topology,
            divisions,
            steps_left: core.state.rounds.schedule.steps.saturating_sub(done),
            pause_s: PAUSES * beginning_s,
        })
    }
}

impl Core {
    /// Whether a generation has to end for a move.
    pub(crate) fn move_is_due(&self) -> bool {
        self.state.plans.moving.is_some() && self.state.phase == Phase::Training && !self.is_closing()
    }

    /// Describes the present plan and its successor.
    pub(crate) fn plan_status(&self) -> Option<String> {
        let plan = &self.state.plans.decided.as_ref()?.why;
        let next = self.state.plans.moving.as_ref();
        Some(next.map_or_else(|| plan.clone(), |next| format!("{plan} Next, {}", next.plan.why)))
    }

    /// Time for which a change has to last; `None`: the plan is fixed.
    pub(crate) fn replan_after(&self) -> Option<Duration> {
        let seconds = self.config.parallel.replan_after_s;
        // A plan written by the user stays. Factors of low-rank gradients cannot be cut anew.
        let is_open = self.state.plans.decided.is_some() && self.config.sync.rank == 0;
        (seconds > 0 && is_open).then(|| Duration::from_secs(seconds.into()))
    }

    fn workers_by_site(&self) -> BTreeMap<SiteId, Vec<WorkerId>> {
        let mut by_site: BTreeMap<SiteId, Vec<WorkerId>> = BTreeMap::new();
        for (&worker, peer) in self.peers.iter().filter(|(_, peer)| peer.connection.is_some()) {
            by_site.entry(peer.known.site).or_default().push(worker);
        }
        by_site
    }

    /// Returns the workers with a part in a plan: all present ones, where it names none.
    fn workers_of(&self, plan: &Decided) -> BTreeSet<WorkerId> {
        match plan.copies.as_slice() {
            [] => self.peers.keys().copied().collect(),
            copies => copies.iter().flatten().copied().collect(),
        }
    }

    /// Returns the generation's present copies as a plan.
    fn present_plan(
        &self,
        by_site: &BTreeMap<SiteId, Vec<WorkerId>>,
        spec: &ModelSpec,
        divisions: &Divisions,
    ) -> Option<Present> {
        let place = |worker: &WorkerId| {
            let places = by_site.values().enumerate();
            places.into_iter().find_map(|(site, workers)| {
                let device = workers.iter().position(|here| here == worker)?;
                Some(DeviceId { site, device })
            })
        };
        let lineup = self.state.generations.present.as_ref()?;
        let of_replica =
            |ranks: &[Member]| ranks.iter().map(|member| place(&member.worker)).collect::<Option<Vec<_>>>();
        let rows: Vec<Vec<DeviceId>> =
            lineup.replicas.iter().filter_map(|replica| of_replica(&replica.ranks)).collect();
        let parallel = &self.config.parallel;
        let (members, ranks) = (parallel.tensor, parallel.stages as usize);
        let parts = spec.parts(parallel, self.config.data.sequence_length)?;
        // Stage s is chunk s / ranks of rank s % ranks, which all members of a group hold.
        let stage =
            |stage: usize| parts.get(stage % ranks * members as usize)?.chunks.get(stage / ranks).cloned();
        let count = ranks * parallel.chunks as usize;
        let stages: Vec<Range<u32>> = (0..count).map(stage).collect::<Option<_>>()?;
        let replicas = if members > 1 { in_place_of_groups(&rows, members) } else { rows };
        let micro_batches = divisions.with(members)?.work.micro_batches(replicas.len());
        let (pipeline, recompute) = (parallel.pipeline(micro_batches), self.config.train.recompute);
        let plan = Plan { replicas, stages, pipeline, recompute };
        (!plan.replicas.is_empty()).then_some(Present { members, plan })
    }
}

impl Generations {
    fn may_be_planned_anew(&self, core: &Core) -> bool {
        core.state.phase == Phase::Training
            && core.state.plans.moving.is_none()
            && !core.is_closing()
            && self.waits_until().is_none()
    }
}
