//! `coordinator drain`, `kick`, `pause`, `resume` and `events`

use anyhow::Context as _;
use serde_json::{Value, json};

use super::follow::Follower;
use super::{AskArgs, CliError, Client, ClientError, EventsArgs, WorkerArgs, print, say};
use crate::http::{Events, WAIT_S_MAX};
use crate::inbox::Kicked;
use crate::journal::NumberedEvent;
use longhaul_run::Severity;

pub(super) const DRAIN_HELP: &str = "\
Drain a worker: it leaves in an orderly way.

Like SIGTERM on its machine: its process ends, the others settle the open round and continue without
it, and its samples are reassigned. If it holds the only copy of the model or of a part, it leaves once
its checkpoint is written, and copied if another worker stays: within ten minutes. Its certificate
stays valid, so it can rejoin with the same command.

    coordinator drain w3";

pub(super) const KICK_HELP: &str = "\
Remove a worker from the run for good.

Its certificate is revoked. The coordinator and all other workers close their connections to it at
once and refuse new ones; it gets no new certificate. Its machine can still enrol as another worker
with a join token: `coordinator token revoke` revokes the token it used, which the output names.
For an orderly departure, use `coordinator drain`.

    coordinator kick w3";

pub(super) const PAUSE_HELP: &str = "\
Pause training until `coordinator resume`.

Workers finish the open rounds and begin no others. They stay connected and keep their state in
memory; joining workers wait. The pause survives a restart of the coordinator. It writes no
checkpoint; before switching off all machines, use `coordinator stop --resumable`, which writes one.";

pub(super) const EVENTS_HELP: &str = "\
Show events: joins and departures, generations, checkpoints, changes of pace.

About a thousand of the newest are kept. If no coordinator answers, those in the state directory are
shown: all of them if the run is over; without those of the last minute if the coordinator was killed.

--follow prints new events, also across a restart of the coordinator, until it is interrupted or the
run is finished.";

pub(super) fn drain(args: &WorkerArgs) -> Result<(), CliError> {
    let what = || format!("drain {}", args.worker);
    let client = Client::find(&args.ask.at).with_context(what)?;
    let answer: Value = client.post(&path_of(&args.worker, "drain"), &json!({})).with_context(what)?;
    match args.ask.json {
        true => print(&answer.to_string()),
        false => print(&format!(
            "{} leaves, and its process ends; it can rejoin with the same command",
            args.worker
        )),
    }
    Ok(())
}

pub(super) fn kick(args: &WorkerArgs) -> Result<(), CliError> {
    let what = || format!("kick {}", args.worker);
    let client = Client::find(&args.ask.at).with_context(what)?;
    let kicked: Kicked = client.post(&path_of(&args.worker, "kick"), &json!({})).with_context(what)?;
    if args.ask.json {
        print(&serde_json::to_string(&kicked).context("write JSON")?);
        return Ok(());
    }
    let Kicked { id, token, token_is_valid } = kicked;
    print(&format!(
        "{id} is out of the run for good: its certificate is revoked, and all connections to it are closed"
    ));
    if token_is_valid {
        print(&format!(
            "its machine can still enrol as another worker with its join token: `coordinator token revoke {token}` revokes that token"
        ));
    }
    Ok(())
}

pub(super) fn pause(args: &AskArgs) -> Result<(), CliError> {
    ask(
        args,
        "/api/v1/pause",
        "pause the run",
        "the run pauses once the open rounds are finished; `coordinator resume` continues it",
    )
}

pub(super) fn resume(args: &AskArgs) -> Result<(), CliError> {
    ask(args, "/api/v1/resume", "resume the run", "the run continues")
}

fn ask(args: &AskArgs, path: &str, what: &'static str, done: &str) -> Result<(), CliError> {
    let client = Client::find(&args.at).context(what)?;
    let answer: Value = client.post(path, &json!({})).context(what)?;
    match args.json {
        true => print(&answer.to_string()),
        false => print(done),
    }
    Ok(())
}

pub(super) fn events(args: &EventsArgs) -> Result<(), CliError> {
    let mut next = 0;
    let Err(error) = events_of_coordinator(args, &mut next) else { return Ok(()) };
    match error.recorded() {
        // A run that is not over has more to come, and nobody tells of that.
        Some(run) if run.is_over() || !args.follow => {
            say(&run.heading("the newest events were"));
            print_all(run.events.iter().filter(|event| event.number > next), args);
            Ok(())
        }
        _ => Err(anyhow::Error::new(error).context("ask for the events").into()),
    }
}

/// Shows those after `next`, which grows with them.
fn events_of_coordinator(args: &EventsArgs, next: &mut u64) -> Result<(), ClientError> {
    let mut follower = Follower::find(&args.ask.at)?;
    loop {
        let wait_s = if args.follow && *next > 0 { WAIT_S_MAX } else { 0 };
        let told: Events = follower.ask(&format!("/api/v1/events?after={next}&wait_s={wait_s}"), |_| {})?;
        print_all(&told.events, args);
        if told.finished || !args.follow {
            return Ok(());
        }
        // Where nothing has happened yet, the next question waits all the same.
        *next = told.next.max(1);
    }
}

fn print_all<'a>(events: impl IntoIterator<Item = &'a NumberedEvent>, args: &EventsArgs) {
    events.into_iter().for_each(|event| print(&line_of(event, args.ask.json)));
}

fn line_of(numbered: &NumberedEvent, as_json: bool) -> String {
    if as_json {
        // Of strings and numbers alone.
        return serde_json::to_string(numbered).unwrap_or_default();
    }
    let event = &numbered.event;
    let mark = match event.severity {
        Severity::Info => "     ",
        Severity::Warning => "WARN ",
        Severity::Error => "ERROR",
    };
    let worker = event.worker.as_ref().map_or_else(String::new, |worker| format!("{worker} "));
    format!("{} {mark} {worker}{}", utc(event.at_unix_ms), event.text)
}

/// The calendar's date and time of a Unix time, in UTC: `2026-03-01 12:00:00.250Z`.
pub(super) fn utc(unix_ms: u64) -> String {
    let (days, rest_ms) = (unix_ms / 86_400_000, unix_ms % 86_400_000);
    let (year, month, day) = date_of(days);
    let (h, m, s, ms) = (rest_ms / 3_600_000, rest_ms / 60_000 % 60, rest_ms / 1000 % 60, rest_ms % 1000);
    format!("{year:04}-{month:02}-{day:02} {h:02}:{m:02}:{s:02}.{ms:03}Z")
}

/// Days since 1970-01-01 as year, month and day of the Gregorian calendar, counted in eras of 400 years that begin in March.
fn date_of(days: u64) -> (u64, u64, u64) {
    /// From 0000-03-01 to 1970-01-01.
    const TO_EPOCH: u64 = 719_468;
    const ERA: u64 = 146_097;
    let days = days.saturating_add(TO_EPOCH);
    let (era, of_era) = (days / ERA, days % ERA);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    // Months from March: 153 days in five of them.
    let from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    (400 * era + year + u64::from(month <= 2), month, day)
}

/// The worker's name is a part of the path: only what is in names is passed on, and the coordinator says what is wrong with the rest.
fn path_of(worker: &str, what: &str) -> String {
    let named: String =
        worker.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).take(64).collect();
    format!("/api/v1/workers/{}/{what}", if named.is_empty() { "_" } else { &named })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_the_calendar() {
        // As `date -u -d @SECONDS` says.
        assert_eq!(utc(0), "1970-01-01 00:00:00.000Z");
        assert_eq!(utc(951_782_399_999), "2000-02-28 23:59:59.999Z");
        assert_eq!(utc(951_868_800_000), "2000-03-01 00:00:00.000Z");
        assert_eq!(utc(1_709_164_800_250), "2024-02-29 00:00:00.250Z");
        assert_eq!(utc(4_107_542_399_000), "2100-02-28 23:59:59.000Z");
        assert_eq!(utc(4_107_542_400_000), "2100-03-01 00:00:00.000Z");
    }

    #[test]
    fn a_name_cannot_lead_to_another_call() {
        assert_eq!(path_of("w3", "kick"), "/api/v1/workers/w3/kick");
        assert_eq!(path_of("../stop?", "kick"), "/api/v1/workers/___stop_/kick");
        assert_eq!(path_of("", "kick"), "/api/v1/workers/_/kick");
    }
}
