use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use longhaul_common::config::RunConfig;
use longhaul_common::id::{RunId, WorkerId};
use longhaul_proto::control::message::{Heartbeat, Join, RoundReport, TimeSpent, ToCoordinator};

use super::*;
use longhaul_run::testing::{self, joining, ready, report};
use longhaul_run::{Command, ConnectionId, Event, Phase, RunState};

/// A hundred rounds of the story's run.
fn config() -> RunConfig {
    let mut config = testing::config();
    config.run.steps = 200;
    config
}

/// A run that is recorded, event by event.
struct Recorded {
    run: Run,
    recorder: Recorder,
    now: Duration,
}

impl Recorded {
    fn start(folder: &Path, file_bytes_max: u64) -> Self {
        let state = RunState::new(RunId([7; 16]), &config());
        let run = Run::new(config(), state, Duration::ZERO).unwrap();
        let recorder = Recorder::with_file_bytes(folder, &run, 1000, file_bytes_max);
        Self { run, recorder, now: Duration::ZERO }
    }

    fn handle(&mut self, event: Event) -> Vec<Command> {
        self.now += Duration::from_millis(3);
        self.recorder.before(self.now, &event);
        let commands = self.run.handle(self.now, event);
        self.recorder.after(&self.run, &commands);
        commands
    }

    fn say(&mut self, worker: u32, message: ToCoordinator) -> Vec<Command> {
        self.handle(Event::Message { connection: ConnectionId(u64::from(worker)), message })
    }

    /// Time goes by, and the run is woken whenever it asks to be.
    fn pass(&mut self, ms: u64) {
        let to = self.now + Duration::from_millis(ms);
        while let Some(due) = self.run.next_timeout().filter(|due| *due <= to) {
            self.now = self.now.max(due);
            self.handle(Event::Timer);
        }
        self.now = self.now.max(to);
    }

    fn join(&mut self, worker: u32) {
        let connection = ConnectionId(u64::from(worker));
        let address = IpAddr::V4(Ipv4Addr::LOCALHOST);
        self.handle(Event::Opened { connection, worker: WorkerId(worker), address });
        let join =
            Join { device: "a test".to_owned(), ..joining(WorkerId(worker), &format!("site-{worker}")) };
        self.say(worker, ToCoordinator::Join(join));
    }

    fn beat(&mut self, worker: u32, tokens: u64) {
        let time = TimeSpent { compute_s: tokens as f64, ..TimeSpent::default() };
        let heartbeat = Heartbeat { tokens, time, ..Heartbeat::default() };
        self.say(worker, ToCoordinator::Heartbeat(heartbeat));
    }

    fn apply(&mut self, worker: u32, round: u64) {
        let report = RoundReport { loss: Some(2.5), ..report(round, round as u8) };
        self.say(worker, ToCoordinator::RoundApplied(report));
    }

    /// Two workers train, one of them is lost, and an operator has a hand in it.
    fn train(&mut self) {
        for worker in [1, 2] {
            self.join(worker);
        }
        for worker in [1, 2] {
            self.say(worker, ready(0, 7));
        }
        assert_eq!(self.run.state().phase, Phase::Training);
        for round in 0..20 {
            for worker in [1, 2] {
                (0..9).for_each(|beat| self.beat(worker, 100 * round + beat));
                self.apply(worker, round);
            }
        }
        self.handle(Event::Kick { worker: WorkerId(2) });
        self.handle(Event::Pause);
        self.handle(Event::Timer);
        self.recorder.flush();
    }
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> =
        fs::read_dir(folder.join(FOLDER)).unwrap().map(|file| file.unwrap().path()).collect();
    files.sort();
    files
}

#[test]
fn what_was_decided_is_decided_again() {
    let folder = tempfile::tempdir().unwrap();
    let mut recorded = Recorded::start(folder.path(), FILE_BYTES_MAX);
    recorded.train();
    let mut seen = Vec::new();
    let summary = replay(&files(folder.path())[0], |step| {
        assert_eq!(step.difference, None, "{step:?}");
        seen.push(step.commands.to_vec());
    })
    .unwrap();
    assert_eq!((summary.events, summary.differences), (seen.len() as u64, 0));
    let is_revoked =
        |command: &Command| matches!(command, Command::Report(notice) if notice.text.contains("for good"));
    assert!(seen.iter().flatten().any(is_revoked));
}

/// How long a worker may be silent follows from the gaps between its heartbeats. Here the gap counts that ends with the first of two between which nothing else happens.
#[test]
fn decisions_that_follow_from_heartbeats_that_led_to_nothing_are_made_again() {
    let folder = tempfile::tempdir().unwrap();
    let mut recorded = Recorded::start(folder.path(), FILE_BYTES_MAX);
    for worker in [1, 2] {
        recorded.join(worker);
    }
    for worker in [1, 2] {
        recorded.say(worker, ready(0, 7));
    }
    for _ in 0..120 {
        recorded.pass(450);
        [1, 2].into_iter().for_each(|worker| recorded.beat(worker, 1));
    }
    for _ in 0..4 {
        recorded.pass(430);
        recorded.beat(1, 1);
    }
    (0..2).for_each(|_| recorded.beat(2, 1));
    for _ in 0..20 {
        recorded.pass(450);
        recorded.beat(1, 1);
    }
    recorded.recorder.flush();
    let members = recorded.run.status(0).cluster.members.len();
    assert_eq!(members, 1, "the second one is missed");
    let file = &files(folder.path())[0];
    replay(file, |step| assert_eq!(step.difference, None, "{step:?}")).unwrap();
    assert!(is_decided_otherwise_without_the_last_but_one_heartbeat(file), "or this shows nothing");
}

/// Of the second worker.
fn is_decided_otherwise_without_the_last_but_one_heartbeat(file: &Path) -> bool {
    let (mut reader, image) = Reader::open(file).unwrap();
    let mut entries = Vec::new();
    while let Some(entry) = reader.next_entry().unwrap() {
        entries.push(entry);
    }
    let is_heartbeat = |entry: &Entry| {
        let Event::Message { connection, message } = &entry.event else { return false };
        *connection == ConnectionId(2) && matches!(message, ToCoordinator::Heartbeat(_))
    };
    let last = entries.iter().rposition(is_heartbeat).unwrap();
    assert!(is_heartbeat(&entries[last - 1]) && entries[last - 1].decided.is_empty());
    entries.remove(last - 1);
    let mut run = *image.run;
    entries.into_iter().any(|Entry { now, event, decided }| {
        let commands = run.handle(now, event);
        commands.iter().map(Trace::of).collect::<Vec<_>>() != decided
    })
}

#[test]
fn each_file_is_replayed_by_itself_and_old_ones_go() {
    let folder = tempfile::tempdir().unwrap();
    Recorded::start(folder.path(), 200).train();
    let files = files(folder.path());
    assert_eq!(files.len(), FILES_KEPT);
    assert!(!files[0].ends_with("0000000000001000-000000.log"), "{files:?}");
    for file in files {
        let summary = replay(&file, |_| {}).unwrap();
        assert_eq!(summary.differences, 0, "{}", file.display());
    }
}

#[test]
fn a_record_that_was_cut_off_is_read_up_to_there_and_a_changed_one_is_found_out() {
    let folder = tempfile::tempdir().unwrap();
    Recorded::start(folder.path(), FILE_BYTES_MAX).train();
    let file = &files(folder.path())[0];
    let bytes = fs::read(file).unwrap();
    let whole = replay(file, |_| {}).unwrap();
    fs::write(file, &bytes[..bytes.len() - 3]).unwrap();
    let cut = replay(file, |_| {}).unwrap();
    assert_eq!((cut.events, cut.differences), (whole.events - 1, 0));
    // A worker's name is in its messages: another name gives another decision.
    let at = bytes.windows(6).rposition(|part| part == b"a test").unwrap();
    let mut changed = bytes.clone();
    changed[at..at + 6].copy_from_slice(b"A TEST");
    fs::write(file, &changed).unwrap();
    let summary = replay(file, |_| {}).unwrap();
    assert!(summary.differences > 0, "{summary:?}");
}

#[test]
fn where_a_record_cannot_be_written_for_a_while_it_goes_on_afterwards() {
    let folder = tempfile::tempdir().unwrap();
    let obstacle = folder.path().join(FOLDER);
    fs::write(&obstacle, "no folder").unwrap();
    let mut recorded = Recorded::start(folder.path(), FILE_BYTES_MAX);
    recorded.train();
    fs::remove_file(&obstacle).unwrap();
    // Not each event tries.
    recorded.beat(1, 1);
    assert!(!obstacle.exists());
    recorded.pass(writer::AGAIN_AFTER.as_millis() as u64 + 1000);
    // The first event finds room again, and later decisions are in the record.
    (2..9).for_each(|tokens| recorded.beat(1, tokens));
    recorded.recorder.flush();
    let files = files(folder.path());
    assert_eq!(files.len(), 1);
    let summary = replay(&files[0], |_| ()).unwrap();
    assert!(summary.events > 0 && summary.differences == 0, "{summary:?}");
}

#[test]
fn what_is_no_record_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("other.log");
    for bytes in [&b"hello"[..], b"hello, this is some other log"] {
        fs::write(&file, bytes).unwrap();
        assert!(matches!(Reader::open(&file), Err(ReadError::Foreign(_))));
    }
    let mut bytes = MAGIC.to_vec();
    bytes.extend((SCHEMA + 1).to_le_bytes());
    fs::write(&file, &bytes).unwrap();
    let refused = Reader::open(&file).unwrap_err().to_string();
    assert!(refused.contains("replay it with the release that wrote it"), "{refused}");
    let mut bytes = MAGIC.to_vec();
    bytes.extend(SCHEMA.to_le_bytes());
    bytes.extend(u32::MAX.to_le_bytes());
    fs::write(&file, &bytes).unwrap();
    assert!(matches!(Reader::open(&file), Err(ReadError::Damaged { .. })));
}
