//! The check of a generation's schedule against the configuration.

use longhaul_common::config::RunConfig;
use longhaul_common::schedule::{Changes, Pace, RoundSchedule};

/// Reports whether rounds are as configured, or further apart within the user's bounds. In an extended run, the round after its former end is a change, too.
#[must_use]
pub fn is_of_this_run(config: &RunConfig, schedule: &RoundSchedule) -> bool {
    let configured = config.round_schedule();
    let Pace { every, groups } = configured.last_pace();
    let follows_links = config.sync.adapt && !config.sync.source.is_gradient();
    let is_within = |pace: Pace| match follows_links {
        true => (every..=config.sync.every_max).contains(&pace.every) && (1..=groups).contains(&pace.groups),
        false => (pace.every, pace.groups) == (every, groups),
    };
    let paces = schedule.changes.kept().iter().map(|change| change.pace);
    let is_paced = is_within(Pace { every: schedule.every, groups: schedule.groups })
        && paces.into_iter().all(is_within);
    let same = RoundSchedule { every, groups, changes: Changes::NONE, ..*schedule };
    is_paced && same == configured && schedule.is_consistent()
}

#[cfg(test)]
mod tests {
    use longhaul_common::id::Round;
    use longhaul_run_toml::RunToml;

    use super::*;

    #[test]
    fn a_schedule_may_move_rounds_apart_and_nothing_else() {
        let config = |sync: &str| {
            let run = RunToml::new("r").workers(2).steps(900).batch(4).lines("sync", sync);
            RunConfig::parse(&run.to_string()).unwrap()
        };
        let auto = config("preset = \"auto\"\nevery = 1\ngroups = 5\nevery_max = 7");
        let own = auto.round_schedule();
        let later = |every, groups| own.changed_at(Round(300), Pace { every, groups });
        for good in [
            own,
            RoundSchedule { every: 7, groups: 1, ..own },
            RoundSchedule { every: 2, groups: 3, ..own },
            later(7, 1),
            later(2, 5).changed_at(Round(350), Pace { every: 1, groups: 3 }),
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

        // Its last round had four steps of seven; then it was extended.
        let fixed = config("preset = \"sparse-local\"\nevery = 7\nwarmup_share = 0");
        let mut longer = fixed.clone();
        longer.run.steps = 1000;
        let own = fixed.round_schedule();
        let extended = own.extended(Round(own.rounds()), 1000).unwrap();
        assert!(is_of_this_run(&longer, &extended) && extended != longer.round_schedule());
        assert!(!is_of_this_run(&fixed, &extended));
        let slower = extended.changed_at(Round(135), Pace { every: 8, groups: 1 });
        assert!(!is_of_this_run(&longer, &slower), "links are not followed");
    }
}
