use std::path::Path;

use longhaul_common::config::RunConfig;
use longhaul_common::id::RunId;

use super::*;
use crate::history::Folder;
use crate::run::{Run, State};

fn meta() -> Meta {
    Meta {
        format: FORMAT,
        run: RunId([7; 16]).to_string(),
        name: "tested".to_owned(),
        begun_ms: 1000,
        images: false,
        steps: 100,
        batch: 8,
        about: "a model".to_owned(),
    }
}

fn status() -> Status {
    let config = RunConfig::parse(include_str!("../../../../examples/demo.toml")).unwrap();
    let state = State::new(RunId([7; 16]), &config);
    Run::new(config, state, std::time::Duration::ZERO).unwrap().status(0)
}

fn with_way(from: &str, to: &str) -> Status {
    let link = LinkStatus {
        from: from.to_owned(),
        to: to.to_owned(),
        bytes_per_s: 1e6,
        round_trip_s: 0.05,
        seen_s: None,
    };
    Status { links: vec![link], ..status() }
}

fn heartbeat(tokens: u64) -> Heartbeat {
    Heartbeat { tokens, compute_s: tokens as f64, wan_sent_bytes: 2 * tokens, ..Heartbeat::default() }
}

fn round(number: u64) -> RoundPoint {
    RoundPoint {
        at_ms: number,
        round: number,
        step: number + 1,
        every: 1,
        samples: 1,
        learning_rate: 0.1,
        loss: Some(number as f32),
        validation_loss: None,
        validation_accuracy: None,
        residual_ratio: None,
    }
}

/// Two workers of two sites say every second how much they have done.
fn watched(history: &mut History, seconds: std::ops::Range<u64>, folder: &mut Option<Folder>) {
    let status = with_way("north", "south");
    for second in seconds {
        let beats = [heartbeat(second), heartbeat(10 * second)];
        let heard = [(WorkerId(0), "north", &beats[0]), (WorkerId(1), "south", &beats[1])];
        let mut told = history.note(1000 * second, &status, heard.into_iter());
        told.extend(history.note_round(round(second)));
        if let Some(folder) = folder {
            folder.append(history, told).unwrap();
        }
    }
}

fn read_again(state_dir: &Path) -> History {
    Folder::read(state_dir, &meta().run).unwrap().unwrap()
}

#[test]
fn sums_are_those_of_all_and_of_each_site_and_go_on_over_a_process_that_counts_from_zero() {
    let mut history = History::new(meta());
    watched(&mut history, 0..11, &mut None);
    let last = history.samples().kept().last().unwrap();
    assert_eq!((last.run.tokens, last.sites[0].tokens, last.sites[1].tokens), (110, 10, 100));
    assert_eq!((last.run.wan_bytes, last.ways[0]), (220, [1e6, 0.05]));
    let again = heartbeat(3);
    history.note(20_000, &status(), [(WorkerId(0), "north", &again)].into_iter());
    let last = history.samples().kept().last().unwrap();
    assert_eq!((last.run.tokens, last.ways[0]), (113, [1e6, 0.05]));
    let activity = history.activity().intervals().back().unwrap();
    assert_eq!(activity.workers.keys().collect::<Vec<_>>(), ["w0"], "who is not here did nothing");
}

#[test]
fn however_long_a_run_its_history_is_bounded_in_memory_and_on_disk() {
    let folder = tempfile::tempdir().unwrap();
    let mut history = History::new(meta());
    let mut files = Some(Folder::begin(folder.path(), &history).unwrap());
    watched(&mut history, 0..10_000, &mut files);
    let (samples, rounds) = (history.samples().kept(), history.rounds().kept());
    assert!((SAMPLES_MAX / 2..SAMPLES_MAX).contains(&samples.len()), "{}", samples.len());
    assert!((ROUNDS_MAX / 2..ROUNDS_MAX).contains(&rounds.len()), "{}", rounds.len());
    assert!(samples.last().unwrap().run.tokens > 100_000 && history.activity().intervals().len() <= 240);
    let lines = std::fs::read_to_string(folder.path().join("history").join(meta().run).join("points.jsonl"));
    assert!(lines.unwrap().lines().count() < SAMPLES_MAX + ROUNDS_MAX + 10);
    let again = read_again(folder.path());
    assert_eq!((again.samples(), again.rounds().kept()), (&again.samples().clone(), rounds));
    assert_eq!(again.samples().kept(), samples);
    assert_eq!(again.samples().per_point(), history.samples().per_point());
}

#[test]
fn a_history_goes_on_where_it_was_left_and_a_line_that_was_cut_short_is_left_out() {
    let folder = tempfile::tempdir().unwrap();
    let mut history = History::new(meta());
    let mut files = Some(Folder::begin(folder.path(), &history).unwrap());
    watched(&mut history, 0..20, &mut files);
    drop(files);
    let path = folder.path().join("history").join(meta().run).join("points.jsonl");
    let whole = std::fs::read(&path).unwrap();
    std::fs::write(&path, &whole[..whole.len() - 5]).unwrap();
    let mut again = read_again(folder.path());
    assert_eq!(again.rounds().kept().len(), 19);
    let before = again.samples().kept().last().unwrap().run.tokens;
    watched(&mut again, 20..31, &mut None);
    let after = again.samples().kept().last().unwrap();
    // What was done until it was heard for the first time is not counted.
    assert_eq!((after.run.tokens - before, again.sites().len()), (110, 2));
}

#[test]
fn a_run_that_goes_back_counts_its_rounds_anew() {
    let mut history = History::new(meta());
    watched(&mut history, 0..8, &mut None);
    let mark = history.mark();
    let told = history.note_round(RoundPoint { loss: Some(0.5), ..round(5) });
    assert_eq!(told[0], Told::Anew);
    assert!(!history.goes_on_from(&mark) && history.goes_on_from(&history.mark()));
    let losses: Vec<f32> = history.rounds().kept().iter().filter_map(|round| round.loss).collect();
    assert_eq!(losses, [0.0, 1.0, 2.0, 3.0, 4.0, 0.5]);
}

#[test]
fn another_format_is_refused_by_name_and_not_shown_among_the_runs() {
    let folder = tempfile::tempdir().unwrap();
    Folder::begin(folder.path(), &History::new(Meta { format: 9, ..meta() })).unwrap();
    let refused = Folder::read(folder.path(), &meta().run).unwrap_err().to_string();
    assert!(refused.contains("its format is 9") && refused.contains("points.jsonl"), "{refused}");
    assert_eq!(Folder::runs(folder.path()).unwrap(), []);
    Folder::begin(folder.path(), &History::new(meta())).unwrap();
    assert_eq!(Folder::runs(folder.path()).unwrap(), [meta()]);
}
