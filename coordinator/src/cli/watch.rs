//! `coordinator status`, once or again and again.

use std::io::{IsTerminal as _, Write as _};

use anyhow::Context as _;
use clap::{Args, value_parser};
use serde::Deserialize;
use serde_json::Value;
use terminal_size::{Height, Width, terminal_size_of};

use super::follow::Follower;
use super::up::interrupted;
use super::{AskArgs, CliError, ClientError, print, say, show};
use crate::http::WAIT_S_MAX;
use longhaul_run::{Phase, Status};

pub(super) const HELP: &str = "\
Show the state of the run.

--watch repeats it: a terminal is redrawn in place, other output is separated by empty lines, and --json
prints one object per line. It survives restarts of the coordinator, and ends with the run or with
Ctrl-C.

    coordinator status --watch
    coordinator status --watch --every 60 --json >> status.jsonl";

/// What is done, for errors.
const WHAT: &str = "ask for the status";
/// Columns and rows of a terminal that does not say how many it has.
const SIZE: (u16, u16) = (80, 24);

/// `coordinator status`
#[derive(Clone, Debug, Args)]
pub struct StatusArgs {
    /// Repeat until the run is finished.
    #[arg(long, short)]
    pub watch: bool,
    /// Interval of --watch.
    #[arg(long, value_name = "SECONDS", default_value_t = 2, requires = "watch", value_parser = value_parser!(u64).range(1..=86_400))]
    pub every: u64,
    #[command(flatten)]
    #[allow(missing_docs, reason = "clap would show it as help")]
    pub ask: AskArgs,
}

pub(super) fn run(args: &StatusArgs) -> Result<(), CliError> {
    if !args.watch {
        return show::run(&args.ask);
    }
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().context("start the runtime")?;
    let ended = runtime.block_on(async {
        let interrupted = interrupted().context("listen for signals")?;
        let args = args.clone();
        let watching = tokio::task::spawn_blocking(move || watch(&args));
        tokio::select! {
            ended = watching => ended.context("watch the run")?,
            () = interrupted => {
                if std::io::stdout().is_terminal() {
                    // The prompt comes below what was shown, and not behind the `^C`.
                    print("");
                }
                Ok(())
            }
        }
    });
    // Whoever interrupts does not wait for an answer that is on its way.
    runtime.shutdown_background();
    ended
}

fn watch(args: &StatusArgs) -> Result<(), CliError> {
    match until_finished(args) {
        // It was over before, or ended while nobody looked.
        Err(ClientError::Over(run)) => {
            say(&run.heading("the run was"));
            match args.ask.json {
                true => print(&run.status_json().context(WHAT)?.to_string()),
                false => show::describe(&run.status).iter().for_each(|line| print(line)),
            }
            Ok(())
        }
        watched => Ok(watched.context(WHAT)?),
    }
}

fn until_finished(args: &StatusArgs) -> Result<(), ClientError> {
    let mut follower = Follower::find(&args.ask.at)?;
    let mut shown = Shown::new(args.ask.json);
    let mut told = ask(&mut follower, 0, &mut shown)?;
    loop {
        // Who reads no more is no reason to complain.
        if shown.show(&told).is_err() || told.is_finished() {
            return Ok(());
        }
        let mut left_s = args.every;
        while left_s > 0 && !told.is_finished() {
            let wait_s = left_s.min(WAIT_S_MAX);
            left_s -= wait_s;
            told = ask(&mut follower, wait_s, &mut shown)?;
        }
    }
}

fn ask(follower: &mut Follower<'_>, wait_s: u64, shown: &mut Shown) -> Result<Told, ClientError> {
    follower.ask(&format!("/api/v1/status?wait_s={wait_s}"), |error| shown.tell_away(error))
}

/// What a coordinator has answered.
#[derive(Deserialize)]
#[serde(try_from = "Value")]
struct Told {
    /// With all that it knows.
    json: Value,
    status: Status,
}

impl TryFrom<Value> for Told {
    type Error = serde_json::Error;

    fn try_from(json: Value) -> Result<Self, Self::Error> {
        Ok(Self { status: serde_json::from_value(json.clone())?, json })
    }
}

impl Told {
    fn is_finished(&self) -> bool {
        self.status.run.phase == Phase::Finished
    }
}

/// Where the status is shown, and how.
enum Shown {
    /// On a terminal, each in the place of the one before.
    InPlace(Vec<String>),
    /// Below each other; whether there was one.
    Blocks(bool),
    /// An object a line.
    Json,
}

impl Shown {
    fn new(json: bool) -> Self {
        match json {
            true => Self::Json,
            false if std::io::stdout().is_terminal() => Self::InPlace(Vec::new()),
            false => Self::Blocks(false),
        }
    }

    fn show(&mut self, told: &Told) -> std::io::Result<()> {
        let mut text = match self {
            Self::Json => format!("{}\n", told.json),
            Self::Blocks(any) => {
                let before = if std::mem::replace(any, true) { "\n" } else { "" };
                format!("{before}{}\n", show::describe(&told.status).join("\n"))
            }
            Self::InPlace(last) => {
                *last = show::describe(&told.status);
                frame(last, size())
            }
        };
        if told.is_finished()
            && let Self::InPlace(last) = self
        {
            // What stays is shown whole.
            text = frame(last, (u16::MAX, u16::MAX));
        }
        write(&text)
    }

    /// The coordinator cannot be reached: on a terminal, the last status stands below that.
    fn tell_away(&self, error: &ClientError) {
        let Self::InPlace(last) = self else { return };
        let notice = format!("{error}; asking again");
        let lines: Vec<String> = std::iter::once(notice).chain(last.iter().cloned()).collect();
        // A terminal that is gone is noticed with the next status.
        let _ = write(&frame(&lines, size()));
    }
}

fn write(text: &str) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// Columns and rows.
fn size() -> (u16, u16) {
    terminal_size_of(std::io::stdout()).map_or(SIZE, |(Width(columns), Height(rows))| (columns, rows))
}

/// What draws these lines from the upper left corner on, over what was there: each line ends with what clears the rest of it, and the last one with what
/// clears all below, so that nothing is blank between. What has no room is left out, and the cursor comes to stand below.
fn frame(lines: &[String], (columns, rows): (u16, u16)) -> String {
    let room = usize::from(rows).saturating_sub(1).max(1);
    let shown = if lines.len() > room { room - 1 } else { lines.len() };
    let more = (shown < lines.len()).then(|| format!("… {} more lines", lines.len() - shown));
    let mut text = String::from("\x1b[H");
    for line in lines[..shown].iter().chain(&more) {
        // In the last column a terminal would clear what has just been written there.
        let room = usize::from(columns).saturating_sub(1);
        text.extend(line.chars().filter(|c| !c.is_control()).take(room));
        text.push_str("\x1b[K\n");
    }
    text.push_str("\x1b[J");
    text
}

#[cfg(test)]
mod tests {
    use longhaul_tests::terminal::Screen;

    use super::*;

    /// What a full terminal of five rows shows after a frame, and the row of its cursor.
    fn shown(columns: u16, frame: &str) -> (Vec<String>, usize) {
        let mut screen = Screen::new(5, columns);
        screen.write("xxxx\nxxxx\nxxxx\nxxxx\nxxxx");
        screen.write(frame);
        assert_eq!(screen.scrolled(), 0);
        (screen.lines(), screen.cursor().0)
    }

    fn lines(lines: &[&str]) -> Vec<String> {
        lines.iter().map(|&line| line.to_owned()).collect()
    }

    #[test]
    fn a_frame_takes_the_place_of_what_was_there() {
        let text = frame(&lines(&["–", "two"]), (40, 5));
        assert_eq!(shown(40, &text), (lines(&["–", "two"]), 2));
    }

    #[test]
    fn what_is_higher_or_wider_than_the_terminal_is_cut_and_that_is_said() {
        let all = lines(&["a line that is long", "2", "3", "4", "5", "6"]);
        let text = frame(&all, (15, 5));
        assert_eq!(shown(15, &text), (lines(&["a line that is", "2", "3", "… 3 more lines"]), 4));
        let text = frame(&all[..4], (7, 5));
        assert_eq!(shown(7, &text), (lines(&["a line", "2", "3", "4"]), 4));
    }

    #[test]
    fn what_a_worker_calls_itself_cannot_move_the_cursor() {
        let text = frame(&lines(&["w3\x1b[2Jbox\n"]), (40, 5));
        assert_eq!(shown(40, &text), (lines(&["w3[2Jbox"]), 1));
    }
}
