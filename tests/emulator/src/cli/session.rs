//! A session: commands in, replies out.

use std::io::{self, BufRead, Write};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use anyhow::Context;
use serde_json::Value;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::control::Control;

/// Command lines read ahead; more wait in the pipe.
const LINES_MAX: usize = 16;

/// Events of a session.
enum Event {
    Line(String),
    EndOfInput,
    Signal,
}

/// Prints `ready`, executes commands, and prints the final counters when a signal, or with `exit_with_stdin`
/// the end of the input, ends it.
pub fn serve(control: &Control, ready: &Value, exit_with_stdin: bool) -> anyhow::Result<()> {
    let events = events().context("listen for signals and commands")?;
    print(ready)?;
    loop {
        match events.recv().unwrap_or(Event::Signal) {
            Event::Line(line) => print(&control.answer(&line))?,
            Event::EndOfInput if !exit_with_stdin => {}
            Event::EndOfInput | Event::Signal => break,
        }
    }
    print(&control.stats())
}

/// Two threads feed it, which end with the process: a read of a terminal or a pipe cannot be cancelled.
fn events() -> io::Result<Receiver<Event>> {
    let (sender, events) = sync_channel(LINES_MAX);
    let mut signals = Signals::new([SIGTERM, SIGINT])?;
    let signalled = sender.clone();
    thread::Builder::new().name("signals".to_owned()).spawn(move || {
        for _ in signals.forever() {
            if signalled.send(Event::Signal).is_err() {
                break;
            }
        }
    })?;
    thread::Builder::new().name("commands".to_owned()).spawn(move || read_lines(&sender))?;
    Ok(events)
}

fn read_lines(sender: &SyncSender<Event>) {
    for line in io::stdin().lock().lines().map_while(Result::ok) {
        if sender.send(Event::Line(line)).is_err() {
            return;
        }
    }
    // On failure the receiver has ended.
    let _ = sender.send(Event::EndOfInput);
}

fn print(value: &Value) -> anyhow::Result<()> {
    let mut output = io::stdout().lock();
    writeln!(output, "{value}").and_then(|()| output.flush()).context("write to standard output")
}
