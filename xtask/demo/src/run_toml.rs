//! The demo's `run.toml`: the example with the user's wishes put in.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use toml::{Table, Value};

use crate::cluster::SITES;
use crate::folder::Folder;
use crate::{Options, Plan};

/// Writes the run's configuration into the demo's folder.
pub fn write(examples: &Path, options: &Options, folder: &Folder) -> Result<()> {
    let examples = std::path::absolute(examples).with_context(|| format!("find {}", examples.display()))?;
    let template = examples.join("demo.toml");
    let text = fs::read_to_string(&template).with_context(|| format!("read {}", template.display()))?;
    let mut config: Table = text.parse().with_context(|| format!("parse {}", template.display()))?;
    adapt(&mut config, &examples, options.workers_per_site * SITES, options.steps)
        .with_context(|| format!("adapt {}", template.display()))?;
    match options.plan {
        Plan::Data => keep_whole(&mut config),
        Plan::Hybrid => {
            cut_in_two(&mut config).with_context(|| format!("adapt {}", template.display()))?;
        }
    }
    let path = folder.run_toml();
    fs::write(&path, config.to_string()).with_context(|| format!("write {}", path.display()))
}

fn adapt(config: &mut Table, examples: &Path, workers: u32, steps: Option<u32>) -> Result<()> {
    let workers = i64::from(workers);
    let run = section(config, "run")?;
    run.insert("workers".into(), Value::Integer(workers));
    if let Some(steps) = steps {
        run.insert("steps".into(), Value::Integer(i64::from(steps)));
    }
    // The example's path counts from the folder above the examples; each worker runs in a folder of its own.
    let data = section(config, "data")?;
    let path = data.get("path").and_then(Value::as_str).context("data.path is missing")?;
    let path = examples.parent().unwrap_or(examples).join(path);
    let path = path.to_str().context("the path of the examples is not UTF-8")?.to_owned();
    data.insert("path".into(), Value::String(path));
    // A step's sequences are divided evenly among the workers.
    let train = section(config, "train")?;
    let batch = train.get("batch").and_then(Value::as_integer).context("train.batch is missing")?;
    train.insert("batch".into(), Value::Integer((batch + workers - 1) / workers * workers));
    Ok(())
}

/// Every worker has the whole model, without measuring first whether that is best.
fn keep_whole(config: &mut Table) {
    let parallel = Table::from_iter([("plan".to_owned(), Value::String("fixed".to_owned()))]);
    config.insert("parallel".into(), Value::Table(parallel));
}

/// Copies on two workers each, with so many micro-batches in a step that neither has to wait long for the other.
fn cut_in_two(config: &mut Table) -> Result<()> {
    let parallel = Table::from_iter([("stages".to_owned(), Value::Integer(2))]);
    config.insert("parallel".into(), Value::Table(parallel));
    section(config, "train")?.insert("micro_batch".into(), Value::Integer(2));
    Ok(())
}

fn section<'a>(config: &'a mut Table, name: &str) -> Result<&'a mut Table> {
    config.get_mut(name).and_then(Value::as_table_mut).with_context(|| format!("section [{name}] is missing"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_is_adapted_to_the_users_wishes() {
        let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
        let text = fs::read_to_string(examples.join("demo.toml")).unwrap();
        let mut config: Table = text.parse().unwrap();
        adapt(&mut config, &examples, 6, Some(10)).unwrap();
        assert_eq!(config["run"]["workers"].as_integer(), Some(6));
        assert_eq!(config["run"]["steps"].as_integer(), Some(10));
        assert_eq!(config["train"]["batch"].as_integer().map(|batch| batch % 6), Some(0));
        assert!(Path::new(config["data"]["path"].as_str().unwrap()).is_file());
        keep_whole(&mut config);
        assert_eq!(config["parallel"]["plan"].as_str(), Some("fixed"));
        cut_in_two(&mut config).unwrap();
        assert_eq!(config["parallel"]["stages"].as_integer(), Some(2));
    }
}
