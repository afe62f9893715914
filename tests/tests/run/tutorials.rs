//! Runs the book's tutorials as written: each file is written, and each of our commands is run and prints the
//! page's output. Only addresses differ, and workers compute with one thread.

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use longhaul_tests::cluster::{Process, free_address};
use longhaul_tests::tutorial::{Act, Command, acts};
use tempfile::TempDir;

use crate::pretrained::Pretrained;
use crate::turns::take_turn;

/// Timeout of a command's output, and of its end.
const LIMIT: Duration = Duration::from_secs(120);
/// Commands that run until the run ends.
const STAYING: [&str; 2] = ["up", "join"];
/// Commands that a reader repeats until they show the page's output.
const LOOKS: [&str; 3] = ["status", "members", "events"];

#[test]
fn a_run_by_hand_goes_as_the_book_says() {
    Reader::new().does("docs/book/src/by-hand.md");
}

#[test]
fn two_machines_train_together_as_the_book_says() {
    Reader::new().does("docs/book/src/two-machines.md");
}

#[test]
fn a_plan_is_made_as_the_book_says() {
    Reader::new().does("docs/book/src/planning.md");
}

#[test]
fn a_pretrained_model_is_tuned_across_two_sites_as_the_book_says() {
    let reader = Reader::new();
    let pretrained = Pretrained::new("qwen3");
    pretrained.speaks_in_letters();
    std::os::unix::fs::symlink(pretrained.path(), reader.folder.path().join("SmolLM2-135M-Instruct"))
        .unwrap();
    reader.does("docs/book/src/fine-tuning.md");
}

#[test]
#[should_panic(expected = "coordinators without number")]
fn a_page_that_says_what_is_not_printed_is_found() {
    Reader::new().follows("\n```console\n$ coordinator --version\ncoordinators without number\n```\n");
}

/// A reader in the folder of a clone, with a terminal for each long-running command.
pub struct Reader {
    /// With the words of their commands.
    staying: Vec<(Vec<String>, Process)>,
    coordinator: SocketAddr,
    http: SocketAddr,
    /// Listening addresses of workers, by machine name.
    workers: BTreeMap<String, SocketAddr>,
    given: usize,
    /// Dropped last: live processes write to it.
    folder: TempDir,
}

impl Reader {
    pub fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let examples = root().join("examples");
        std::os::unix::fs::symlink(examples, folder.path().join("examples")).unwrap();
        let [coordinator, http] = [(); 2].map(|()| free_address().unwrap());
        Self { staying: Vec::new(), coordinator, http, workers: BTreeMap::new(), given: 0, folder }
    }

    pub fn does(self, page: &str) {
        let _turn = take_turn();
        self.follows(&fs::read_to_string(root().join(page)).unwrap());
    }

    fn follows(mut self, page: &str) {
        for act in acts(page) {
            match act {
                Act::File { name, text } => fs::write(self.folder.path().join(name), text).unwrap(),
                Act::Command(command) if is_ours(&command) => self.gives(&command),
                Act::Command(_) => {}
            }
        }
        assert!(self.given > 0, "no command in\n{page}");
        for (_, mut process) in self.staying {
            let ended = process.wait(LIMIT).unwrap();
            assert!(ended.success(), "{}", process.log_tail());
        }
    }

    fn gives(&mut self, command: &Command) {
        let subcommand = command.words.get(1).map_or("", String::as_str);
        if STAYING.contains(&subcommand) {
            // A reader repeats a command only after the previous one has ended.
            for (_, before) in self.staying.iter_mut().filter(|(words, _)| *words == command.words) {
                let ended = before.wait(LIMIT).unwrap();
                assert!(ended.success(), "{}", before.log_tail());
            }
            let mut process = self.start(command);
            let shown = until(|| command.is_shown_by(&process.log()) || process.ended().is_some());
            assert!(shown && command.is_shown_by(&process.log()), "{command:?}\n{}", process.log_tail());
            self.staying.push((command.words.clone(), process));
            return;
        }
        let is_look = LOOKS.contains(&subcommand);
        let mut last = String::new();
        let shown = until(|| {
            let mut process = self.start(command);
            let ended = process.wait(LIMIT).unwrap();
            last = process.log_tail();
            let is_shown = ended.success() && command.is_shown_by(&process.log());
            assert!(is_shown || is_look, "{command:?}\n{last}");
            is_shown
        });
        assert!(shown, "{command:?}\n{last}");
    }

    fn start(&mut self, command: &Command) -> Process {
        self.given += 1;
        let (program, arguments) = command.words.split_first().unwrap();
        let name = format!("{:03}-{program}", self.given);
        let arguments: Vec<String> = arguments.iter().map(|word| self.here(&command.machine, word)).collect();
        let home = self.folder.path().join(format!("home-{}", command.machine));
        Process::start_as(program, &name, self.folder.path(), |process| {
            process.args(&arguments).env("HOME", home).env_remove("XDG_CACHE_HOME");
            let says = |what: &str| arguments.iter().any(|word| word == what);
            if says("up") {
                process.args(["--http", &self.http.to_string()]);
            } else if says("join") && !says("--threads") {
                process.args(["--threads", "1"]);
            }
        })
        .unwrap()
    }

    /// Returns the local replacement of a word of the page.
    fn here(&mut self, machine: &str, word: &str) -> String {
        let worker_of = match word {
            "127.0.0.1:4800" | "0.0.0.0:4800" | "head.example.org:4800" => {
                return self.coordinator.to_string();
            }
            "203.0.113.7:4801" => "head",
            "0.0.0.0:4801" => machine,
            _ => return word.to_owned(),
        };
        let address = self.workers.entry(worker_of.to_owned()).or_insert_with(|| free_address().unwrap());
        address.to_string()
    }
}

fn is_ours(command: &Command) -> bool {
    matches!(command.words.first().map(String::as_str), Some("coordinator" | "worker"))
}

/// Whether it became true in time.
fn until(mut is_so: impl FnMut() -> bool) -> bool {
    let pause = Duration::from_millis(100);
    let mut waited = Duration::ZERO;
    while !is_so() {
        if waited > LIMIT {
            return false;
        }
        // Polls, as another process's output does not wake this one.
        std::thread::park_timeout(pause);
        waited += pause;
    }
    true
}

pub fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}
