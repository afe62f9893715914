//! `coordinator replay`

use anyhow::Context as _;
use serde_json::json;

use super::{CliError, ReplayArgs, print};
use crate::record::{Difference, Step, replay};
use longhaul_run::{Command, Event, Record};

pub(super) const HELP: &str = "\
Replay the decisions of a coordinator from its record, and compare them with the recorded ones.

A coordinator records the events of its run in files `decisions/*.log` of its state directory: the
newest 128 MiB, without secrets. Each file begins with a copy of the run's state, so that it can be
replayed by itself, by a coordinator of the same release. The command prints the decisions with their
times, and fails if one differs from the record.

    coordinator replay longhaul-state/decisions/0000000000000000-000000.log";

/// Characters of an event or a command that are shown.
const SHOWN_CHARS: usize = 160;

pub(super) fn run(args: &ReplayArgs) -> Result<(), CliError> {
    let mut first = None;
    let summary = replay(&args.file, |step| {
        if first.is_none() && step.difference.is_some() {
            first = Some(step.now);
        }
        if args.all || !step.commands.is_empty() || step.difference.is_some() {
            lines_of(step, args.json).iter().for_each(|line| print(line));
        }
    })
    .context("replay")?;
    let (events, commands, differences) = (summary.events, summary.commands, summary.differences);
    if let Some(at) = first {
        let text = format!(
            "decisions on {differences} of {events} events differ from the record, the first at {:.3} s: was the record written by another \
             build of the coordinator?",
            at.as_secs_f64()
        );
        return Err(anyhow::Error::msg(text).context("replay").into());
    }
    if !args.json {
        print(&format!("all decisions match the record: {events} events, {commands} commands"));
    }
    Ok(())
}

fn lines_of(step: &Step<'_>, as_json: bool) -> Vec<String> {
    let (seconds, event) = (step.now.as_secs_f64(), event_words(step.event));
    let commands: Vec<String> = step.commands.iter().map(command_words).collect();
    if as_json {
        let recorded = step
            .difference
            .as_ref()
            .map(|difference| json!({ "at": difference.at, "recorded": words_of(difference) }));
        return vec![
            json!({ "now_s": seconds, "event": event, "commands": commands, "differs": recorded })
                .to_string(),
        ];
    }
    let mut lines = vec![format!("{seconds:>10.3}  {event}")];
    lines.extend(commands.iter().map(|command| format!("{:>12}→ {command}", "")));
    if let Some(difference) = &step.difference {
        lines.push(format!(
            "{:>12}DIFFERS from command {} on; recorded: {}",
            "",
            difference.at + 1,
            words_of(difference)
        ));
    }
    lines
}

fn words_of(difference: &Difference) -> String {
    let kinds: Vec<String> = difference.recorded.iter().map(ToString::to_string).collect();
    if kinds.is_empty() { "nothing".to_owned() } else { kinds.join(", ") }
}

fn event_words(event: &Event) -> String {
    match event {
        Event::Opened { connection, worker, address } => {
            format!("{connection} is opened by {worker} from {address}")
        }
        Event::Message { connection, message } => format!("{connection} sends {}", clip(message)),
        Event::Closed { connection } => format!("{connection} is closed"),
        Event::Moved { connection, address } => format!("{connection} moves to {address}"),
        Event::Planned(answer) => format!("planned: {}", clip(answer)),
        Event::Timer => "the timer fires".to_owned(),
        Event::Drain => "asked to stop".to_owned(),
        Event::Checkpoint => "asked for a checkpoint".to_owned(),
        Event::Suspend => "asked to stop for now".to_owned(),
        Event::Pause => "asked to pause".to_owned(),
        Event::Resume => "asked to resume".to_owned(),
        Event::Dismiss { worker } => format!("asked to drain {worker}"),
        Event::Kick { worker } => format!("{worker} is revoked"),
    }
}

fn command_words(command: &Command) -> String {
    match command {
        Command::Send { connection, message } => format!("send {connection} {}", clip(message)),
        Command::Close { connection, reason } => format!("close {connection}: {reason}"),
        Command::Persist(Record::State(_)) => "persist the state".to_owned(),
        Command::Persist(Record::Round(summary)) => format!("persist {}", summary.round),
        Command::Plan(_) => "compute a plan".to_owned(),
        Command::Report(notice) => {
            let worker = notice.worker.map_or_else(String::new, |worker| format!("{worker} "));
            format!("notice: {worker}{}", notice.text)
        }
    }
}

fn clip(value: &impl std::fmt::Debug) -> String {
    let text = format!("{value:?}");
    match text.char_indices().nth(SHOWN_CHARS) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text,
    }
}
