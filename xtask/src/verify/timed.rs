//! Durations of tests, read from the output of their harness.

use std::fmt::Write as _;

use crate::table;

/// Tests in the closing table.
const SLOWEST: usize = 10;

/// A test and its program.
#[derive(Debug, Clone, PartialEq)]
struct Test {
    name: String,
    program: String,
    seconds: f64,
}

/// The finished tests.
#[derive(Debug, Default)]
pub struct Timed {
    /// The current program.
    program: String,
    tests: Vec<Test>,
    failed: Vec<String>,
}

impl Timed {
    /// Reads a line of `cargo test -- --report-time`.
    pub fn read(&mut self, line: &str) {
        let line = line.trim_end();
        if let Some(program) = line.trim_start().strip_prefix("Running ") {
            self.begin(program);
            return;
        }
        // Several packages have programs of the same name.
        if let Some(package) = line.strip_prefix("tests of ") {
            if package.replace('-', "_") != self.program {
                self.program = format!("{} of {package}", self.program);
            }
            return;
        }
        // Cargo's closing list of programs: a killed program named no test.
        if line.trim_start().starts_with("`-p ") {
            self.failed.push(line.trim().to_owned());
        }
        let Some((name, outcome)) = line.strip_prefix("test ").and_then(|rest| rest.split_once(" ... "))
        else {
            return;
        };
        if outcome.starts_with("FAILED") {
            self.failed.push(format!("{}: {name}", self.program));
        }
        // `ok <0.123s>`
        let seconds = outcome.rsplit_once('<').and_then(|(_, time)| time.strip_suffix("s>")?.parse().ok());
        if let Some(seconds) = seconds {
            self.tests.push(Test { name: name.to_owned(), program: self.program.clone(), seconds });
        }
    }

    /// Reads `tests/integration/main.rs (target/debug/deps/integration-0123456789abcdef)`.
    fn begin(&mut self, program: &str) {
        let path = program.rsplit_once('(').map_or(program, |(_, path)| path.trim_end_matches(')'));
        let file = path.rsplit('/').next().unwrap_or(path);
        let name = file.rsplit_once('-').map_or(file, |(name, _)| name);
        name.clone_into(&mut self.program);
    }

    /// Adds the results of another cargo call.
    pub fn add(&mut self, other: Self) {
        self.tests.extend(other.tests);
        self.failed.extend(other.failed);
    }

    /// Adds a failure other than a test.
    pub fn fail(&mut self, what: String) {
        self.failed.push(what);
    }

    /// Whether anything failed.
    pub fn has_failures(&self) -> bool {
        !self.failed.is_empty()
    }

    /// Returns a line for each failed test and program.
    pub fn failures(&self) -> String {
        self.failed.iter().fold(String::new(), |mut text, name| {
            // Writing to a string cannot fail.
            let _ = write!(text, "\n  {name}");
            text
        })
    }

    /// Returns tables of the slowest tests and of their programs.
    pub fn tables(&self) -> String {
        let mut tests: Vec<&Test> = self.tests.iter().collect();
        tests.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
        let mut slowest = vec![["slowest tests", "program", "time"].map(String::from).to_vec()];
        slowest.extend(
            tests
                .iter()
                .take(SLOWEST)
                .map(|test| vec![test.name.clone(), test.program.clone(), format!("{:.1} s", test.seconds)]),
        );
        let mut programs: Vec<(&str, usize, f64)> = Vec::new();
        for test in &self.tests {
            match programs.iter_mut().find(|(name, ..)| *name == test.program) {
                Some((_, count, seconds)) => {
                    *count += 1;
                    *seconds += test.seconds;
                }
                None => programs.push((&test.program, 1, test.seconds)),
            }
        }
        let mut sums = vec![["program", "tests", "sum of times"].map(String::from).to_vec()];
        sums.extend(programs.iter().map(|(name, count, seconds)| {
            vec![(*name).to_owned(), count.to_string(), format!("{seconds:.1} s")]
        }));
        format!("{}\n{}", table::render(&slowest), table::render(&sums))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PRINTED: &str = "     Running unittests src/lib.rs (target/debug/deps/longhaul_proto-0af1)\n\
        tests of longhaul-proto\n\
        running 2 tests\n\
        test codec::quick ... ok <0.001s>\n\
        test codec::slow ... ok <12.500s>\n\
        test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 12.50s\n\
        \u{20}    Running tests/run/main.rs (target/debug/deps/run-9e2b)\n\
        tests of longhaul-tests\n\
        test pipelines::breaks ... FAILED <3.250s>\n\
        test later ... ignored, nightly: covered by pipelines::breaks\n\
        error: 1 target failed:\n\
        \u{20}   `-p longhaul-tests --test run`\n";

    #[test]
    fn the_slowest_tests_come_first_and_programs_are_summed_up() {
        let mut timed = Timed::default();
        PRINTED.lines().for_each(|line| timed.read(line));
        let tables = timed.tables();
        let lines: Vec<Vec<&str>> = tables.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[2], ["codec::slow", "longhaul_proto", "12.5", "s"], "{tables}");
        assert_eq!(lines[3], ["pipelines::breaks", "run", "of", "longhaul-tests", "3.2", "s"], "{tables}");
        assert!(lines.contains(&vec!["longhaul_proto", "2", "12.5", "s"]), "{tables}");
        assert!(lines.contains(&vec!["run", "of", "longhaul-tests", "1", "3.2", "s"]), "{tables}");
    }

    #[test]
    fn failures_are_named_with_their_program() {
        let mut timed = Timed::default();
        PRINTED.lines().for_each(|line| timed.read(line));
        assert_eq!(
            timed.failures(),
            "\n  run of longhaul-tests: pipelines::breaks\n  `-p longhaul-tests --test run`"
        );
    }
}
