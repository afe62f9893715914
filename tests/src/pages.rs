//! Checks a program's output for shells and for `man` with the tools that read it.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use anyhow::{Context, Result, ensure};

/// Returns the words that bash offers after these, with the program's completions.
///
/// # Errors
/// The program prints none, or bash rejects them.
pub fn completed_by_bash(program: &Path, words: &[&str]) -> Result<BTreeSet<String>> {
    let name = program.file_name().and_then(|name| name.to_str()).context("a program has a name")?;
    let script = printed(program, &["completions", "bash"])?;
    let (last, before) = words.split_last().context("words to complete")?;
    let previous = before.last().context("a program before the word")?;
    let ask = format!(
        "set -u\nCOMP_WORDS=({})\nCOMP_CWORD={}\nCOMPREPLY=()\n_{name} {name} '{last}' '{previous}'\nprintf '%s\\n' \"${{COMPREPLY[@]}}\"\n",
        words.iter().map(|word| format!("'{word}'")).collect::<Vec<_>>().join(" "),
        before.len()
    );
    // A shell without a terminal cannot set options of its completions, which is irrelevant here.
    let output = given(Command::new("bash"), &format!("compopt() {{ :; }}\n{script}\n{ask}"))?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let offered = String::from_utf8(output.stdout).context("words are UTF-8")?;
    Ok(offered.lines().filter(|word| !word.is_empty()).map(str::to_owned).collect())
}

/// Makes the installed shells parse their completions, without running them. Returns those shells.
///
/// # Errors
/// A shell finds an error.
pub fn checked_by_shells(program: &Path) -> Result<Vec<&'static str>> {
    let mut checked = Vec::new();
    for (shell, option) in [("bash", "-n"), ("zsh", "-n"), ("fish", "--no-execute")] {
        let script = printed(program, &["completions", shell])?;
        let mut command = Command::new(shell);
        command.arg(option);
        match given(command, &script) {
            Err(error) if error.downcast_ref().is_some_and(is_missing) => continue,
            output => {
                let output = output?;
                let said = String::from_utf8_lossy(&output.stderr);
                ensure!(output.status.success() && said.is_empty(), "{shell}: {said}");
            }
        }
        checked.push(shell);
    }
    Ok(checked)
}

/// Writes the manual pages to a folder and returns their names; groff, if installed, has read each without a
/// warning.
///
/// # Errors
/// They cannot be written, or groff finds an error.
pub fn manual(program: &Path, folder: &Path) -> Result<BTreeSet<String>> {
    printed(program, &["man", folder.to_str().context("a path in UTF-8")?])?;
    let mut pages = BTreeSet::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let text = std::fs::read_to_string(&path)?;
        let mut command = Command::new("groff");
        command.args(["-Kutf8", "-man", "-Tutf8", "-ww", "-z"]);
        match given(command, &text) {
            Err(error) if error.downcast_ref().is_some_and(is_missing) => {}
            output => {
                let said = output?.stderr;
                ensure!(said.is_empty(), "{}: {}", path.display(), String::from_utf8_lossy(&said));
            }
        }
        let name = path.file_name().and_then(|name| name.to_str()).context("a name in UTF-8")?;
        pages.insert(name.to_owned());
    }
    Ok(pages)
}

fn is_missing(error: &std::io::Error) -> bool {
    error.kind() == std::io::ErrorKind::NotFound
}

fn printed(program: &Path, arguments: &[&str]) -> Result<String> {
    let output = Command::new(program).args(arguments).output().context("start the program")?;
    ensure!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).context("the program prints UTF-8")
}

/// Runs a command with this input.
fn given(mut command: Command, input: &str) -> Result<Output> {
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn()?;
    let mut pipe = child.stdin.take().context("a pipe")?;
    std::thread::scope(|scope| {
        // It may write before it has read all.
        scope.spawn(move || pipe.write_all(input.as_bytes()));
        Ok(child.wait_with_output()?)
    })
}
