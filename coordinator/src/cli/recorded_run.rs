//! A run as its state directory has it, for commands that no coordinator answers.

use std::path::PathBuf;
use std::sync::Arc;

use serde_json::Value;

use super::Where;
use super::operate::utc;
use super::show::phase;
use crate::history::{Folder, Last};
use crate::journal::NumberedEvent;
use crate::store::Store;
use longhaul_run::{Phase, Status, Suspended};

/// The newest run of a state directory, as its coordinator wrote it down last: at its end, whenever it went on to another phase, paused or was asked to stop, and each minute.
#[derive(Clone, Debug)]
pub struct RecordedRun {
    /// When that was, as Unix time in milliseconds.
    pub at_ms: u64,
    /// Its status then.
    pub status: Arc<Status>,
    /// Its newest events then, oldest first.
    pub events: Vec<NumberedEvent>,
    state_dir: PathBuf,
}

impl RecordedRun {
    /// The newest run that is recorded there. None where `--http` names a coordinator: its run may be another one.
    #[must_use]
    pub fn newest(at: &Where) -> Option<Self> {
        if at.http.is_some() {
            return None;
        }
        let newest = Folder::runs(&at.state_dir).ok()?.into_iter().next()?;
        let Last { at_ms, status, rest } = Folder::read_last(&at.state_dir, &newest.run).ok()??;
        Some(Self { at_ms, status, events: rest.events, state_dir: at.state_dir.clone() })
    }

    /// Whether it was finished. Where its state is elsewhere (etcd), another coordinator may have gone on with it.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.is_known_here() && self.status.run.phase == Phase::Finished
    }

    /// Whether nobody leads the run but who opens this state directory.
    #[must_use]
    pub fn is_known_here(&self) -> bool {
        Store::is_in(&self.state_dir).unwrap_or(false)
    }

    /// How far it had come.
    #[must_use]
    pub fn reached(&self) -> String {
        format!("round {} of {}", self.status.progress.round, self.status.progress.rounds)
    }

    /// Where it ended, of a run that is over.
    #[must_use]
    pub fn end(&self) -> String {
        format!("the run is over: finished at {}", self.reached())
    }

    /// When it stood where, of one that is not.
    #[must_use]
    pub fn standing(&self) -> String {
        format!(
            "at {} it was at {} ({}), by the records in {}",
            utc(self.at_ms),
            self.reached(),
            phase(&self.status),
            self.state_dir.display()
        )
    }

    /// Why a command that needs a running run does nothing, and the commands that do something with one that is over.
    #[must_use]
    pub fn refusal(&self) -> String {
        // A run that has all its steps has none left to go on with.
        let more = if self.status.progress.round < self.status.progress.rounds {
            ""
        } else {
            " with more run.steps"
        };
        format!(
            "the run is over (finished at {}): `coordinator status --state-dir {}` shows it, and `coordinator up --extend`{more} trains it further",
            self.reached(),
            self.state_dir.display()
        )
    }

    /// For who looks at `what` of it: that it comes from the records, and when they were written.
    #[must_use]
    pub fn heading(&self, what: &str) -> String {
        let why = match (self.is_known_here(), self.status.suspended) {
            _ if self.is_over() => self.end(),
            (true, Some(how)) => {
                let from = if how == Suspended::Short { " from an older checkpoint" } else { "" };
                format!(
                    "the run has stopped for now: to continue{from}, run the same commands again, `coordinator up` with this state directory and `worker join` on each machine"
                )
            }
            _ => "no coordinator answers".to_owned(),
        };
        format!(
            "{why}; at {} {what} as follows, by the records in {}",
            utc(self.at_ms),
            self.state_dir.display()
        )
    }

    /// What `GET /api/v1/status` answered then, with that time.
    ///
    /// # Errors
    /// A status that is no JSON: there is none.
    pub fn status_json(&self) -> serde_json::Result<Value> {
        let mut status = serde_json::to_value(&*self.status)?;
        status["recorded_at_unix_ms"] = self.at_ms.into();
        Ok(status)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader, Read as _, Write as _};
    use std::path::Path;
    use std::time::Duration;

    use clap::Parser as _;
    use longhaul_common::config::RunConfig;
    use longhaul_common::id::RunId;

    use super::*;
    use crate::cli::show::describe;
    use crate::cli::{Cli, CliError};
    use crate::history::{FORMAT, History, Meta, Rest};
    use crate::store::{HTTP_ADDRESS_FILE, write_public};
    use longhaul_run::{EventStatus, Run, RunState, Severity};

    const AT_MS: u64 = 951_868_800_000;
    /// Nobody listens there.
    const HTTP: &str = "127.0.0.1:1";

    /// The state directory of a coordinator that was there last when its run had this status.
    fn left(change: impl FnOnce(&mut Status)) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let config = RunConfig::parse(include_str!("../../../examples/demo.toml")).unwrap();
        let state = RunState::new(RunId([7; 16]), &config);
        let mut status = Run::new(config, state, Duration::ZERO).unwrap().status(0);
        status.progress.round = 3;
        change(&mut status);
        let meta = Meta {
            format: FORMAT,
            run: status.run.id.clone(),
            name: status.run.name.clone(),
            begun_ms: 0,
            images: false,
            steps: status.progress.steps,
            batch: 1,
            about: String::new(),
        };
        let text = "something happened".to_owned();
        let event = EventStatus { at_unix_ms: AT_MS, severity: Severity::Info, worker: None, text };
        let rest = Rest { events: vec![NumberedEvent { number: 9, event }], ..Rest::default() };
        let history = Folder::begin(folder.path(), &History::new(meta)).unwrap();
        history.put_last(&Last { at_ms: AT_MS, status: Arc::new(status), rest }).unwrap();
        write_public(&folder.path().join(HTTP_ADDRESS_FILE), HTTP).unwrap();
        drop(Store::open(folder.path()).unwrap());
        folder
    }

    fn over(status: &mut Status) {
        status.run.phase = Phase::Finished;
    }

    fn at(folder: &Path) -> Where {
        Where { state_dir: folder.to_owned(), http: None }
    }

    /// Gives a command.
    fn given(words: &str, folder: &Path) -> Result<(), CliError> {
        let there = ["--state-dir", folder.to_str().unwrap()];
        let words = ["coordinator"].into_iter().chain(words.split(' ')).chain(there);
        crate::cli::run(Cli::try_parse_from(words).unwrap().command)
    }

    fn failure(words: &str, folder: &Path) -> String {
        given(words, folder).unwrap_err().to_string()
    }

    #[test]
    fn a_run_that_is_over_is_shown_and_stopped_without_a_coordinator() {
        let folder = left(over);
        for words in [
            "status",
            "status --json",
            "events",
            "events --json",
            "events --follow",
            "stop",
            "stop --wait",
            "stop --resumable",
        ] {
            given(words, folder.path()).unwrap_or_else(|error| panic!("{words}: {error}"));
        }
        let run = RecordedRun::newest(&at(folder.path())).unwrap();
        assert_eq!(
            run.end(),
            format!("the run is over: finished at round 3 of {}", run.status.progress.rounds)
        );
        let heading = run.heading("it was");
        assert!(heading.starts_with(&run.end()) && heading.contains("2000-03-01 00:00:00.000Z"), "{heading}");
        assert_eq!(run.events[0].event.text, "something happened");
        assert_eq!(run.status_json().unwrap()["recorded_at_unix_ms"], AT_MS);
    }

    #[test]
    fn who_asks_something_else_of_a_run_that_is_over_is_told_so_in_one_line() {
        const ASKED: [&str; 11] = [
            "members",
            "drain w0",
            "kick w0",
            "checkpoint",
            "checkpoint --wait",
            "checkpoints list",
            "pause",
            "resume",
            "token create",
            "token list",
            "token revoke 0000000000000000",
        ];
        let folder = left(over);
        let shown = format!("`coordinator status --state-dir {}` shows it", folder.path().display());
        for words in ASKED {
            let error = failure(words, folder.path());
            assert!(error.contains("the run is over (finished at round 3 of "), "{words}: {error}");
            assert!(error.contains(&shown) && !error.contains('\n'), "{words}: {error}");
            assert!(error.ends_with("`coordinator up --extend` trains it further"), "{words}: {error}");
        }
        let whole = left(|status| {
            (status.run.phase, status.progress.round) = (Phase::Finished, status.progress.rounds)
        });
        let error = failure("pause", whole.path());
        assert!(
            error.ends_with("`coordinator up --extend` with more run.steps trains it further"),
            "{error}"
        );
    }

    /// As a state directory that was copied without it.
    #[test]
    fn a_run_that_is_over_needs_no_address_of_its_coordinator() {
        let folder = left(over);
        std::fs::remove_file(folder.path().join(HTTP_ADDRESS_FILE)).unwrap();
        given("stop", folder.path()).unwrap();
        assert!(failure("pause", folder.path()).contains("the run is over"));
    }

    #[test]
    fn a_run_that_is_extended_is_over_no_more_and_keeps_its_events() {
        let folder = left(over);
        let run = RecordedRun::newest(&at(folder.path())).unwrap();
        let mut status = Status::clone(&run.status);
        status.run.phase = Phase::Gathering;
        Folder::renew_last(folder.path(), AT_MS + 1, status).unwrap();
        let extended = RecordedRun::newest(&at(folder.path())).unwrap();
        assert!(run.is_over() && !extended.is_over());
        assert_eq!((extended.at_ms, extended.events), (AT_MS + 1, run.events));
    }

    /// Another machine may lead it, or have led it to its end.
    #[test]
    fn records_of_a_run_whose_state_is_in_etcd_are_shown_and_prove_nothing() {
        for phase in [Phase::Finished, Phase::Training] {
            let folder = left(|status| status.run.phase = phase);
            std::fs::remove_file(folder.path().join("coordinator.redb")).unwrap();
            given("status", folder.path()).unwrap();
            for words in ["stop", "stop --resumable", "pause", "events --follow"] {
                let error = failure(words, folder.path());
                assert!(error.contains("no coordinator answers at 127.0.0.1:1"), "{words}: {error}");
                assert!(
                    !error.contains("the run is over") && !error.contains("not over"),
                    "{words}: {error}"
                );
            }
        }
    }

    /// The usual address is the same for all.
    #[test]
    fn a_coordinator_of_another_run_at_the_old_address_is_not_taken_for_this_ones() {
        let folder = left(over);
        let server = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        write_public(&folder.path().join(HTTP_ADDRESS_FILE), &server.local_addr().unwrap().to_string())
            .unwrap();
        std::thread::spawn(move || {
            for stream in server.incoming().map_while(Result::ok) {
                let mut reader = BufReader::new(&stream);
                let heads = reader.by_ref().lines().map_while(Result::ok);
                heads.take_while(|line| !line.is_empty()).for_each(drop);
                let body = "{\"run\": \"08\", \"phase\": \"training\"}";
                let head = format!("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {}", body.len());
                let _ = write!(&stream, "{head}\r\n\r\n{body}");
            }
        });
        for words in ["status", "events", "stop", "stop --wait"] {
            given(words, folder.path()).unwrap();
        }
        assert!(failure("pause", folder.path()).contains("the run is over"));
    }

    /// Its folder may be taken away meanwhile: the records are read once, before that.
    #[test]
    fn the_records_of_a_run_that_is_over_are_read_once_for_each_command() {
        for words in ["status", "events", "events --follow", "stop", "stop --wait", "stop --resumable"] {
            let folder = without_records_when_asked();
            given(words, folder.path()).unwrap_or_else(|error| panic!("{words}: {error}"));
        }
        for words in ["pause", "members", "checkpoint --wait"] {
            let error = failure(words, without_records_when_asked().path());
            assert!(error.contains("the run is over (finished at round 3 of "), "{words}: {error}");
        }
    }

    /// A run that is over. Whatever its old address is asked, its records go, and no answer comes.
    fn without_records_when_asked() -> tempfile::TempDir {
        let folder = left(over);
        let server = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = server.local_addr().unwrap().to_string();
        write_public(&folder.path().join(HTTP_ADDRESS_FILE), &address).unwrap();
        let history = folder.path().join(crate::history::FOLDER);
        std::thread::spawn(move || {
            for stream in server.incoming() {
                let _ = std::fs::remove_dir_all(&history);
                drop(stream);
            }
        });
        folder
    }

    #[test]
    fn what_is_recorded_is_nothing_to_a_coordinator_that_is_named() {
        let folder = left(over);
        for words in ["stop", "status", "events", "pause"] {
            let error = failure(&format!("{words} --http {HTTP}"), folder.path());
            assert!(error.contains("no coordinator answers at 127.0.0.1:1"), "{words}: {error}");
        }
    }

    #[test]
    fn a_run_whose_coordinator_was_lost_is_not_taken_for_one_that_is_over() {
        let folder = left(|status| status.run.phase = Phase::Training);
        for words in ["stop", "stop --wait", "stop --resumable"] {
            let error = failure(words, folder.path());
            assert!(error.contains("not over, and no coordinator answers at 127.0.0.1:1 ("), "{error}");
            assert!(error.contains("at 2000-03-01 00:00:00.000Z it was at round 3 of "), "{error}");
            assert!(
                error.contains("(training)") && error.contains("the same `coordinator up` line"),
                "{error}"
            );
        }
        for words in ["status", "events"] {
            given(words, folder.path()).unwrap();
        }
        let run = RecordedRun::newest(&at(folder.path())).unwrap();
        assert!(run.heading("it was").starts_with("no coordinator answers; at "));
        for words in ["events --follow", "pause"] {
            let error = failure(words, folder.path());
            assert!(error.contains("`coordinator up` continues an unfinished run"), "{words}: {error}");
        }
    }

    fn suspended(how: Suspended) -> impl FnOnce(&mut Status) {
        move |status| status.suspended = Some(how)
    }

    #[test]
    fn the_status_of_a_run_that_has_stopped_for_now_says_so_and_how_it_goes_on() {
        for (how, from) in [(Suspended::Whole, ""), (Suspended::Short, " from an older checkpoint")] {
            let folder = left(suspended(how));
            for words in ["status", "status --json", "events"] {
                given(words, folder.path()).unwrap();
            }
            let run = RecordedRun::newest(&at(folder.path())).unwrap();
            let heading = run.heading("the run was");
            let begins = format!(
                "the run has stopped for now: to continue{from}, run the same commands again, `coordinator up`"
            );
            assert!(heading.starts_with(&begins), "{heading}");
            assert!(
                heading.ends_with(&format!("by the records in {}", folder.path().display())),
                "{heading}"
            );
            let first = &describe(&run.status)[0];
            assert!(first.ends_with(", stopped for now") && !first.contains("gathering"), "{first}");
            // Another coordinator may have gone on with it.
            std::fs::remove_file(folder.path().join("coordinator.redb")).unwrap();
            assert!(run.heading("the run was").starts_with("no coordinator answers; at "));
        }
    }

    #[test]
    fn the_status_of_a_run_whose_coordinator_was_lost_says_whether_it_is_paused() {
        let folder = left(|status| (status.run.phase, status.run.paused) = (Phase::Training, true));
        let run = RecordedRun::newest(&at(folder.path())).unwrap();
        assert!(describe(&run.status)[0].ends_with(", training, paused"), "{:?}", describe(&run.status));
        assert!(run.standing().contains("(training, paused)"), "{}", run.standing());
    }

    #[test]
    fn a_run_that_has_stopped_for_now_is_not_over_and_is_not_stopped_for_now_twice() {
        let whole = left(suspended(Suspended::Whole));
        given("stop --resumable --wait", whole.path()).unwrap();
        let error = failure("stop --wait", whole.path());
        assert!(error.contains("not over: it has stopped for now, at round 3 of "), "{error}");
        assert!(error.contains("run the same commands again"), "{error}");
        let short = left(suspended(Suspended::Short));
        let error = failure("stop --resumable", short.path());
        assert!(error.contains("goes on from an older checkpoint"), "{error}");
        assert!(failure("stop", short.path()).contains("it has stopped for now"));
    }
}
