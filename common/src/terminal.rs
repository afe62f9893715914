//! Terminal output: colours, and a status line at the bottom.

use std::ffi::OsStr;
use std::io::{ErrorKind, IsTerminal, Stderr, Write};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

/// Characters of a [`gauge`], without its ends.
const GAUGE: u64 = 20;

/// Whether output there may use colours: a terminal that supports them (`TERM` is not `dumb`), unless
/// disabled (`NO_COLOR`, <https://no-color.org>).
#[must_use]
pub fn takes_colours(to: &impl IsTerminal) -> bool {
    let variable = |name| std::env::var_os(name);
    to.is_terminal() && wants_colours(variable("NO_COLOR").as_deref(), variable("TERM").as_deref())
}

/// Whether the cursor can be moved there: a terminal whose `TERM` is not `dumb`.
#[must_use]
pub fn moves_cursors(to: &impl IsTerminal) -> bool {
    to.is_terminal() && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

fn wants_colours(no_color: Option<&OsStr>, term: Option<&OsStr>) -> bool {
    no_color.is_none_or(OsStr::is_empty) && term.is_none_or(|term| term != "dumb")
}

/// Returns a progress bar.
#[must_use]
pub fn gauge(done: u64, of: u64) -> String {
    let full = (u128::from(done.min(of)) * u128::from(GAUGE)).checked_div(of.into()).unwrap_or(0) as usize;
    format!("[{}{}]", "#".repeat(full), "-".repeat(GAUGE as usize - full))
}

/// Returns this process's standard error, with a status line once [enabled](Foot::enable).
pub fn foot() -> &'static Foot<Stderr> {
    static FOOT: LazyLock<Foot<Stderr>> = LazyLock::new(|| Foot::new(std::io::stderr()));
    &FOOT
}

/// A status line at the bottom of a terminal. Other output goes through [`Foot::above`].
#[derive(Debug)]
pub struct Foot<W> {
    state: Mutex<State<W>>,
}

#[derive(Debug)]
struct State<W> {
    out: W,
    is_there: bool,
    line: String,
    /// Writes lost since the last successful one.
    lost: u64,
}

impl<W: Write> Foot<W> {
    /// Creates it without a status line, as `out` may not be a terminal.
    pub const fn new(out: W) -> Self {
        Self { state: Mutex::new(State { out, is_there: false, line: String::new(), lost: 0 }) }
    }

    /// Enables the status line, on a terminal that [moves its cursor](moves_cursors) and is read by people.
    pub fn enable(&self) {
        self.lock().is_there = true;
    }

    /// Whether it was [enabled](Foot::enable).
    pub fn is_there(&self) -> bool {
        self.lock().is_there
    }

    /// Replaces the status line; an empty one removes it. Cuts it at the terminal's width. Has no effect
    /// before [`Foot::enable`].
    pub fn show(&self, line: &str) {
        let mut state = self.lock();
        let line: String = line.chars().filter(|c| !c.is_control()).collect();
        if state.is_there && state.line != line {
            let drawn = format!("{CLEAR}{}", drawn(&line));
            state.line = line;
            // A closed terminal shows nothing.
            let _ = state.out.write_all(drawn.as_bytes()).and_then(|()| state.out.flush());
        }
    }

    /// Writes complete lines above the status line.
    pub fn above<T>(&self, write: impl FnOnce(&mut W) -> T) -> T {
        let state = &mut *self.lock();
        if state.line.is_empty() {
            return write(&mut state.out);
        }
        let _ = state.out.write_all(CLEAR.as_bytes()).and_then(|()| state.out.flush());
        let written = write(&mut state.out);
        let drawn = drawn(&state.line);
        let _ = state.out.write_all(drawn.as_bytes()).and_then(|()| state.out.flush());
        written
    }

    fn lock(&self) -> MutexGuard<'_, State<W>> {
        // A panic while writing leaves at most half a line.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Discards a log whose reader has closed (`| head`, a closed terminal) or whose disk is full, so that the
/// writer continues. Once writes succeed again, it reports the number of lost messages.
impl<W: Write> Write for &Foot<W> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let lost = std::mem::take(&mut self.lock().lost);
        let written = self.above(|out| {
            if lost > 0 {
                out.write_all(format!("({lost} messages could not be written here)\n").as_bytes())?;
            }
            out.write(bytes)
        });
        match written {
            Err(error) if error.kind() != ErrorKind::Interrupted => {
                self.lock().lost += lost + 1;
                Ok(bytes.len())
            }
            written => written,
        }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        let _ = self.lock().out.flush();
        Ok(())
    }
}

/// Moves to the start of the line and clears it.
const CLEAR: &str = "\r\x1b[2K";

/// Without wrapping, and with the cursor at its start: the terminal's own output, such as `^C`, stays in this
/// line.
fn drawn(line: &str) -> String {
    if line.is_empty() { String::new() } else { format!("\x1b[?7l{line}\x1b[?7h\r") }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn colours_are_for_who_has_not_asked_for_none() {
        let wants = |no_color: Option<&str>, term: Option<&str>| {
            wants_colours(no_color.map(OsStr::new), term.map(OsStr::new))
        };
        assert!(wants(None, None) && wants(None, Some("xterm")) && wants(Some(""), Some("xterm")));
        assert!(!wants(Some("1"), Some("xterm")) && !wants(Some("0"), None) && !wants(None, Some("dumb")));
    }

    #[test]
    fn a_gauge_is_full_when_all_is_done() {
        assert_eq!(gauge(0, 6), "[--------------------]");
        assert_eq!(gauge(3, 6), "[##########----------]");
        assert_eq!(gauge(9, 6), "[####################]");
        assert_eq!(gauge(0, 0), "[--------------------]");
        assert_eq!(gauge(u64::MAX - 1, u64::MAX), "[###################-]");
    }

    /// Returns the output of these steps.
    fn written(steps: impl FnOnce(&Foot<&mut Vec<u8>>)) -> String {
        let mut bytes = Vec::new();
        steps(&Foot::new(&mut bytes));
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn what_could_not_be_written_is_no_error_and_counted() {
        struct Gone<'a>(&'a Cell<bool>, Vec<u8>);
        impl Write for Gone<'_> {
            fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
                if self.0.get() { Err(ErrorKind::BrokenPipe.into()) } else { self.1.write(bytes) }
            }

            fn flush(&mut self) -> std::io::Result<()> {
                Err(ErrorKind::BrokenPipe.into())
            }
        }
        let is_gone = Cell::new(true);
        let foot = Foot::new(Gone(&is_gone, Vec::new()));
        foot.enable();
        foot.show("line");
        let mut above = &foot;
        above.write_all(b"one\n").unwrap();
        above.write_all(b"two\n").unwrap();
        above.flush().unwrap();
        foot.show("");
        is_gone.set(false);
        above.write_all(b"three\n").unwrap();
        above.write_all(b"four\n").unwrap();
        let written = foot.above(|out| String::from_utf8(out.1.clone()).unwrap());
        assert_eq!(written, "(2 messages could not be written here)\nthree\nfour\n");
    }

    #[test]
    fn what_is_written_stands_above_the_line_at_the_foot() {
        let all = written(|foot| {
            let mut above = foot;
            foot.show("not yet");
            above.write_all(b"before\n").unwrap();
            assert!(!foot.is_there());
            foot.enable();
            assert!(foot.is_there());
            foot.show("one");
            foot.show("one");
            above.write_all(b"log\n").unwrap();
            foot.show("t\x1bwo\n");
            foot.show("");
            above.write_all(b"after\n").unwrap();
        });
        let line = |text: &str| format!("\x1b[?7l{text}\x1b[?7h\r");
        let (one, two) = (line("one"), line("two"));
        let expected = ["before\n", CLEAR, &one, CLEAR, "log\n", &one, CLEAR, &two, CLEAR, "after\n"];
        assert_eq!(all, expected.concat());
    }
}
