//! A program on a terminal, created by `script` of util-linux, and its display.

use std::ffi::OsStr;
use std::io::{Read as _, Write as _};
use std::process::{Child, Command, Stdio};

use crate::tools::skipped;

/// A program on a terminal; it is killed on drop.
#[derive(Debug)]
pub struct Terminal {
    script: Child,
}

impl Terminal {
    /// Rows of every such terminal.
    pub const ROWS: u16 = 8;
    /// Columns of every such terminal.
    pub const COLUMNS: u16 = 70;

    /// Starts a program on a terminal, with its own folder and variables besides this process's; `None`, with
    /// a notice, without `script`.
    ///
    /// # Panics
    /// It cannot be started.
    #[must_use]
    pub fn start(program: &Command) -> Option<Self> {
        let is_there = Command::new("script").arg("--version").output();
        if !is_there.is_ok_and(|said| String::from_utf8_lossy(&said.stdout).contains("util-linux")) {
            skipped("there is no `script` of util-linux here (Debian: apt-get install bsdutils)");
            return None;
        }
        let words = std::iter::once(program.get_program()).chain(program.get_args()).map(quoted);
        let line = words.collect::<Vec<_>>().join(" ");
        let (rows, columns) = (Self::ROWS, Self::COLUMNS);
        let mut script = Command::new("script");
        script.args(["--quiet", "--return", "--flush", "--command"]);
        script.arg(format!("stty rows {rows} cols {columns} && exec {line}")).arg("/dev/null");
        script.env("SHELL", "/bin/sh").env("TERM", "xterm-256color").env_remove("NO_COLOR");
        for (name, value) in program.get_envs() {
            match value {
                Some(value) => script.env(name, value),
                None => script.env_remove(name),
            };
        }
        if let Some(folder) = program.get_current_dir() {
            script.current_dir(folder);
        }
        script.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        Some(Self { script: script.spawn().expect("`script` was there a moment ago") })
    }

    /// Returns the output up to and including this text.
    ///
    /// # Panics
    /// The program ends before.
    pub fn until(&mut self, text: &str) -> String {
        let out = self.script.stdout.as_mut().expect("it is piped");
        let mut bytes = Vec::new();
        while !bytes.ends_with(text.as_bytes()) {
            let mut byte = [0];
            let read = out.read(&mut byte).expect("read from a pipe");
            assert!(read > 0, "it ended before {text:?}: {}", String::from_utf8_lossy(&bytes));
            bytes.push(byte[0]);
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Presses keys: `\x03` is Ctrl-C.
    ///
    /// # Panics
    /// The program has ended.
    pub fn press(&mut self, keys: &str) {
        let keyboard = self.script.stdin.as_mut().expect("it is piped");
        keyboard.write_all(keys.as_bytes()).and_then(|()| keyboard.flush()).expect("the program is there");
    }

    /// Waits for the program's end; returns its exit code, and the remaining output.
    ///
    /// # Panics
    /// The system does not report its status.
    #[must_use]
    pub fn end(mut self) -> (Option<i32>, String) {
        let mut bytes = Vec::new();
        let out = self.script.stdout.as_mut().expect("it is piped");
        out.read_to_end(&mut bytes).expect("read from a pipe");
        let code = self.script.wait().expect("it is this process's own child").code();
        (code, String::from_utf8_lossy(&bytes).into_owned())
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.script.kill();
        let _ = self.script.wait();
    }
}

/// A terminal's display, with the features used by our programs. Keeps scrolled lines.
#[derive(Clone, Debug)]
pub struct Screen {
    columns: usize,
    rows: usize,
    lines: Vec<Vec<char>>,
    row: usize,
    column: usize,
    wraps: bool,
}

impl Screen {
    /// Creates an empty screen.
    #[must_use]
    pub fn new(rows: u16, columns: u16) -> Self {
        let (rows, columns) = (rows.into(), columns.into());
        Self { columns, rows, lines: vec![Vec::new(); rows], row: 0, column: 0, wraps: true }
    }

    /// Returns the display of a terminal of [`Terminal`]'s size after this output.
    #[must_use]
    pub fn after(said: &str) -> Self {
        let mut screen = Self::new(Terminal::ROWS, Terminal::COLUMNS);
        screen.write(said);
        screen
    }

    /// Returns all lines, without trailing blanks and trailing empty lines.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        let text = |line: &Vec<char>| line.iter().collect::<String>().trim_end().to_owned();
        let mut lines: Vec<String> = self.lines.iter().map(text).collect();
        lines.truncate(lines.iter().rposition(|line| !line.is_empty()).map_or(0, |last| last + 1));
        lines
    }

    /// Returns the number of scrolled lines.
    #[must_use]
    pub fn scrolled(&self) -> usize {
        self.lines.len() - self.rows
    }

    /// Returns the cursor's row, of all lines, and column.
    #[must_use]
    pub fn cursor(&self) -> (usize, usize) {
        (self.row, self.column)
    }

    /// Processes a program's output.
    ///
    /// # Panics
    /// The output uses an unsupported control sequence.
    pub fn write(&mut self, text: &str) {
        let mut rest = text;
        while let Some(next) = rest.chars().next() {
            rest = &rest[next.len_utf8()..];
            match next {
                '\x1b' => rest = self.sequence(rest),
                '\r' => self.column = 0,
                '\n' => self.feed(),
                next => {
                    assert!(!next.is_control(), "{next:?} in {text:?}");
                    self.put(next);
                }
            }
        }
    }

    /// Moves to the start of the next line, as the system's terminal driver does.
    fn feed(&mut self) {
        (self.row, self.column) = (self.row + 1, 0);
        if self.row == self.lines.len() {
            self.lines.push(Vec::new());
        }
    }

    fn put(&mut self, next: char) {
        if self.column == self.columns {
            match self.wraps {
                true => self.feed(),
                false => self.column -= 1,
            }
        }
        let line = &mut self.lines[self.row];
        if line.len() <= self.column {
            line.resize(self.column + 1, ' ');
        }
        line[self.column] = next;
        self.column += 1;
    }

    /// Processes an escape sequence; returns the text after it.
    fn sequence<'a>(&mut self, rest: &'a str) -> &'a str {
        let body = rest.strip_prefix('[').unwrap_or_else(|| panic!("{rest:?} is no control sequence"));
        let end = body.find(|c: char| c.is_ascii_alphabetic()).expect("a control sequence has an end");
        // Past the last column the cursor is on it.
        let column = self.column.min(self.columns - 1);
        match &body[..=end] {
            "H" => (self.row, self.column) = (self.scrolled(), 0),
            "K" => self.lines[self.row].truncate(column),
            "2K" => self.lines[self.row].clear(),
            "J" => {
                self.lines[self.row].truncate(column);
                self.lines[self.row + 1..].iter_mut().for_each(Vec::clear);
            }
            "?7l" => self.wraps = false,
            "?7h" => self.wraps = true,
            colour if colour.ends_with('m') => {}
            other => panic!("this screen does not know {other:?}"),
        }
        &body[end + 1..]
    }
}

/// Quotes a word for a shell.
fn quoted(word: &OsStr) -> String {
    format!("'{}'", word.to_string_lossy().replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_reach_the_program_and_its_end_is_told() {
        let mut program = Command::new("sh");
        program
            .args(["-c", r#"stty size; read -r line; echo "it's $line $NAMED"; exit 3"#])
            .env("NAMED", "so");
        let Some(mut terminal) = Terminal::start(&program) else { return };
        terminal.until("8 70");
        terminal.press("typed\r");
        let (code, said) = terminal.end();
        assert!(said.contains("it's typed so"), "{said:?}");
        assert_eq!(code, Some(3));
    }

    #[test]
    fn a_screen_shows_what_a_terminal_would() {
        let mut screen = Screen::new(3, 4);
        screen.write("one\r\ntwo\r\x1b[2Kthree\r\n\x1b[31mfour\x1b[0m");
        assert_eq!(
            (screen.lines(), screen.scrolled()),
            (vec!["one".into(), "thre".into(), "e".into(), "four".into()], 1)
        );
        screen.write("\x1b[H1234\x1b[K\n\x1b[J\x1b[?7labcdef\x1b[?7h");
        assert_eq!(screen.lines(), ["one", "123", "abcf"]);
        assert_eq!(screen.cursor(), (2, 4));
    }
}
