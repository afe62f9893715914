//! What a PyTorch user has: `tests/python/ddp_gpt.py`, alone and over gloo through the same emulated link.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use longhaul_tests::wan::tun::{SideConfig, TunError, TunPair};
use longhaul_tests::wan::{Link, LinkConfig};

/// A python that has torch.
pub struct Python {
    path: PathBuf,
    text: tempfile::NamedTempFile,
}

const SIDES: [(&str, &str, &str); 2] =
    [("longhaul-a", "10.77.0.1/24", "10.77.0.1"), ("longhaul-b", "10.77.0.2/24", "10.77.0.2")];

/// The python named by `LONGHAUL_PYTHON`, else `python3`; none when it cannot import torch.
pub fn find() -> Option<Python> {
    let path = PathBuf::from(std::env::var_os("LONGHAUL_PYTHON").unwrap_or_else(|| "python3".into()));
    let imports = Command::new(&path).args(["-c", "import torch"]).stderr(Stdio::null()).status();
    if !imports.is_ok_and(|status| status.success()) {
        return None;
    }
    Some(Python { path, text: text().ok()? })
}

/// The example's text, unpacked.
fn text() -> Result<tempfile::NamedTempFile> {
    let packed = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/data/bible.en.txt.zst");
    let bytes = zstd::decode_all(std::fs::File::open(packed)?)?;
    let mut file = tempfile::NamedTempFile::new()?;
    file.write_all(&bytes)?;
    Ok(file)
}

impl Python {
    /// Seconds a step of two processes that train side by side and do not talk.
    pub fn local(&self, steps: u32) -> Result<f64> {
        let start = || {
            let mut command = self.script(Command::new(&self.path), steps);
            command.arg("local").stdout(Stdio::piped()).spawn().context("start python")
        };
        let both = [start()?, start()?];
        let times = both.map(|child| step_s(child.wait_with_output()?));
        let [a, b] = times;
        Ok(f64::midpoint(a?, b?))
    }

    /// Seconds a step of two ranks across the link. None: this machine grants no TUN devices.
    pub fn across(&self, link: &LinkConfig, hook: &str) -> Result<Option<f64>> {
        let sides = SIDES.map(|(netns, address, _)| SideConfig::new(netns, address));
        let [a, b] = sides;
        let links = (Link::new("a-b", link.clone(), 1)?, Link::new("b-a", link.clone(), 2)?);
        let pair = match TunPair::start(&a?, &b?, links.0, links.1) {
            Ok(pair) => pair,
            Err(TunError::Unavailable { .. }) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let rank = |rank: usize| {
            let mut inside = Command::new("ip");
            inside.args(["netns", "exec", SIDES[rank].0]).arg(&self.path);
            let mut command = self.script(inside, 8);
            command.args(["ddp", "--rank", &rank.to_string(), "--world", "2", "--interface", "wan"]);
            command.args(["--hook", hook, "--master", &format!("{}:29500", SIDES[0].2)]);
            command.stdout(Stdio::piped()).spawn().context("start python in a namespace")
        };
        let both = [rank(0)?, rank(1)?];
        let [a, b] = both.map(|child| step_s(child.wait_with_output()?));
        drop(pair);
        Ok(Some(f64::midpoint(a?, b?)))
    }

    fn script(&self, mut command: Command, steps: u32) -> Command {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("python/ddp_gpt.py");
        command.arg(script).arg("--data").arg(self.text.path());
        command.args(["--batch", "8", "--threads", "1", "--steps", &steps.to_string()]);
        command
    }
}

fn step_s(output: std::process::Output) -> Result<f64> {
    ensure!(output.status.success(), "the PyTorch script ended with {}", output.status);
    let words = String::from_utf8_lossy(&output.stdout);
    let line = words.lines().last().context("the PyTorch script printed nothing")?;
    let figures: serde_json::Value = serde_json::from_str(line).context("read the script's JSON line")?;
    figures["s_per_step"].as_f64().context("the script's line has no s_per_step")
}
