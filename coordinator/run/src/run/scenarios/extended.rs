//! Runs that are over, and go on.

use longhaul_common::config::RunConfig;
use longhaul_common::id::RunId;
use longhaul_common::learning_rate::LearningRate;

use super::super::Record;
use super::handovers::of_whole_model;
use super::planning::welcomed;
use super::*;

/// Two workers have done all `steps`, rounds of two.
fn over(steps: u64, change: impl Fn(&mut RunConfig)) -> (RunConfig, RunState) {
    let mut config = config();
    config.run.steps = steps;
    change(&mut config);
    let mut story = Story::of(config).trained();
    let rounds = story.run.state().rounds.schedule.rounds();
    for worker in [1, 2] {
        story.say(worker, finished(rounds, None));
    }
    assert_eq!(story.run.state().phase, Phase::Finished);
    (story.run.core.config.clone(), story.run.state().clone())
}

/// Goes on to so many steps with the checkpoints that both have written at the end.
fn extended((mut config, mut state): (RunConfig, RunState), steps: u64) -> (Story, GenerationStart) {
    let rounds = state.rounds.ledger.through().0;
    config.run.steps = steps;
    state.extend(steps).unwrap();
    let mut story = Story::of_state(config, state);
    for worker in [1, 2] {
        story.join(worker, &[of_whole_model(rounds)]);
        let told = welcomed(&story.told(worker));
        let [config] = told.as_slice() else { panic!("{told:?}") };
        let (configured, schedule) = (config.round_schedule(), story.run.state().rounds.schedule);
        assert_eq!(
            (configured.warmup_rounds, configured.steps),
            (schedule.warmup_rounds, schedule.steps),
            "as the worker will find"
        );
    }
    for worker in [1, 2] {
        assert_eq!(
            story.told(worker).last(),
            Some(&ToWorker::Prepare(Start::Checkpoint(of_whole_model(rounds))))
        );
    }
    for worker in [1, 2] {
        story.say(worker, ready(rounds, 40));
    }
    let start = story.begun(1);
    assert!(start.schedule.is_consistent());
    (story, start)
}

#[test]
fn a_run_that_is_over_goes_on_from_its_end_to_more_steps() {
    let (mut story, start) = extended(over(20, |_| ()), 25);
    assert_eq!((start.first_round, start.until), (Round(10), Round(13)));
    assert_eq!(start.schedule.steps_of(Round(10)), 20..22);
    for worker in [1, 2] {
        story.say(worker, finished(13, None));
    }
    let state = story.run.state();
    assert_eq!((state.phase, state.rounds.ledger.counted().len()), (Phase::Finished, 25 * 4));
}

/// A reader that draws an extended run's curves from its store does not know the original number of steps.
#[test]
fn each_round_is_written_down_with_the_learning_rate_that_was_in_force() {
    fn written(story: &mut Story, round: u64) -> Vec<f64> {
        [1, 2].into_iter().for_each(|worker| story.applied(worker, round, 40));
        let rate = |command: &Command| match command {
            Command::Persist(Record::Round(summary)) => Some(summary.learning_rate),
            _ => None,
        };
        story.commands.iter().filter_map(rate).collect()
    }
    let unwarmed = |config: &mut RunConfig| config.train.warmup_steps = 0;
    let mut config = config();
    unwarmed(&mut config);
    let of = |steps, step| LearningRate::new(&config.train, steps).at(step);
    assert_eq!(written(&mut Story::of(config.clone()).trained(), 0), [of(20, 1)]);
    let (mut story, _) = extended(over(20, unwarmed), 30);
    assert_eq!(written(&mut story, 10), [of(30, 21)]);
    assert_ne!(of(20, 1), of(30, 1));
}

#[test]
fn a_last_round_that_was_shortened_stays_as_it_was() {
    let (mut story, start) = extended(over(19, |_| ()), 24);
    assert_eq!((start.first_round, start.until), (Round(10), Round(13)));
    let spans: Vec<_> = (9..13).map(|round| start.schedule.steps_of(Round(round))).collect();
    assert_eq!(spans, [18..19, 19..21, 21..23, 23..24]);
    for worker in [1, 2] {
        story.say(worker, finished(13, None));
    }
    assert_eq!(story.run.state().rounds.ledger.counted().len(), 24 * 4);
}

#[test]
fn the_warmup_is_the_one_that_it_had() {
    let with_warmup = |config: &mut RunConfig| config.sync.warmup_share = 0.5;
    let (config, state) = over(20, with_warmup);
    assert_eq!(state.rounds.schedule.warmup_rounds, 5);
    let (_, start) = extended((config, state), 60);
    assert_eq!((start.first_round, start.until), (Round(10), Round(30)));
}

/// It is no share of the new steps; a decay is one, and begins later.
#[test]
fn the_learning_rate_has_the_warmup_that_it_had_and_decays_at_the_new_end() {
    let shares = |config: &mut RunConfig| {
        config.train.schedule = longhaul_common::config::LearningRateSchedule::Wsd;
        (config.train.warmup_share, config.train.decay_share) = (Some(0.25), Some(0.1));
    };
    let (story, _) = extended(over(20, shares), 60);
    let config = RunConfig::parse(&story.run.core.config_toml).unwrap();
    assert_eq!((config.train.warmup_steps, config.train.warmup_share), (5, None));
    let peak = config.train.learning_rate;
    let rate = LearningRate::new(&config.train, config.run.steps);
    assert_eq!([4, 5, 20, 53].map(|step| rate.at(step)), [peak; 4]);
    assert!(rate.at(55) < peak && (rate.at(60) - 0.1 * peak).abs() < 1e-12);
}

#[test]
fn a_run_that_was_stopped_goes_on_to_its_own_end() {
    let mut story = Story::training();
    story.handle(Event::Drain);
    for worker in [1, 2] {
        story.settled(worker, 2, 2, 2);
    }
    for worker in [1, 2] {
        story.say(worker, finished(3, None));
    }
    let (config, state) = (story.run.core.config.clone(), story.run.state().clone());
    assert_eq!((state.phase, state.requests.drain), (Phase::Finished, true));
    let (story, start) = extended((config, state), 20);
    assert_eq!((start.first_round, start.until), (Round(3), Round(10)));
    assert!(!story.run.state().requests.drain);
}

#[test]
fn nothing_is_left_to_do_where_all_steps_are_done() {
    let (_, mut state) = over(20, |_| ());
    for (steps, reason) in [(20, "its 20 steps are done"), (7, "it is one of 20 steps, and run.steps is 7")] {
        let before = state.clone();
        let refused = state.extend(steps).unwrap_err();
        assert_eq!((refused.as_str(), &state), (reason, &before));
    }
}

/// The members at the end were dismissed, and are started by hand.
#[test]
fn who_comes_first_waits_for_those_who_have_the_end() {
    for checkpoints in [vec![], vec![of_whole_model(4)]] {
        let mut story = Story::training();
        for worker in [1, 2] {
            story.say(worker, moves::written(10, 0));
            story.say(worker, finished(10, None));
        }
        let (mut config, mut state) = (story.run.core.config.clone(), story.run.state().clone());
        config.run.steps = 30;
        state.extend(30).unwrap();
        let mut story = Story::of_state(config, state);
        story.join(3, &checkpoints);
        story.join(4, &[]);
        story.pass_to(Duration::from_secs(100));
        assert!(story.told(3).iter().all(|message| !matches!(message, ToWorker::Prepare(_))));
        let problems = story.run.status(0).problems;
        assert!(problems.iter().any(|line| line.contains("waits for w1, w2")), "{problems:?}");
        for worker in [1, 2] {
            story.join(worker, &[of_whole_model(10)]);
        }
        assert_eq!(story.told(1).last(), Some(&ToWorker::Prepare(Start::Checkpoint(of_whole_model(10)))));
    }
}

#[test]
fn who_does_not_come_back_takes_with_it_what_it_had_yet_to_send() {
    let lost_with = |workers: [u32; 2]| {
        let (mut config, mut state) = over(20, |_| ());
        config.run.steps = 30;
        state.extend(30).unwrap();
        state.end.left_with = None;
        let before = state.residuals.lost;
        let mut story = Story::of_state(config, state);
        // The third has a copy, as where the folder of another worker's checkpoints was copied.
        let offers = |worker: u32| [CheckpointOffer { private: worker < 3, ..of_whole_model(10) }];
        workers.iter().for_each(|&worker| story.join(worker, &offers(worker)));
        workers.iter().for_each(|&worker| story.say(worker, ready(10, 40)));
        story.begun(workers[0]);
        let lost = story.run.state().residuals.lost;
        let events = story.run.status(0).events;
        let is_told = events.iter().any(|event| event.text.contains("unsent changes of w2 are lost"));
        (lost.contributions - before.contributions, lost.results - before.results, is_told)
    };
    assert_eq!(lost_with([1, 2]), (0, 0, false));
    // One fragment: the second worker uploads its site's contribution, and owns the result or not.
    assert_eq!(lost_with([1, 3]), (1, 0, true));
}

/// It joins while another worker's state is handed out, and heals with that: its own checkpoint is never read. Then a worker leaves, and the run goes on from the memory
/// of the ready ones.
#[test]
fn who_healed_in_a_preparation_that_broke_off_has_not_brought_back_what_it_had_yet_to_send() {
    let mut story = Story::training();
    for round in 0..10 {
        // The second one's contribution to the last round waits in its residual.
        let sites = if round < 9 { vec![SiteId(0), SiteId(1)] } else { vec![SiteId(0)] };
        for worker in [1, 2] {
            let report = RoundReport { sites: sites.clone(), ..report(round, 40) };
            story.say(worker, ToCoordinator::RoundApplied(report));
        }
    }
    for worker in [1, 2] {
        story.say(worker, finished(10, None));
    }
    let (mut config, mut state) = (story.run.core.config.clone(), story.run.state().clone());
    config.run.steps = 30;
    state.extend(30).unwrap();
    let before = state.residuals.lost;
    let mut story = Story::of_state(config, state);
    story.join(1, &[of_whole_model(10)]);
    story.join(3, &[]);
    assert_eq!(story.told(1).last(), Some(&ToWorker::Prepare(Start::Checkpoint(of_whole_model(10)))));
    story.join(2, &[of_whole_model(10)]);
    story.say(1, ready(10, 40));
    assert!(matches!(story.told(2).as_slice(), [ToWorker::Heal { .. }]), "{:?}", story.told(2));
    story.say(2, ready(10, 40));
    story.handle(Event::Closed { connection: ConnectionId(3) });

    let start = story.begun(2);
    let lost = story.run.state().residuals.lost;
    assert_eq!((lost.contributions - before.contributions, lost.results - before.results), (1, 0));
    let events = story.run.status(0).events;
    let is_told = |text: &str| events.iter().any(|event| event.text.contains(text));
    assert!(is_told("goes on from the state before r10 in the memory of"), "{events:#?}");
    assert!(is_told("unsent changes of w2 are lost"), "{events:#?}");
    // Two samples in each of two steps, without a holder.
    let redo = &start.assignments.last().unwrap().feed.backlog;
    assert_eq!(redo.iter().map(|range| range.end - range.start).sum::<u64>(), 4);
}

/// Workers read the configuration of their welcome, and check that rounds follow it.
#[test]
fn warmup_and_early_part_stay_as_long_as_they_were_whatever_the_preset() {
    for preset in [
        "auto",
        "dense",
        "dgc",
        "powersgd",
        "onebit-adam",
        "demo",
        "diloco",
        "streaming-diloco",
        "cocktail",
        "sparse-local",
    ] {
        let read = |steps: u64| parsed(&run_toml().steps(steps).without("sync").set("sync.preset", preset));
        let mut state = RunState::new(RunId([1; 16]), &read(4000));
        let rounds = state.rounds.schedule.rounds();
        let mut before = state.rounds.schedule;
        for steps in [8000, 50_000] {
            state.rounds.ledger.count_through(Round(before.rounds()));
            state.extend(steps).unwrap();
            before = state.rounds.schedule;
            let run = Run::new(read(steps), state.clone(), Duration::ZERO).unwrap();
            let told = RunConfig::parse(&run.core.config_toml).unwrap();
            let configured = told.round_schedule();
            assert_eq!(
                (configured.warmup_rounds, configured.steps),
                (before.warmup_rounds, steps),
                "{preset}"
            );
            let early = |config: &RunConfig| config.sync.early_share * config.run.steps as f64;
            if told.sync.adapt {
                assert!((early(&told) - early(&read(4000))).abs() < 1e-6, "{preset}");
            }
        }
        assert!(before.rounds() > rounds && before.warmup_rounds < rounds, "{preset}");
    }
}
