//! The doctor's report and its format.

use std::io::{self, Write};

/// Width of the longest check name.
const CHECK_WIDTH: usize = "coordinator".len();

/// The result of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Finding {
    /// The name of the check.
    pub check: &'static str,
    /// The verdict.
    pub verdict: Verdict,
    /// The observation.
    pub says: String,
    /// The remedy. Empty: none needed.
    pub remedy: String,
}

/// The verdict of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// No problem.
    Fine,
    /// Not applicable.
    NotLookedAt,
    /// A worker would run, but poorly.
    Warn,
    /// A worker could not train.
    Fail,
}

impl Finding {
    pub(super) fn fine(check: &'static str, says: impl Into<String>) -> Self {
        Self { check, verdict: Verdict::Fine, says: says.into(), remedy: String::new() }
    }

    pub(super) fn not_looked_at(check: &'static str, says: impl Into<String>) -> Self {
        Self { check, verdict: Verdict::NotLookedAt, says: says.into(), remedy: String::new() }
    }

    pub(super) fn warn(check: &'static str, says: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { check, verdict: Verdict::Warn, says: says.into(), remedy: remedy.into() }
    }

    pub(super) fn fail(check: &'static str, says: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { check, verdict: Verdict::Fail, says: says.into(), remedy: remedy.into() }
    }
}

impl Verdict {
    fn word(self) -> &'static str {
        match self {
            Self::Fine => "ok",
            Self::NotLookedAt => "-",
            Self::Warn => "warn",
            Self::Fail => "FAIL",
        }
    }

    /// Select Graphic Rendition (ECMA-48): green, faint, yellow, bold red.
    fn colour(self) -> &'static str {
        match self {
            Self::Fine => "32",
            Self::NotLookedAt => "2",
            Self::Warn => "33",
            Self::Fail => "1;31",
        }
    }
}

/// Prints findings as they arrive, so that slow checks do not look like a hang, and counts verdicts.
pub(super) struct Report<W> {
    out: W,
    colours: bool,
    warnings: usize,
    failed: Vec<&'static str>,
}

impl<W: Write> Report<W> {
    pub(super) fn new(out: W, colours: bool) -> Self {
        Self { out, colours, warnings: 0, failed: Vec::new() }
    }

    /// Prints a finding.
    pub(super) fn tell(&mut self, finding: Finding) -> io::Result<()> {
        let Finding { check, verdict, says, remedy } = finding;
        match verdict {
            Verdict::Fine | Verdict::NotLookedAt => {}
            Verdict::Warn => self.warnings += 1,
            Verdict::Fail => self.failed.push(check),
        }
        let word = self.painted(verdict, &format!("{:>4}", verdict.word()));
        writeln!(self.out, "{word}  {check:CHECK_WIDTH$}  {says}")?;
        for line in remedy.lines() {
            writeln!(self.out, "      {:CHECK_WIDTH$}  -> {line}", "")?;
        }
        self.out.flush()
    }

    /// Prints the overall verdict. Returns whether a worker could train.
    pub(super) fn conclude(mut self) -> io::Result<bool> {
        let warned = match self.warnings {
            0 => String::new(),
            1 => "; one warning".to_owned(),
            warnings => format!("; {warnings} warnings"),
        };
        let (verdict, says) = if !self.failed.is_empty() {
            (
                Verdict::Fail,
                format!("A worker would not run on this machine: {}{warned}.", self.failed.join(", ")),
            )
        } else if self.warnings > 0 {
            (Verdict::Warn, format!("A worker would run on this machine{warned}."))
        } else {
            (Verdict::Fine, "A worker would run on this machine.".to_owned())
        };
        let says = self.painted(verdict, &says);
        writeln!(self.out, "\n{says}")?;
        self.out.flush()?;
        Ok(self.failed.is_empty())
    }

    fn painted(&self, verdict: Verdict, text: &str) -> String {
        if self.colours { format!("\x1b[{}m{text}\x1b[0m", verdict.colour()) } else { text.to_owned() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn printed(colours: bool, findings: &[Finding]) -> (String, bool) {
        let mut bytes = Vec::new();
        let mut report = Report::new(&mut bytes, colours);
        for finding in findings {
            report.tell(finding.clone()).unwrap();
        }
        let runs = report.conclude().unwrap();
        (String::from_utf8(bytes).unwrap(), runs)
    }

    #[test]
    fn a_finding_is_a_line_with_its_remedy_below() {
        let findings = [
            Finding::fine("libtorch", "2.11.0"),
            Finding::warn("buffers", "small", "raise them\nfor good"),
            Finding::not_looked_at("token", "not given"),
            Finding::fail("coordinator", "nowhere", ""),
        ];
        let (text, runs) = printed(false, &findings);
        assert_eq!(
            text,
            "  ok  libtorch     2.11.0\n\
             warn  buffers      small\n                   -> raise them\n                   -> for good\n   \
             -  token        not given\n\
             FAIL  coordinator  nowhere\n\n\
             A worker would not run on this machine: coordinator; one warning.\n"
        );
        assert!(!runs);
    }

    #[test]
    fn a_worker_runs_in_spite_of_warnings() {
        assert_eq!(printed(false, &[]), ("\nA worker would run on this machine.\n".to_owned(), true));
        let (text, runs) =
            printed(false, &[Finding::warn("clock", "off", ""), Finding::warn("upload", "slow", "")]);
        assert!(runs && text.ends_with("A worker would run on this machine; 2 warnings.\n"), "{text}");
    }

    #[test]
    fn colours_change_no_words() {
        let findings = [Finding::fail("udp", "silence", "open the port")];
        let (plain, _) = printed(false, &findings);
        let (coloured, _) = printed(true, &findings);
        assert_eq!(coloured.replace("\x1b[1;31m", "").replace("\x1b[0m", ""), plain);
        assert_ne!(coloured, plain);
    }
}
