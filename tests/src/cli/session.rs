//! From ready to the end: commands in, answers out.

use std::io::{self, BufRead, Write};

use anyhow::Context;
use serde_json::Value;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use super::control::Control;

/// Command lines read ahead; more wait in the pipe.
const LINES_MAX: usize = 16;

/// Prints `ready`, answers commands, and prints the final counters once a signal, or with `exit_with_stdin` the
/// end of the input, ends it.
pub fn serve(control: &Control, ready: &Value, exit_with_stdin: bool) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let result = runtime.block_on(async {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut lines = read_lines();
        let mut reading = true;
        print(ready)?;
        loop {
            tokio::select! {
                _ = terminate.recv() => break,
                _ = interrupt.recv() => break,
                line = lines.recv(), if reading => match line {
                    Some(line) => print(&control.answer(&line))?,
                    None if exit_with_stdin => break,
                    None => reading = false,
                },
            }
        }
        print(&control.stats())
    });
    // The reader may sit in a read that nothing will end; the process is about to.
    runtime.shutdown_background();
    result
}

/// Lines of standard input, from a thread of its own: a read of a terminal or a pipe cannot be cancelled.
fn read_lines() -> mpsc::Receiver<String> {
    let (sender, receiver) = mpsc::channel(LINES_MAX);
    tokio::task::spawn_blocking(move || {
        for line in io::stdin().lock().lines().map_while(Result::ok) {
            if sender.blocking_send(line).is_err() {
                break;
            }
        }
    });
    receiver
}

fn print(value: &Value) -> anyhow::Result<()> {
    let mut output = io::stdout().lock();
    writeln!(output, "{value}").and_then(|()| output.flush()).context("write to standard output")
}
