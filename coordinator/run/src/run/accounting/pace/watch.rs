//! The rule for a change of pace: windows of rounds, and the number that must agree. Independent of the run.

use std::collections::{BTreeMap, VecDeque};

use longhaul_common::id::WorkerId;
use longhaul_common::schedule::{CHANGES_KEPT_MAX, Pace};
use longhaul_proto::control::message::Measured;
use serde::{Deserialize, Serialize};

use super::rule;

/// Rounds per window: each report already is a line through twenty rounds, and the median of this many ignores accidents.
pub const WINDOW_ROUNDS: u64 = 8;
/// Results come later, or rounds take more turns, where the wanted steps or turns are higher by this factor: bits can make up for less.
const SLOWER_FACTOR: f64 = 1.5;
/// Windows in a row for that; the newest one gives the number. Few, as training waits.
const SLOWER_WINDOWS: u32 = 2;
/// Results come earlier, or rounds take fewer turns, where the wanted numbers are lower by this factor.
const FASTER_FACTOR: f64 = 2.0;
/// Windows in a row for that; the slowest one gives the number. Many, as a link that was slow a moment ago may slow down
/// again.
const FASTER_WINDOWS: u32 = 6;
/// Least number of rounds between changes.
const APART_ROUNDS: u64 = 32;
/// Share of its time that even the least waiting member must wait for results to come later. A member that waits only for slower machines would do so at any pace.
const WAITED_MIN: f64 = 0.05;

/// The members' reports of the latest rounds.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Window {
    reports: BTreeMap<WorkerId, VecDeque<Measured>>,
}

impl Window {
    /// Adds a report, if it is possible.
    pub fn push(&mut self, worker: WorkerId, measured: Measured) {
        if !rule::is_sound(&measured) {
            return;
        }
        let reports = self.reports.entry(worker).or_default();
        if reports.len() as u64 == WINDOW_ROUNDS {
            reports.pop_front();
        }
        reports.push_back(measured);
    }

    /// Drops a worker's reports.
    pub fn forget(&mut self, worker: WorkerId) {
        self.reports.remove(&worker);
    }

    /// Drops all reports.
    pub fn clear(&mut self) {
        self.reports.clear();
    }

    /// Medians of each member's reports; members without any are left out.
    pub fn medians(&self, members: &[WorkerId]) -> Vec<Measured> {
        members.iter().filter_map(|worker| Some(medians_of(self.reports.get(worker)?))).collect()
    }

    /// Number of reports behind the medians.
    pub fn reports(&self) -> usize {
        self.reports.values().map(VecDeque::len).sum()
    }
}

fn medians_of(reports: &VecDeque<Measured>) -> Measured {
    let median = |value: fn(&Measured) -> f32| {
        let mut values: Vec<f32> = reports.iter().map(value).collect();
        values.sort_by(f32::total_cmp);
        values.get(values.len() / 2).copied().unwrap_or_default()
    };
    Measured {
        step_s: median(|one| one.step_s),
        round_trip_s: median(|one| one.round_trip_s),
        bit_s: median(|one| one.bit_s),
        spare_cores: median(|one| one.spare_cores),
    }
}

/// Verdict of a window of rounds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// Present pace.
    pub pace: Pace,
    /// Pace by the measurements.
    pub wanted: Pace,
    /// Share of its time that the least waiting member waited. `None`: unknown.
    pub waited: Option<f64>,
    /// Rounds since the pace changed, or the warm-up ended.
    pub rounds: u64,
}

/// Windows in a row with the same verdict.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct Streak {
    side: Side,
    windows: u32,
    wanted: Pace,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Side {
    Slower,
    Faster,
}

/// Changes the pace once enough windows in a row ask for it, and not soon after the last change: a link of varying speed gets the pace of its slow times.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Hysteresis {
    apart: u64,
    streak: Option<Streak>,
}

impl Hysteresis {
    /// Creates one for a run that writes a checkpoint every so many rounds, and keeps so many. The schedule remembers a few changes, and a run goes on from rounds within them: changes are far enough
    /// apart for all kept checkpoints to be among those.
    pub fn new(every_rounds: u64, keep: u32) -> Self {
        let reach = every_rounds.saturating_mul(u64::from(keep) + 1);
        let apart = reach.div_ceil(CHANGES_KEPT_MAX as u64 - 1).max(APART_ROUNDS);
        Self { apart, streak: None }
    }

    /// Adds a window. Returns the new pace, if it changes.
    pub fn judge(&mut self, verdict: Verdict) -> Option<Pace> {
        let Some(side) = side_of(&verdict) else {
            self.streak = None;
            return None;
        };
        let before = self.streak.filter(|streak| streak.side == side);
        let wanted = match before {
            Some(before) if side == Side::Faster => before.wanted.max(verdict.wanted),
            _ => verdict.wanted,
        };
        let windows = before.map_or(0, |before| before.windows).saturating_add(1);
        self.streak = Some(Streak { side, windows, wanted });
        let needed = if side == Side::Slower { SLOWER_WINDOWS } else { FASTER_WINDOWS };
        (windows >= needed && verdict.rounds >= self.apart).then(|| {
            self.streak = None;
            wanted
        })
    }
}

/// Returns the direction in which the wanted pace differs enough from the present one. The time for a round decides; then whether it is all that there is between
/// rounds; and turns where both are about the same: fewer turns are no loss where rounds are further apart.
fn side_of(verdict: &Verdict) -> Option<Side> {
    let Verdict { pace, wanted, waited, .. } = *verdict;
    let side = |now: f64, wanted: f64| {
        let ratio = wanted / now.max(1.0);
        match ratio {
            _ if ratio >= SLOWER_FACTOR => Some(Side::Slower),
            _ if ratio <= 1.0 / FASTER_FACTOR => Some(Side::Faster),
            _ => None,
        }
    };
    match side(pace.overlap as f64, wanted.overlap as f64) {
        Some(Side::Slower) if waited.is_some_and(|waited| waited < WAITED_MIN) => None,
        Some(side) => Some(side),
        None => match (rule::works_all_the_time(pace), rule::works_all_the_time(wanted)) {
            (false, true) => Some(Side::Slower),
            (true, false) => Some(Side::Faster),
            _ => side(f64::from(pace.groups), f64::from(wanted.groups)),
        },
    }
}

#[cfg(test)]
mod tests {
    use longhaul_common::config::{SyncConfig, SyncPreset};

    use super::*;

    const CONFIGURED: Pace = Pace { overlap: 1, groups: 5, every: 1 };

    /// A run over links with speed `bit_s` at each round: the rounds at which the pace changed, and the new pace.
    struct Rounds {
        configured: Pace,
        pace: Pace,
        changed: u64,
        hysteresis: Hysteresis,
        window: Window,
        changes: Vec<(u64, Pace)>,
        waited: Option<f64>,
    }

    impl Rounds {
        fn new() -> Self {
            Self {
                configured: CONFIGURED,
                pace: CONFIGURED,
                changed: 0,
                hysteresis: Hysteresis::new(20, 2),
                window: Window::default(),
                changes: Vec::new(),
                waited: Some(0.5),
            }
        }

        fn run(&mut self, rounds: std::ops::Range<u64>, bit_s: impl Fn(u64) -> f32) {
            for round in rounds {
                for worker in [1, 2].map(WorkerId) {
                    self.window.push(worker, measured(bit_s(round)));
                }
                if round % WINDOW_ROUNDS == WINDOW_ROUNDS - 1 {
                    self.judge(round + 1);
                }
            }
        }

        fn judge(&mut self, round: u64) {
            let medians = self.window.medians(&[1, 2, 3].map(WorkerId));
            let bounds =
                rule::Bounds { configured: self.configured, closest: self.configured.overlap, turns_max: 12 };
            let wanted = rule::wanted(bounds, self.pace, &SyncConfig::of(SyncPreset::Auto), &medians);
            let rounds = round - self.changed;
            let verdict = Verdict { pace: self.pace, wanted, waited: self.waited, rounds };
            if let Some(pace) = self.hysteresis.judge(verdict) {
                self.pace = pace;
                self.changed = round;
                self.changes.push((round, pace));
            }
            self.window.clear();
        }
    }

    /// Steps of half a second and round trips of 0.1 s: with b seconds a bit, 0.02·b must fit.
    fn measured(bit_s: f32) -> Measured {
        Measured { step_s: 0.5, round_trip_s: 0.1, bit_s, spare_cores: 0.0 }
    }

    /// 40 s a bit leave rounds at each step; 400 s want one in 17 steps: 8.15 s at 0.485 s.
    #[test]
    fn a_link_that_collapses_tenfold_has_rounds_further_apart_within_two_windows() {
        let mut rounds = Rounds::new();
        rounds.run(0..200, |_| 40.0);
        assert_eq!(rounds.changes, []);
        rounds.run(200..1000, |_| 400.0);
        assert_eq!(rounds.changes, [(216, Pace { overlap: 17, groups: 1, every: 17 })]);
        rounds.run(1000..1400, |_| 40.0);
        assert_eq!(rounds.changes[1..], [(1048, CONFIGURED)], "and is fast again after six");
    }

    /// Down to a fifth, and up again: short times leave the pace of the slow ones, which is found in two changes at most.
    #[test]
    fn a_rate_that_swings_fivefold_changes_the_pace_seldom() {
        for period in [1, 3, 8, 10, 20, 33, 40] {
            let mut rounds = Rounds::new();
            rounds.run(0..4000, |round| if round / period % 2 == 0 { 100.0 } else { 500.0 });
            let ends = rounds.changes.last().map(|change| change.0);
            assert!(rounds.changes.len() <= 2 && ends <= Some(150), "{period}: {:?}", rounds.changes);
        }
        // Times longer than six windows are followed: down and up again each time.
        for period in [80, 200, 500] {
            let mut rounds = Rounds::new();
            rounds.run(0..4000, |round| if round / period % 2 == 0 { 100.0 } else { 500.0 });
            let most = 4000 / period as usize;
            assert!((1..=most).contains(&rounds.changes.len()), "{period}: {:?}", rounds.changes);
        }
    }

    #[test]
    fn small_differences_and_accidents_change_nothing() {
        let mut rounds = Rounds::new();
        rounds.run(0..100, |_| 400.0);
        assert_eq!(rounds.changes, [(32, Pace { overlap: 17, groups: 1, every: 17 })]);
        // 12 to 25 steps are less than half as many again, or less than twice as few.
        rounds.run(100..1000, |round| if round / 50 % 2 == 0 { 280.0 } else { 590.0 });
        // In each window, three rounds of eight are a thousand times as slow.
        rounds.run(1000..2000, |round| if round % 8 < 3 { 400_000.0 } else { 400.0 });
        assert_eq!(rounds.changes.len(), 1);
    }

    /// The others wait for its slow machine; it waits for none.
    #[test]
    fn rounds_do_not_move_apart_for_a_slow_machine() {
        let mut rounds = Rounds { waited: Some(0.01), ..Rounds::new() };
        rounds.run(0..1000, |_| 400.0);
        assert_eq!(rounds.changes, []);
        let mut unknown = Rounds { waited: None, ..Rounds::new() };
        unknown.run(0..1000, |_| 400.0);
        assert_eq!(unknown.changes.len(), 1);
    }

    #[test]
    fn nonsense_is_not_heard_and_joiners_are_not_waited_for() {
        let mut rounds = Rounds::new();
        rounds.run(0..200, |round| [f32::NAN, -1.0, f32::INFINITY][round as usize % 3]);
        assert_eq!((rounds.changes.len(), rounds.window.reports()), (0, 0));
        // Of the three members, the third never reports anything.
        rounds.run(200..400, |round| if round % 2 == 0 { f32::NAN } else { 400.0 });
        assert_eq!(rounds.changes, [(216, Pace { overlap: 17, groups: 1, every: 17 })]);
        rounds.window.push(WorkerId(1), measured(1.0));
        rounds.window.forget(WorkerId(1));
        assert_eq!(rounds.window.medians(&[WorkerId(1)]), []);
    }

    /// As `auto` has it: 4 s a bit leave 0.44 bits within two steps.
    #[test]
    fn a_link_that_recovers_has_the_configured_pace_again() {
        let configured = Pace { overlap: 2, groups: 2, every: 4 };
        let mut rounds = Rounds { configured, pace: configured, ..Rounds::new() };
        rounds.run(0..400, |round| if round < 100 { 4.0 } else { 0.5 });
        assert_eq!(rounds.changes, [(32, Pace { overlap: 2, groups: 3, every: 2 }), (152, configured)]);
        rounds.run(400..4000, |round| if round / 100 % 2 == 0 { 2.0 } else { 2.4 });
        assert_eq!(rounds.changes.len(), 3, "at the border it changes once: {:?}", rounds.changes);
    }

    #[test]
    fn changes_are_as_far_apart_as_checkpoints_need() {
        let of = |every_rounds| Hysteresis::new(every_rounds, 2).apart;
        // Three times every_rounds in fifteen changes.
        assert_eq!([of(0), of(20), of(1000), of(u64::MAX)], [32, 32, 200, u64::MAX.div_ceil(15)]);
    }
}
