//! The check of a generation's schedule against the configuration.

use std::ops::RangeInclusive;

use longhaul_common::config::{RunConfig, SyncConfig};
use longhaul_common::schedule::{Changes, Pace, RoundSchedule};

/// Reports whether rounds are as configured, or follow the links within the user's bounds: a fragment is exchanged no more rarely than in rounds `every_max` apart
/// or in turns as long as configured, and results are no earlier. In an extended run, the round after its former end is a change, too.
#[must_use]
pub fn is_of_this_run(config: &RunConfig, schedule: &RoundSchedule) -> bool {
    let configured = config.round_schedule();
    let fixed = configured.last_pace();
    let SyncConfig { adapt, source, every_max, .. } = &config.sync;
    let follows_links = *adapt && !source.is_gradient() && *every_max > fixed.every;
    let is_within = |pace: Pace| match follows_links {
        true => may_follow(fixed, config.closest_rounds()..=config.sync.every_max, pace),
        false => pace == fixed,
    };
    let paces = schedule.changes.kept().iter().map(|change| change.pace);
    let RoundSchedule { every, overlap, groups, .. } = *schedule;
    let is_paced = is_within(Pace { overlap, groups, every }) && paces.into_iter().all(is_within);
    let Pace { overlap, groups, every } = fixed;
    let same = RoundSchedule { every, overlap, groups, changes: Changes::NONE, ..*schedule };
    is_paced && same == configured && schedule.is_consistent()
}

/// Reports whether links may lead from the configured pace to this one.
fn may_follow(configured: Pace, every: RangeInclusive<u64>, pace: Pace) -> bool {
    every.contains(&pace.every)
        && (configured.overlap..=pace.every).contains(&pace.overlap)
        && (1..=configured.turns_as_often(pace.every).max(configured.groups)).contains(&pace.groups)
}

#[cfg(test)]
mod tests {
    use longhaul_common::id::Round;
    use longhaul_run_toml::RunToml;

    use super::*;

    fn pace(every: u64, groups: u32) -> Pace {
        Pace { overlap: every, groups, every }
    }

    #[test]
    fn a_schedule_may_have_another_pace_within_bounds_and_nothing_else() {
        let config = |sync: &str| {
            let run = RunToml::new("r").workers(2).steps(900).batch(4).lines("sync", sync);
            RunConfig::parse(&run.to_string()).unwrap()
        };
        let auto = config("preset = \"auto\"\nevery = 1\ngroups = 5\nevery_max = 7");
        let own = auto.round_schedule();
        let later = |every, groups| own.changed_at(Round(300), pace(every, groups));
        for good in [
            own,
            RoundSchedule { every: 7, groups: 1, ..own },
            RoundSchedule { every: 2, groups: 3, ..own },
            RoundSchedule { every: 2, overlap: 2, groups: 3, ..own },
            later(7, 1),
            later(2, 5).changed_at(Round(350), pace(1, 3)),
        ] {
            assert!(is_of_this_run(&auto, &good), "{good:?}");
        }
        for bad in [
            later(8, 1),
            later(2, 6),
            RoundSchedule { every: 2, ..later(7, 1) },
            RoundSchedule { every: 0, ..own },
            RoundSchedule { every: 8, ..own },
            RoundSchedule { groups: 0, ..own },
            RoundSchedule { groups: 6, ..own },
            RoundSchedule { warmup_rounds: 1, ..own },
            RoundSchedule { warmup_every: 0, ..own },
            RoundSchedule { exchanges: 2, ..own },
            RoundSchedule { steps: 1, ..own },
        ] {
            assert!(!is_of_this_run(&auto, &bad), "{bad:?}");
        }
        for gradients in ["preset = \"dense\"", "preset = \"dense\"\nadapt = true\noverlap = 1"] {
            let config = config(gradients);
            let own = config.round_schedule();
            assert!(is_of_this_run(&config, &own));
            assert!(!is_of_this_run(&config, &RoundSchedule { every: 2, ..own }), "each step is exchanged");
        }

        let usual = config("preset = \"auto\"");
        let own = usual.round_schedule();
        assert_eq!(own.last_pace(), Pace { overlap: 2, groups: 2, every: 4 });
        let paced = |every, overlap, groups| {
            is_of_this_run(&usual, &own.changed_at(Round(120), Pace { overlap, groups, every }))
        };
        assert!(paced(2, 2, 4) && paced(3, 3, 3) && paced(4, 3, 2) && paced(100, 100, 2));
        for (every, overlap, groups) in
            [(1, 1, 4), (2, 1, 4), (2, 3, 4), (2, 2, 5), (4, 1, 2), (101, 101, 1), (4, 2, 3)]
        {
            assert!(!paced(every, overlap, groups), "{every}, {overlap}, {groups}");
        }

        // Its last round had four steps of seven; then it was extended.
        let fixed = config("preset = \"sparse-local\"\nevery = 7\nwarmup_share = 0");
        let mut longer = fixed.clone();
        longer.run.steps = 1000;
        let own = fixed.round_schedule();
        let extended = own.extended(Round(own.rounds()), 1000).unwrap();
        assert!(is_of_this_run(&longer, &extended) && extended != longer.round_schedule());
        assert!(!is_of_this_run(&fixed, &extended));
        let slower = extended.changed_at(Round(135), pace(8, 1));
        assert!(!is_of_this_run(&longer, &slower), "links are not followed");
    }
}
