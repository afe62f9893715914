//! Holders of the pretrained model, and their announcement.

use longhaul_proto::control::message::{MODEL_HOLDERS_MAX, ModelAt, ModelHolders, ToCoordinator, ToWorker};

use crate::run::{ConnectionId, Event, Severity};
use crate::testing::{Story, config};

const MODEL: ModelAt = ModelAt::Here([7; 32]);

/// The last announcement to a worker, if any: whether the model is known, and the holders.
fn holders(story: &Story, worker: u32) -> Option<(Option<u8>, Vec<u32>)> {
    story.told(worker).into_iter().rev().find_map(|message| match message {
        ToWorker::ModelHolders(ModelHolders { model, holders }) => {
            Some((model.map(|hash| hash[0]), holders.iter().map(|member| member.worker.0).collect()))
        }
        _ => None,
    })
}

fn say(story: &mut Story, worker: u32, at: ModelAt) {
    story.say(worker, ToCoordinator::Model(at));
}

/// A run whose workers have joined from these sites, numbered from 1.
fn run_of(sites: &[&str]) -> Story {
    let mut config = config();
    (config.run.workers, config.train.batch) = (sites.len() as u32, 2 * sites.len() as u32);
    let mut story = Story::of(config);
    for (worker, site) in (1..).zip(sites) {
        story.join_from(worker, site);
    }
    story
}

#[test]
fn one_worker_of_each_site_fetches_from_afar_and_the_others_from_it() {
    let mut story = run_of(&["a", "b", "b", "b", "c"]);
    for worker in [3, 2, 4, 5] {
        say(&mut story, worker, ModelAt::Nowhere);
        assert_eq!(holders(&story, worker), Some((None, vec![])));
    }
    say(&mut story, 1, MODEL);
    assert_eq!(holders(&story, 1), Some((Some(7), vec![1])));
    // The first that was chosen stays it, although another has a lower number.
    assert_eq!(holders(&story, 3), Some((Some(7), vec![1])));
    assert_eq!(holders(&story, 2), Some((Some(7), vec![])));
    assert_eq!(holders(&story, 4), Some((Some(7), vec![])));
    assert_eq!(holders(&story, 5), Some((Some(7), vec![1])));
    // It has fetched all.
    say(&mut story, 3, MODEL);
    assert_eq!(holders(&story, 2), Some((Some(7), vec![3])));
    assert_eq!(holders(&story, 4), Some((Some(7), vec![3])));
    // The carrier of another site sees a second holder.
    assert_eq!(holders(&story, 5), Some((Some(7), vec![1, 3])));
}

#[test]
fn the_next_worker_of_a_site_fetches_if_the_first_leaves() {
    let mut story = run_of(&["a", "b", "b"]);
    say(&mut story, 1, MODEL);
    say(&mut story, 2, ModelAt::Nowhere);
    say(&mut story, 3, ModelAt::Nowhere);
    assert_eq!(holders(&story, 3), Some((Some(7), vec![])));
    story.handle(Event::Closed { connection: ConnectionId(2) });
    assert_eq!(holders(&story, 3), Some((Some(7), vec![1])));
    // A repeated report, perhaps of another session, is answered again.
    say(&mut story, 3, ModelAt::Nowhere);
    assert_eq!(holders(&story, 3), Some((Some(7), vec![1])));
    // The last holder leaves.
    story.handle(Event::Closed { connection: ConnectionId(1) });
    assert_eq!(holders(&story, 3), Some((None, vec![])));
}

#[test]
fn the_first_model_is_the_runs_and_another_is_told_and_replaced() {
    let mut story = run_of(&["a", "a", "a"]);
    let other = ModelAt::Here([9; 32]);
    say(&mut story, 2, MODEL);
    for worker in [1, 3] {
        say(&mut story, worker, other);
        // More workers come to have the other one, and the first may be in training.
        assert_eq!(holders(&story, worker), Some((Some(7), vec![2])));
        let events = story.run.status(0).events;
        assert!(events.iter().any(|event| {
            event.worker == Some(format!("w{worker}"))
                && event.text.contains("has another model in that folder")
        }));
    }
    story.handle(Event::Closed { connection: ConnectionId(2) });
    assert_eq!(holders(&story, 3), Some((Some(9), vec![1, 3])));
}

#[test]
fn a_run_whose_workers_all_lack_the_model_says_so_once() {
    let mut story = run_of(&["a", "b"]);
    let told = |story: &Story| {
        let events = story.run.status(0).events;
        let texts = events.iter().filter(|event| event.severity == Severity::Error).map(|event| &event.text);
        texts.filter(|text| text.contains("none of the 2 workers has the run's model")).count()
    };
    say(&mut story, 1, ModelAt::Nowhere);
    assert_eq!(told(&story), 0);
    say(&mut story, 2, ModelAt::Nowhere);
    assert_eq!(told(&story), 1);
    assert!(story.run.problems().iter().any(|problem| problem.starts_with("w1, w2 without the run's model")));
    say(&mut story, 2, MODEL);
    assert!(!story.run.problems().iter().any(|problem| problem.contains("without the run's model")));
}

#[test]
fn a_list_of_holders_is_bounded() {
    let sites = vec!["a"; MODEL_HOLDERS_MAX + 4];
    let mut story = run_of(&sites);
    for worker in 1..=sites.len() as u32 {
        say(&mut story, worker, MODEL);
    }
    assert_eq!(holders(&story, sites.len() as u32).unwrap().1.len(), MODEL_HOLDERS_MAX);
}
