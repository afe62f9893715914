//! PyTorch for comparison: `tests/bench/python/ddp_gpt.py`, alone and over gloo through the same emulated
//! link.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use longhaul_emulator::tun::{SideConfig, TunError, TunPair};
use longhaul_emulator::{Link, LinkConfig};
use longhaul_tests::interrupt;

use crate::kit::checkout;
use crate::kit::clock::now;
use crate::kit::stats::mean;

/// A Python with torch.
pub struct Python {
    path: PathBuf,
    text: tempfile::NamedTempFile,
}

/// A method of training on two ranks, as arguments of the script.
pub type Mode<'a> = &'a [&'a str];

/// The script's options before the mode: the model and its training. Empty: the model of `gpt`.
pub type Options<'a> = &'a [String];

/// Both directions of a link.
pub fn links(link: &LinkConfig) -> Result<[Link; 2]> {
    Ok([Link::new("a-b", link.clone(), 1)?, Link::new("b-a", link.clone(), 2)?])
}

const SIDES: [(&str, &str, &str); 2] =
    [("longhaul-a", "10.77.0.1/24", "10.77.0.1"), ("longhaul-b", "10.77.0.2/24", "10.77.0.2")];

/// Steps before the clock starts.
pub const WARM_UP_STEPS: usize = 4;

/// Polling interval of the ranks.
const POLL: Duration = Duration::from_millis(200);

/// Returns the Python of `LONGHAUL_PYTHON`, or `python3`; `None` if it cannot import torch.
pub fn find() -> Option<Python> {
    let path = PathBuf::from(std::env::var_os("LONGHAUL_PYTHON").unwrap_or_else(|| "python3".into()));
    let imports = Command::new(&path).args(["-c", "import torch"]).stderr(Stdio::null()).status();
    if !imports.is_ok_and(|status| status.success()) {
        return None;
    }
    Some(Python { path, text: text().ok()? })
}

/// Returns the example's text, decompressed.
fn text() -> Result<tempfile::NamedTempFile> {
    let bytes = zstd::decode_all(std::fs::File::open(checkout::text())?)?;
    let mut file = tempfile::NamedTempFile::new()?;
    file.write_all(&bytes)?;
    Ok(file)
}

impl Python {
    /// Returns the seconds per step of two processes that train in parallel without exchange.
    pub fn local(&self, options: Options<'_>, steps: usize) -> Result<f64> {
        let all = WARM_UP_STEPS + steps;
        let rank = || Rank::start(self.script(Command::new(&self.path), options).arg("local"));
        let times = watch([rank()?, rank()?], Duration::MAX, |times| times.len() >= all)?;
        mean_after_warm_up(times.get(..all).unwrap_or(&times))
    }

    /// Returns the seconds of each step of two ranks across the link, until `enough` or after `limit`.
    /// `None`: this machine permits no TUN devices.
    pub fn across(
        &self,
        links: &[Link; 2],
        options: Options<'_>,
        mode: Mode<'_>,
        limit: Duration,
        enough: impl Fn(&[f64]) -> bool,
    ) -> Result<Option<Vec<f64>>> {
        let sides = SIDES.map(|(netns, address, _)| SideConfig::new(netns, address));
        let [a, b] = sides;
        let [there, back] = links.clone();
        let pair = match TunPair::start(&a?, &b?, there, back) {
            Ok(pair) => pair,
            Err(TunError::Unavailable { .. }) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let rank = |rank: usize| {
            let mut inside = Command::new("ip");
            inside.args(["netns", "exec", SIDES[rank].0]).arg(&self.path);
            let mut command = self.script(inside, options);
            command.args(mode).args(["--rank", &rank.to_string(), "--world", "2", "--interface", "wan"]);
            Rank::start(command.args(["--master", &format!("{}:29500", SIDES[0].2)]))
        };
        let times = watch([rank(0)?, rank(1)?], limit, enough)?;
        drop(pair);
        Ok(Some(times))
    }

    /// Returns the script with an unreachable number of steps, unless the options set one.
    fn script(&self, mut command: Command, options: Options<'_>) -> Command {
        command.arg(checkout::file("tests/bench/python/ddp_gpt.py")).arg("--data").arg(self.text.path());
        command.args(["--batch", "8", "--threads", "1", "--steps", "1000000", "--each-step"]);
        command.args(options);
        command
    }
}

/// Returns the mean of the steps after the warm-up.
pub fn mean_after_warm_up(times: &[f64]) -> Result<f64> {
    mean(times.get(WARM_UP_STEPS..).unwrap_or_default()).context("PyTorch made no steps")
}

/// Returns the seconds of each step that both have made, as means of the two.
fn watch(mut ranks: [Rank; 2], limit: Duration, enough: impl Fn(&[f64]) -> bool) -> Result<Vec<f64>> {
    let began = now();
    loop {
        interrupt::check()?;
        // Checked before the output: the script may end as soon as that is enough.
        let ended = [ranks[0].child.try_wait()?, ranks[1].child.try_wait()?];
        let [a, b] = ranks.each_ref().map(Rank::times);
        let both: Vec<f64> = a.into_iter().zip(b).map(|(a, b)| f64::midpoint(a, b)).collect();
        if enough(&both) || began.elapsed() > limit {
            return Ok(both);
        }
        if let Some(status) = ended.into_iter().flatten().next() {
            ensure!(!status.success(), "the PyTorch script ended before enough steps");
            anyhow::bail!("the PyTorch script ended with {status}");
        }
        // Polls, as another process's output does not wake this one.
        std::thread::park_timeout(POLL);
    }
}

/// A process of the script. Dropping it kills it.
struct Rank {
    child: Child,
    times: Arc<Mutex<Vec<f64>>>,
}

impl Rank {
    fn start(command: &mut Command) -> Result<Self> {
        let mut child = command.stdout(Stdio::piped()).spawn().context("start python")?;
        let stdout = child.stdout.take().context("python has no standard output")?;
        let times = Arc::default();
        let ours = Arc::clone(&times);
        std::thread::spawn(move || collect(stdout, &ours));
        Ok(Self { child, times })
    }

    fn times(&self) -> Vec<f64> {
        self.times.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The script prints an object with the key `step_s` after each step.
fn collect(stdout: ChildStdout, times: &Mutex<Vec<f64>>) {
    for line in BufReader::new(stdout).lines().map_while(Result::ok) {
        let figures: serde_json::Value = serde_json::from_str(&line).unwrap_or_default();
        if let Some(step_s) = figures["step_s"].as_f64() {
            times.lock().unwrap_or_else(PoisonError::into_inner).push(step_s);
        }
    }
}
