//! Decides again, and compares.

use std::path::Path;
use std::time::Duration;

use super::reader::{Entry, ReadError, Reader};
use super::trace::{Kind, Trace};
use longhaul_run::{Command, Event};

/// An event that was decided about again.
#[derive(Debug)]
pub struct Step<'a> {
    /// On the run's clock.
    pub now: Duration,
    /// The event.
    pub event: &'a Event,
    /// Resulting commands.
    pub commands: &'a [Command],
    /// Difference to the recorded ones.
    pub difference: Option<Difference>,
}

/// Another decision than was recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The place of the first command that differs.
    pub at: usize,
    /// Kinds of the recorded commands.
    pub recorded: Vec<Kind>,
}

/// A record that was replayed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Events.
    pub events: u64,
    /// Commands that came of them.
    pub commands: u64,
    /// Events of which something else came than was recorded.
    pub differences: u64,
}

/// Decides again about all that is in a record; `on` sees each step.
///
/// # Errors
/// [`ReadError`]
pub fn replay(path: &Path, mut on: impl FnMut(&Step<'_>)) -> Result<Summary, ReadError> {
    let (mut reader, image) = Reader::open(path)?;
    let mut run = *image.run;
    let mut summary = Summary::default();
    while let Some(Entry { now, event, decided }) = reader.next_entry()? {
        let commands = run.handle(now, event.clone());
        let difference = difference(&decided, &commands);
        summary.events += 1;
        summary.commands += commands.len() as u64;
        summary.differences += u64::from(difference.is_some());
        on(&Step { now, event: &event, commands: &commands, difference });
    }
    Ok(summary)
}

fn difference(recorded: &[Trace], commands: &[Command]) -> Option<Difference> {
    let traces: Vec<Trace> = commands.iter().map(Trace::of).collect();
    let same = recorded.iter().zip(&traces).take_while(|(one, other)| one == other).count();
    (same < recorded.len().max(traces.len()))
        .then(|| Difference { at: same, recorded: recorded.iter().map(|trace| trace.kind).collect() })
}
