//! Runs that are over, and go on.

use longhaul_common::config::RunConfig;

use super::handovers::of_whole_model;
use super::planning::welcomed;
use super::*;

/// Two workers have done all `steps`, rounds of two.
fn over(steps: u64, change: impl Fn(&mut RunConfig)) -> (RunConfig, State) {
    let mut config = config();
    config.run.steps = steps;
    change(&mut config);
    let mut story = Story::of(config).trained();
    let rounds = story.run.state().schedule.rounds();
    for worker in [1, 2] {
        story.say(worker, finished(rounds, None));
    }
    assert_eq!(story.run.state().phase, Phase::Finished);
    (story.run.config.clone(), story.run.state().clone())
}

/// Goes on to so many steps with the checkpoints that both have written at the end.
fn extended((mut config, mut state): (RunConfig, State), steps: u64) -> (Story, GenerationStart) {
    let rounds = state.ledger.through().0;
    config.run.steps = steps;
    state.extend(steps).unwrap();
    let mut story = Story::of_state(config, state);
    for worker in [1, 2] {
        story.join(worker, &[of_whole_model(rounds)]);
        let told = welcomed(&story.told(worker));
        let [config] = told.as_slice() else { panic!("{told:?}") };
        let (configured, schedule) = (config.round_schedule(), story.run.state().schedule);
        assert_eq!(
            (configured.opening_rounds, configured.steps),
            (schedule.opening_rounds, schedule.steps),
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
    assert_eq!((state.phase, state.ledger.counted().len()), (Phase::Finished, 25 * 4));
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
    assert_eq!(story.run.state().ledger.counted().len(), 24 * 4);
}

#[test]
fn the_opening_is_the_one_that_it_had() {
    let with_opening = |config: &mut RunConfig| config.sync.opening_share = 0.5;
    let (config, state) = over(20, with_opening);
    assert_eq!(state.schedule.opening_rounds, 5);
    let (_, start) = extended((config, state), 60);
    assert_eq!((start.first_round, start.until), (Round(10), Round(30)));
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
    let (config, state) = (story.run.config.clone(), story.run.state().clone());
    assert_eq!((state.phase, state.drain), (Phase::Finished, true));
    let (story, start) = extended((config, state), 20);
    assert_eq!((start.first_round, start.until), (Round(3), Round(10)));
    assert!(!story.run.state().drain);
}

#[test]
fn nothing_is_left_to_do_where_all_steps_are_done() {
    let (_, mut state) = over(20, |_| ());
    for steps in [20, 7] {
        let before = state.clone();
        let refused = state.extend(steps).unwrap_err();
        assert_eq!((refused, &state), (format!("its 20 steps are done, and run.steps is {steps}"), &before));
    }
}
