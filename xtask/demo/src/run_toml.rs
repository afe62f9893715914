//! The demo's `run.toml`: the example with the user's options.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use longhaul_run_toml::RunToml;
use toml::Value;

use crate::cluster::SITES;
use crate::folder::Folder;
use crate::{Options, Plan};

/// Writes the run's configuration into the demo's folder.
pub fn write(examples: &Path, options: &Options, folder: &Folder) -> Result<()> {
    let examples = std::path::absolute(examples).with_context(|| format!("find {}", examples.display()))?;
    let template = examples.join("demo.toml");
    let text = fs::read_to_string(&template).with_context(|| format!("read {}", template.display()))?;
    let run = text.parse().with_context(|| format!("parse {}", template.display()))?;
    let run = adapted(run, &examples, options.workers_per_site * SITES, options.steps)
        .with_context(|| format!("adapt {}", template.display()))?;
    let run = match options.plan {
        Plan::Data => kept_whole(run),
        Plan::Hybrid => cut_in_two(run),
    };
    let path = folder.run_toml();
    run.write(&path).with_context(|| format!("write {}", path.display()))
}

fn adapted(run: RunToml, examples: &Path, workers: u32, steps: Option<u32>) -> Result<RunToml> {
    // The example's path counts from the folder above the examples; each worker runs in a folder of its own.
    let path = run.get("data.path").and_then(Value::as_str).context("data.path is missing")?;
    let path = examples.parent().unwrap_or(examples).join(path);
    let path = path.to_str().context("the path of the examples is not UTF-8")?;
    // A step's sequences are divided evenly among the workers.
    let batch = run.get("train.batch").and_then(Value::as_integer).context("train.batch is missing")?;
    let even = i64::from(workers);
    let run = run.workers(workers).set("data.path", path).batch((batch + even - 1) / even * even);
    Ok(match steps {
        Some(steps) => run.steps(steps),
        None => run,
    })
}

/// Every worker has the whole model, without measuring first whether that is best.
fn kept_whole(run: RunToml) -> RunToml {
    run.table("parallel", "plan = \"fixed\"")
}

/// Copies on two workers each, with so many micro-batches in a step that neither has to wait long for the other.
fn cut_in_two(run: RunToml) -> RunToml {
    run.table("parallel", "stages = 2").set("train.micro_batch", 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_is_adapted_to_the_users_wishes() {
        let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
        let text = fs::read_to_string(examples.join("demo.toml")).unwrap();
        let run = adapted(text.parse().unwrap(), &examples, 6, Some(10)).unwrap();
        let number = |run: &RunToml, key: &str| run.get(key).and_then(Value::as_integer);
        assert_eq!((number(&run, "run.workers"), number(&run, "run.steps")), (Some(6), Some(10)));
        assert_eq!(number(&run, "train.batch").map(|batch| batch % 6), Some(0));
        assert!(Path::new(run.get("data.path").and_then(Value::as_str).unwrap()).is_file());
        let whole = kept_whole(run.clone());
        assert_eq!(whole.get("parallel.plan").and_then(Value::as_str), Some("fixed"));
        assert_eq!(number(&cut_in_two(whole), "parallel.stages"), Some(2));
    }
}
