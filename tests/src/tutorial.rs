//! Tutorial chapters of the book: the files that a reader writes, the commands that a reader runs, and their
//! output.
//!
//! A block of TOML whose first line is `# NAME` is a file. In a block of `console` a line with a prompt
//! (`$ `, or `head$ ` with several machines) is a command. The lines below it are its output, among others: `…`
//! matches anything there.

/// A reader's action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Act {
    /// Writes a file.
    File {
        /// Name.
        name: String,
        /// Content.
        text: String,
    },
    /// Runs a command.
    Command(Command),
}

/// A command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    /// Machine, from the prompt; empty: the only one.
    pub machine: String,
    /// Program and arguments.
    pub words: Vec<String>,
    /// Lines of output, in order.
    pub prints: Vec<String>,
}

/// Returns the reader's actions on this page, in order.
#[must_use]
pub fn acts(page: &str) -> Vec<Act> {
    let mut acts = Vec::new();
    let mut parts = page.split("\n```").skip(1);
    // Text and fences alternate.
    while let Some(block) = parts.next() {
        let (kind, text) = block.split_once('\n').unwrap_or((block, ""));
        match kind {
            "toml" => acts.extend(file(text)),
            "console" => acts.extend(commands(text)),
            _ => {}
        }
        parts.next();
    }
    acts
}

fn file(text: &str) -> Option<Act> {
    let name = text.lines().next()?.strip_prefix("# ")?;
    let is_name = name.ends_with(".toml") && !name.contains(char::is_whitespace);
    is_name.then(|| Act::File { name: name.to_owned(), text: format!("{text}\n") })
}

fn commands(text: &str) -> Vec<Act> {
    let mut commands: Vec<Command> = Vec::new();
    for line in text.lines() {
        if let Some((machine, typed)) = prompt(line) {
            commands.push(Command { machine: machine.to_owned(), words: words(typed), prints: Vec::new() });
        } else if let Some(command) = commands.last_mut().filter(|_| !line.trim().is_empty()) {
            command.prints.push(line.trim().to_owned());
        }
    }
    commands.into_iter().map(Act::Command).collect()
}

/// Splits a line into machine and command.
fn prompt(line: &str) -> Option<(&str, &str)> {
    let (machine, typed) = line.split_once("$ ")?;
    machine.chars().all(|c| c.is_ascii_lowercase() || c == '-').then_some((machine, typed))
}

/// Splits a line like a shell, as far as the book needs it: with quotes and comments.
fn words(typed: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    let (mut is_quoted, mut is_between) = (false, true);
    for c in typed.chars() {
        match c {
            '"' => is_quoted = !is_quoted,
            '#' if is_between && !is_quoted => break,
            ' ' if !is_quoted => is_between = true,
            _ => {
                if std::mem::take(&mut is_between) {
                    words.push(String::new());
                }
                if let Some(word) = words.last_mut() {
                    word.push(c);
                }
            }
        }
    }
    words
}

impl Command {
    /// Whether the output contains all expected lines.
    #[must_use]
    pub fn is_shown_by(&self, printed: &str) -> bool {
        let mut lines = printed.lines();
        self.prints.iter().all(|pattern| lines.any(|line| matches(pattern, line.trim())))
    }
}

/// Whether a line matches a pattern, in which `…` matches anything.
fn matches(pattern: &str, line: &str) -> bool {
    let mut pieces = pattern.split('…');
    let first = pieces.next().unwrap_or_default();
    let Some(mut rest) = line.strip_prefix(first) else { return false };
    let mut pieces: Vec<&str> = pieces.collect();
    let Some(last) = pieces.pop() else { return rest.is_empty() };
    for piece in pieces {
        let Some((_, behind)) = rest.split_once(piece) else { return false };
        rest = behind;
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "# Title\n\n```toml\n# run.toml\n[run]\n```\n\n```toml\n[sync]\n```\n\nRun:\n\n```console\nhead$ coordinator up --config run.toml   # for ever\n\
                        begins run …: workers\n\nhead$ coordinator stop\n```\n\n```text\n$ worker join\n```\n\n```console\n$ worker sample --prompt \"In the # beginning\"\n```\n";

    fn command(machine: &str, words: &[&str], prints: &[&str]) -> Act {
        let owned = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
        Act::Command(Command { machine: machine.to_owned(), words: owned(words), prints: owned(prints) })
    }

    #[test]
    fn files_and_commands_come_in_the_order_of_the_page_and_other_blocks_are_nothing() {
        let file = Act::File { name: "run.toml".to_owned(), text: "# run.toml\n[run]\n".to_owned() };
        let expected = [
            file,
            command("head", &["coordinator", "up", "--config", "run.toml"], &["begins run …: workers"]),
            command("head", &["coordinator", "stop"], &[]),
            command("", &["worker", "sample", "--prompt", "In the # beginning"], &[]),
        ];
        assert_eq!(acts(PAGE), expected);
    }

    #[test]
    fn dots_stand_for_anything_and_the_rest_for_itself() {
        for (pattern, line) in [
            ("the run goes on", "the run goes on"),
            ("loss …", "loss 1.5 (validation –)"),
            ("…w2 …gone …", "  w2     gone   – (leaves)"),
            ("…", ""),
        ] {
            assert!(matches(pattern, line), "{pattern} {line}");
        }
        for (pattern, line) in [
            ("the run goes on", "the run goes on and on"),
            ("loss …", "a loss 1.5"),
            ("…w2 …gone", "w1 gone"),
            ("…gone", "gone w2"),
        ] {
            assert!(!matches(pattern, line), "{pattern} {line}");
        }
    }

    #[test]
    fn what_a_command_prints_is_looked_for_among_other_lines_and_in_order() {
        let Some(Act::Command(two)) =
            acts("\n```console\n$ coordinator status\nfirst …\nsecond\n```\n").pop()
        else {
            panic!("a command")
        };
        assert!(two.is_shown_by("before\n first 1\nbetween\nsecond\n"));
        assert!(!two.is_shown_by("second\nfirst 1\n"));
        assert!(!two.is_shown_by("first 1\n"));
    }
}
