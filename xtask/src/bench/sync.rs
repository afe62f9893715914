//! The options of `cargo xtask bench sync` alone.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Args;

/// Options passed on to the benchmark.
#[derive(Args)]
#[command(next_help_heading = "Options of `sync`")]
pub struct SyncOptions {
    /// Only methods whose name contains this.
    #[arg(long, value_name = "NAME")]
    only: Option<String>,
    /// Rates of the links of `whole` and `speed`, in Mbit/s.
    #[arg(long, value_name = "LIST")]
    rates: Option<String>,
    /// Steps of the runs of `whole`: 1500,6000.
    #[arg(long, value_name = "LIST")]
    steps: Option<String>,
    /// Append figures to this file, and skip those already in it: an interrupted run continues.
    #[arg(long, value_name = "FILE")]
    results: Option<PathBuf>,
    /// Start no case that might end later.
    #[arg(long)]
    hours: Option<f64>,
    /// Measure nothing; plot this file.
    #[arg(long, value_name = "FILE", requires = "out")]
    plot: Option<PathBuf>,
    /// Folder of the plots.
    #[arg(long, value_name = "FOLDER", requires = "plot")]
    out: Option<PathBuf>,
}

impl SyncOptions {
    /// Whether to plot without measuring.
    pub fn is_plot(&self) -> bool {
        self.plot.is_some()
    }

    /// Returns the arguments for the benchmark, which runs in the checkout's root.
    ///
    /// # Errors
    /// Returns an error if a path is not UTF-8, or if a relative path has no working directory.
    pub fn arguments(&self) -> Result<Vec<String>> {
        let path = |path: &Option<PathBuf>| path.as_deref().map(absolute).transpose();
        let values = [
            ("--only", self.only.clone()),
            ("--rates", self.rates.clone()),
            ("--steps", self.steps.clone()),
            ("--results", path(&self.results)?),
            ("--hours", self.hours.map(|hours| hours.to_string())),
            ("--plot", path(&self.plot)?),
            ("--out", path(&self.out)?),
        ];
        let given = values.into_iter().filter_map(|(name, value)| Some([name.to_owned(), value?]));
        Ok(given.flatten().collect())
    }
}

fn absolute(path: &Path) -> Result<String> {
    let absolute = std::path::absolute(path).with_context(|| format!("find {}", path.display()))?;
    let text = absolute.to_str().with_context(|| format!("{} is not UTF-8", absolute.display()))?;
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: SyncOptions,
    }

    fn arguments(words: &[&str]) -> Vec<String> {
        Line::try_parse_from(words).unwrap().options.arguments().unwrap()
    }

    #[test]
    fn what_is_given_is_handed_on_and_paths_count_from_the_users_folder() {
        assert_eq!(arguments(&["x"]), Vec::<String>::new());
        assert_eq!(
            arguments(&["x", "--only", "auto", "--hours", "2.5", "--results", "/tmp/r.jsonl"]),
            ["--only", "auto", "--results", "/tmp/r.jsonl", "--hours", "2.5"]
        );
        assert_eq!(
            arguments(&["x", "--steps", "1500", "--rates", "1,10"]),
            ["--rates", "1,10", "--steps", "1500"]
        );
        let here = std::env::current_dir().unwrap();
        assert_eq!(arguments(&["x", "--results", "r"])[1], here.join("r").to_str().unwrap());
    }

    #[test]
    fn a_plot_needs_a_folder() {
        assert!(Line::try_parse_from(["x", "--plot", "r.jsonl"]).is_err());
    }
}
