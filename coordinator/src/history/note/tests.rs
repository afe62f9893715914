use std::path::{Path, PathBuf};

use longhaul_common::config::RunConfig;
use longhaul_common::id::RunId;
use longhaul_proto::control::message::{Encoding, TimeSpent, Traffic};

use super::*;
use crate::history::{Folder, Last, Rest};
use longhaul_run::{Run, RunState};

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
    let state = RunState::new(RunId([7; 16]), &config);
    Run::new(config, state, std::time::Duration::ZERO).unwrap().status(0)
}

fn ended() -> Status {
    let mut status = status();
    status.run.phase = Phase::Finished;
    status
}

fn with_way(from: &str, to: &str) -> Status {
    let link = LinkStatus {
        from: from.to_owned(),
        to: to.to_owned(),
        bytes_per_s: 1e6,
        round_trip_s: 0.05,
        seen_s: None,
    };
    let mut status = status();
    status.cluster.links = vec![link];
    status
}

fn heartbeat(tokens: u64) -> Heartbeat {
    let time = TimeSpent { compute_s: tokens as f64, ..TimeSpent::default() };
    let traffic = Traffic { wan_sent_bytes: 2 * tokens, ..Traffic::default() };
    Heartbeat { tokens, time, traffic, ..Heartbeat::default() }
}

fn round(number: u64) -> RoundPoint {
    RoundPoint {
        at_ms: Some(number),
        round: number,
        step: number + 1,
        every: 1,
        samples: 1,
        learning_rate: 0.1,
        loss: Some(number as f32),
        gradient_norm: Some(0.5),
        validation_loss: None,
        validation_accuracy: None,
        residual_ratio: None,
        scores: BTreeMap::new(),
    }
}

/// Two workers of two sites say every second how much they have done.
fn watched(history: &mut History, seconds: std::ops::Range<u64>, folder: &mut Option<Folder>) {
    let status = with_way("north", "south");
    for second in seconds {
        let beats = [heartbeat(second), heartbeat(10 * second)];
        let heard = [(WorkerId(0), "north", &beats[0]), (WorkerId(1), "south", &beats[1])];
        history.note(1000 * second, &status, heard.into_iter());
        history.note_round(round(second));
        if let Some(folder) = folder {
            written(folder, history);
        }
    }
}

fn written(folder: &mut Folder, history: &History) {
    match history.since(folder.mark()) {
        Some(news) => folder.append(news).unwrap(),
        None => folder.write_anew(history).unwrap(),
    }
}

fn last_of(history: &History) -> Last {
    let rest = Rest {
        activity: history.activity().clone(),
        events: Vec::new(),
        recent: history.recent().iter().cloned().collect(),
        open: history.open(),
    };
    Last { at_ms: 0, status: status().into(), rest }
}

/// The history as read at this time.
fn read_at(state_dir: &Path, now_ms: u64) -> History {
    Folder::read(state_dir, &meta().run, now_ms).unwrap().unwrap().history
}

fn read_again(state_dir: &Path) -> History {
    read_at(state_dir, u64::MAX)
}

fn file(state_dir: &Path, name: &str) -> PathBuf {
    state_dir.join("history").join(meta().run).join(name)
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
fn a_site_sends_as_whoever_sends_for_it_says_and_nothing_that_cannot_be() {
    let mut history = History::new(meta());
    let says = |density| {
        let encoding = Some(Encoding { density, value_bits: 4.0 });
        Heartbeat { encoding, ..heartbeat(1) }
    };
    let (silent, sends, odd) = (heartbeat(1), says(0.25), says(7.0));
    let said =
        [(WorkerId(0), "north", &silent), (WorkerId(1), "north", &sends), (WorkerId(2), "south", &odd)];
    history.note(10_000, &status(), said.into_iter());
    assert_eq!(history.recent().back().unwrap().encodings, [Some([0.25, 4.0]), None]);
    history.note(20_000, &status(), [(WorkerId(0), "north", &silent)].into_iter());
    assert_eq!(history.recent().back().unwrap().encodings, [None, None], "who sent is gone");
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
    let lines = std::fs::read_to_string(file(folder.path(), "points.jsonl"));
    assert!(lines.unwrap().lines().count() < SAMPLES_MAX + ROUNDS_MAX + 10);
    let again = read_again(folder.path());
    assert_eq!((again.samples().kept(), again.rounds().kept()), (samples, rounds));
    assert_eq!(again.samples().per_point(), history.samples().per_point());
    assert_eq!(again.rounds().per_point(), history.rounds().per_point());
}

#[test]
fn the_newest_points_are_told_and_kept_however_many_one_stands_for() {
    let folder = tempfile::tempdir().unwrap();
    let mut history = History::new(meta());
    let mut files = Some(Folder::begin(folder.path(), &history).unwrap());
    watched(&mut history, 0..9_000, &mut files);
    let mark = history.mark();
    watched(&mut history, 9_000..9_003, &mut files);
    let (sample, round) = (history.samples(), history.rounds());
    assert!(
        sample.per_point() > 2 && sample.open().is_some() && round.per_point() > 2 && round.open().is_some()
    );
    let news = history.since(&mark).unwrap();
    assert_eq!(news.recent.last().unwrap().at_ms, 9_002_000, "it is not kept yet");
    assert_eq!(news.open_round.unwrap().round, 9_002);
    // The next process has them as well, if this one wrote its last values.
    files.as_ref().unwrap().put_last(&last_of(&history)).unwrap();
    let again = read_again(folder.path());
    assert_eq!((again.open(), again.recent()), (history.open(), history.recent()));
    assert!(again.recent().len() > 10 && again.activity() == history.activity());
}

#[test]
fn the_end_of_a_run_is_kept_with_its_last_validation() {
    let folder = tempfile::tempdir().unwrap();
    let mut history = History::new(meta());
    let mut files = Folder::begin(folder.path(), &history).unwrap();
    watched(&mut history, 0..5_003, &mut None);
    assert!(history.open().sample.is_some() && history.open().round.is_some());
    let mut ended = ended();
    (ended.training.validation_loss, ended.training.validation_accuracy) = (Some(1.25), Some(0.5));
    ended.progress.step = 77;
    history.note(5_002_500, &ended, std::iter::empty());
    history.note(5_010_000, &ended, std::iter::empty());
    written(&mut files, &history);
    let again = read_again(folder.path());
    let (sample, round) = (again.samples().kept().last().unwrap(), again.rounds().kept().last().unwrap());
    assert_eq!((sample.at_ms, sample.step, round.round), (5_002_500, 77, 5_002));
    assert_eq!((round.validation_loss, round.validation_accuracy), (Some(1.25), Some(0.5)));
}

#[test]
fn what_was_done_between_the_last_interval_and_the_end_is_told_once() {
    let mut history = History::new(meta());
    watched(&mut history, 0..6, &mut None);
    let ended = ended();
    // All have left by then.
    history.note(5_500, &ended, std::iter::empty());
    history.note(6_500, &ended, std::iter::empty());
    let told = history.activity().intervals().iter();
    let told: Vec<_> = told.map(|interval| (interval.at_ms, interval.workers["w0"].compute_ms)).collect();
    assert_eq!(told, [(0, 0), (3_000, 3_000), (5_500, 2_000)]);
}

#[test]
fn where_the_clock_was_set_back_samples_are_taken_at_once_and_sums_go_on() {
    let folder = tempfile::tempdir().unwrap();
    let mut history = History::new(meta());
    let mut files = Some(Folder::begin(folder.path(), &history).unwrap());
    watched(&mut history, 0..100, &mut files);
    files.unwrap().put_last(&last_of(&history)).unwrap();
    let mut again = read_at(folder.path(), 50_000);
    assert!(again.rounds().kept().iter().all(|round| round.at_ms <= Some(50_000)));
    assert_eq!(again.rounds().kept().len(), 100);
    watched(&mut again, 51..60, &mut None);
    let (times, last): (Vec<u64>, _) = (
        again.samples().kept().iter().map(|sample| sample.at_ms).collect(),
        again.samples().newest().unwrap(),
    );
    assert!(times.is_sorted() && last.at_ms == 58_000, "{times:?}");
    assert_eq!(last.run.tokens, 98 * 11 + 7 * 11, "none of what was done is forgotten");
    assert_eq!(again.recent().back().unwrap().at_ms, 58_000);
    assert_eq!(again.activity().intervals().back().unwrap().at_ms, 57_000);
}

#[test]
fn a_history_goes_on_where_it_was_left_and_a_line_that_was_cut_short_is_left_out() {
    let folder = tempfile::tempdir().unwrap();
    let mut history = History::new(meta());
    let mut files = Some(Folder::begin(folder.path(), &history).unwrap());
    watched(&mut history, 0..20, &mut files);
    drop(files);
    let path = file(folder.path(), "points.jsonl");
    let whole = std::fs::read(&path).unwrap();
    std::fs::write(&path, &whole[..whole.len() - 5]).unwrap();
    let found = Folder::read(folder.path(), &meta().run, u64::MAX).unwrap().unwrap();
    assert!(found.damaged.is_empty(), "that is what a crash does");
    let mut again = found.history;
    assert_eq!(again.rounds().kept().len(), 19);
    let before = again.samples().kept().last().unwrap().run.tokens;
    watched(&mut again, 20..31, &mut None);
    let after = again.samples().kept().last().unwrap();
    // Work before its first heartbeat is not counted.
    assert_eq!((after.run.tokens - before, again.sites().len()), (110, 2));
}

#[test]
fn a_line_that_is_damaged_moves_no_site_to_another_ones_place_and_the_file_is_told_of() {
    let folder = tempfile::tempdir().unwrap();
    let mut history = History::new(meta());
    let mut files = Some(Folder::begin(folder.path(), &history).unwrap());
    watched(&mut history, 0..20, &mut files);
    let path = file(folder.path(), "points.jsonl");
    let whole = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, whole.replacen("[0,\"north\"]", "[0,\"no\u{0}th\"]", 1)).unwrap();
    std::fs::write(file(folder.path(), "last.json"), "{\"at_ms\":").unwrap();
    let found = Folder::read(folder.path(), &meta().run, u64::MAX).unwrap().unwrap();
    assert_eq!(found.history.sites()[1], "south");
    assert_eq!(found.history.samples().kept(), history.samples().kept());
    assert_eq!(found.damaged, [path, file(folder.path(), "last.json")]);
    assert!(Folder::read_last(folder.path(), &meta().run).is_err());
}

#[test]
fn a_run_that_goes_back_counts_its_rounds_anew() {
    let mut history = History::new(meta());
    watched(&mut history, 0..8, &mut None);
    let mark = history.mark();
    history.note_round(RoundPoint { loss: Some(0.5), ..round(5) });
    assert!(history.since(&mark).is_none() && history.since(&history.mark()).is_some());
    let losses: Vec<f32> = history.rounds().kept().iter().filter_map(|round| round.loss).collect();
    assert_eq!(losses, [0.0, 1.0, 2.0, 3.0, 4.0, 0.5]);
}

#[test]
fn another_format_is_refused_by_name_and_not_shown_among_the_runs() {
    let folder = tempfile::tempdir().unwrap();
    Folder::begin(folder.path(), &History::new(Meta { format: 9, ..meta() })).unwrap();
    let refused = Folder::read(folder.path(), &meta().run, u64::MAX).unwrap_err().to_string();
    assert!(refused.contains("its format is 9") && refused.contains("points.jsonl"), "{refused}");
    assert_eq!(Folder::runs(folder.path()).unwrap(), []);
    Folder::begin(folder.path(), &History::new(meta())).unwrap();
    assert_eq!(Folder::runs(folder.path()).unwrap(), [meta()]);
}

/// As releases before the norm of gradients wrote it.
#[test]
fn a_history_without_norms_of_gradients_is_read_and_shown() {
    let folder = tempfile::tempdir().unwrap();
    let mut history = History::new(meta());
    let mut files = Folder::begin(folder.path(), &history).unwrap();
    watched(&mut history, 0..8, &mut None);
    files.write_anew(&history).unwrap();
    files.put_last(&last_of(&history)).unwrap();
    for (name, key) in [("points.jsonl", "\"gradient_norm\":0.5,"), ("last.json", "\"gradient_norm\":null,")]
    {
        let path = file(folder.path(), name);
        let whole = std::fs::read_to_string(&path).unwrap();
        assert!(whole.contains(key), "{whole}");
        std::fs::write(&path, whole.replace(key, "")).unwrap();
    }
    let found = Folder::read(folder.path(), &meta().run, u64::MAX).unwrap().unwrap();
    assert!(found.damaged.is_empty(), "{:?}", found.damaged);
    let rounds = found.history.rounds().kept();
    assert_eq!(
        rounds.iter().map(|round| round.loss).collect::<Vec<_>>(),
        (0..8).map(|n| Some(n as f32)).collect::<Vec<_>>()
    );
    assert!(rounds.iter().all(|round| round.gradient_norm.is_none()));
    let last = Folder::read_last(folder.path(), &meta().run).unwrap().unwrap();
    assert_eq!(
        (last.status.training.gradient_norm, last.status.progress.steps),
        (None, status().progress.steps)
    );
}
