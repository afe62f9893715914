//! `coordinator fork`

use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow};
use clap::Args;
use longhaul_checkpoint::{ForkPoint, fork};
use longhaul_common::config::{ImageConfig, RunConfig};
use longhaul_common::id::Round;
use longhaul_proto::checkpoint::folder::{self, Found};
use longhaul_proto::control::message::CheckpointOffer;

use super::up::read_config;
use super::{CliError, LogFormat, print};
use crate::runtime::{Clock, begin_as, differences_in, new_run};
use crate::store::{Founding, Store, StoreError};
use longhaul_run::{Fork, RunState};

pub(super) const HELP: &str = "\
Begin a run from a checkpoint of another one, with its moments and another configuration.

Learning rate, schedule, data, batch, steps, workers, synchronisation and division of the model may differ.
The model, its tokenizer, classes, size of images and trained part, and the optimiser may not. The new run begins at
step 0, or with --keep-step at the checkpoint's step: schedule and data then go on from there.

Stop the other run's coordinator first. For weights alone, no fork is needed: set model.from.

    coordinator fork longhaul-state lower-rate --config lower-rate.toml --dir checkpoints
    coordinator up --config lower-rate.toml --state-dir lower-rate
    worker join … --checkpoint-dir checkpoints";

/// Keys that must not change: weights and moments would not fit.
const FIXED: [&str; 4] = ["data.tokenizer", "train.lora", "train.unfrozen_parameters", "train.optimiser"];

/// `coordinator fork`
#[derive(Clone, Debug, Args)]
pub struct ForkArgs {
    /// State directory of the run to begin from.
    #[arg(value_name = "STATE_DIR")]
    pub from: PathBuf,
    /// State directory of the new run. It must not hold a run.
    #[arg(value_name = "NEW_STATE_DIR")]
    pub to: PathBuf,
    /// Configuration of the new run.
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
    /// Folder with checkpoints of all parts of the model. Default: the other run's `checkpoint.dir`. The new run's checkpoint is written beside them.
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// The checkpoint before this round. Default: the newest.
    #[arg(long)]
    pub round: Option<u64>,
    /// The checkpoint with the lowest held-out loss (`evaluate.keep_best`).
    #[arg(long, conflicts_with = "round")]
    pub best: bool,
    /// Go on at the checkpoint's step, in the learning rate's schedule and in the data.
    #[arg(long)]
    pub keep_step: bool,
}

pub(super) fn run(args: &ForkArgs) -> Result<(), CliError> {
    let config = read_config(&args.config, LogFormat::Text)?;
    let (founding, state) = read_parent(&args.from)?;
    let parent = RunConfig::parse(&founding.config).context("read the other run's configuration")?;
    check((&founding.config, &parent), &config)?;
    if args.keep_step {
        check_samples(&founding, &config)?;
    }
    if Store::is_in(&args.to).map_err(anyhow::Error::new)? {
        let text = format!("{} holds a run already: name another state directory", args.to.display());
        return Err(CliError::Misuse(text));
    }
    let dir = args.dir.clone().unwrap_or(parent.checkpoint.dir);
    let parts = find(args, &dir, &state)?;
    let manifest = parts.first().context("no parts")?.manifest().map_err(anyhow::Error::msg)?;
    let step = manifest.next_step;
    let first_round = if args.keep_step { round_at(&config, step)? } else { Round(0) };
    let next_step = if args.keep_step { step } else { 0 };
    let point = ForkPoint { run: new_run().map_err(anyhow::Error::new)?, next_round: first_round, next_step };
    let has_moments = fork(&parts, &dir, point).context("copy the checkpoint")?;
    let mut new_state = RunState::forked(point.run, &config, Fork { of: founding.run, step, first_round });
    if args.keep_step && !new_state.continue_samples(&config, &state, manifest.next_round) {
        print(
            "the other run's books of samples do not reach back to this checkpoint: samples that it left out by then, as a worker was late or had left, stay out and count as trained on",
        );
    }
    let begun = Store::open(&args.to)
        .map_err(Into::into)
        .and_then(|store| begin_as(&store, &config, new_state, Clock::start().unix_s()));
    let folder = dir.join(point.run.to_string());
    if let Err(error) = begun {
        // The first error counts.
        let _ = std::fs::remove_dir_all(&folder);
        return Err(error.into());
    }
    let moments = if has_moments { "" } else { "; it has no moments, so they begin at zero" };
    print(&format!(
        "run {} begins from step {step} of run {}{moments}\nits checkpoint is {}: start at least one worker with --checkpoint-dir of the folder around it\nstart it with: coordinator up --config {} --state-dir {}",
        point.run,
        founding.run,
        folder.display(),
        args.config.display(),
        args.to.display()
    ));
    Ok(())
}

fn read_parent(from: &Path) -> Result<(Founding, RunState), CliError> {
    let none = || {
        CliError::Misuse(format!(
            "{} holds no run: name the other run's state directory; without one, model.from takes the weights alone",
            from.display()
        ))
    };
    let refused = |error: StoreError| anyhow::Error::new(error).context("read the other run");
    if !Store::is_in(from).map_err(refused)? {
        return Err(none());
    }
    let store = Store::open(from).map_err(refused)?;
    let founding = store.founding().map_err(refused)?.ok_or_else(none)?;
    let (state, _) = store.load().map_err(refused)?.ok_or_else(none)?;
    Ok((founding, state))
}

/// Refuses a configuration that the weights and moments do not fit.
fn check((before, parent): (&str, &RunConfig), config: &RunConfig) -> Result<(), CliError> {
    let text = config.to_toml().context("write the configuration")?;
    let is_fixed = |key: &str| FIXED.contains(&key) || key.starts_with("model.") && key != "model.from";
    let mut differences = differences_of_classes(parent, config);
    differences.extend(Some(differences_in(before, &text, is_fixed)).filter(|others| !others.is_empty()));
    if differences.is_empty() {
        return Ok(());
    }
    let differences = differences.join(", ");
    Err(CliError::Misuse(format!(
        "the checkpoint does not fit this configuration: {differences}. Undo the change, or begin from the weights alone where they fit, with model.from"
    )))
}

/// Returns the differences of data that change what the model's values are for: its classes, and the size of its images.
fn differences_of_classes(before: &RunConfig, after: &RunConfig) -> Vec<String> {
    let values_of = |config: &RunConfig| {
        let labels = config.data.classification.as_ref().map(|of| format!("{:?}", of.labels));
        let image = config.data.image.as_ref();
        let of_image = |of: fn(&ImageConfig) -> u32| image.map(|image| of(image).to_string());
        [
            ("classification.labels", labels),
            ("image.channels", of_image(|image| image.channels)),
            ("image.height", of_image(|image| image.height)),
            ("image.width", of_image(|image| image.width)),
            ("image.classes", of_image(|image| image.classes)),
        ]
    };
    let shown = |value: Option<String>| value.unwrap_or_else(|| "unset".to_owned());
    let pairs = values_of(before).into_iter().zip(values_of(after));
    let differing = pairs.filter(|(before, after)| before != after);
    let told =
        |((key, before), (_, after))| format!("data.{key} was {} and is {}", shown(before), shown(after));
    differing.map(told).collect()
}

/// Refuses a configuration that draws other samples: a run that goes on in the data would repeat some, and leave others out.
fn check_samples(founding: &Founding, config: &RunConfig) -> Result<(), CliError> {
    let text = config.to_toml().context("write the configuration")?;
    let is_drawn = |key: &str| {
        key == "train.batch" || key == "run.seed" || key.starts_with("data.") && key != "data.tokenizer"
    };
    let differences = differences_in(&founding.config, &text, is_drawn);
    if differences.is_empty() {
        return Ok(());
    }
    Err(CliError::Misuse(format!(
        "--keep-step goes on in the same samples, and this configuration has others: {differences}. Undo the change, or leave the option out"
    )))
}

/// Finds the parts of the wanted checkpoint.
fn find(args: &ForkArgs, dir: &Path, state: &RunState) -> Result<Vec<Found>, CliError> {
    let best = || {
        state.evaluations.kept().map(|kept| kept.next_round.0).ok_or_else(|| {
            CliError::Misuse("the run has no best checkpoint (evaluate.keep_best): name a --round".to_owned())
        })
    };
    let round = if args.best { Some(best()?) } else { args.round };
    let mut found = folder::find(dir).with_context(|| format!("look through {}", dir.display()))?;
    found.retain(|of| of.run == state.run && round.is_none_or(|round| of.next_round.0 == round));
    let (standing, undone) = found.into_iter().partition::<Vec<_>, _>(|of| stands(of, state));
    // Newest first. A model that was cut anew has checkpoints of several divisions.
    let mut groups: Vec<Vec<Found>> = Vec::new();
    for of in standing {
        let same = groups.iter_mut().find(|group| {
            group.first().is_some_and(|one| (one.next_round, one.parts) == (of.next_round, of.parts))
        });
        match same {
            Some(group) => group.push(of),
            None => groups.push(vec![of]),
        }
    }
    let is_complete = |group: &[Found]| {
        group.first().is_some_and(|one| (0..one.parts).all(|rank| group.iter().any(|of| of.rank == rank)))
    };
    let passed = groups.iter().take_while(|group| !is_complete(group)).count();
    if passed < groups.len() {
        for of in groups.iter().take(passed).filter_map(|group| group.first()) {
            print(&format!(
                "the checkpoint before round {} lacks parts in {}: an older one is taken",
                of.next_round.0,
                dir.display()
            ));
        }
        return Ok(groups.swap_remove(passed));
    }
    // The error of an incomplete one names the part.
    if !groups.is_empty() {
        return Ok(groups.swap_remove(0));
    }
    let which = match round {
        None => "no checkpoint".to_owned(),
        Some(round) => format!("no checkpoint before round {round}"),
    };
    let undone = match undone.first() {
        Some(of) => format!(" (the run has undone that before round {})", of.next_round.0),
        None => String::new(),
    };
    Err(anyhow!(
        "{} has {which} of run {}{undone}: name the folder of a worker, or of `checkpoint.to` fetched by one, with --dir",
        dir.display(),
        state.run
    )
    .into())
}

/// Whether the run went on from a checkpoint, and not from an earlier round.
fn stands(of: &Found, state: &RunState) -> bool {
    // A damaged one is refused by name when it is copied.
    let Ok(manifest) = of.manifest() else { return true };
    let offer = CheckpointOffer {
        next_round: of.next_round,
        state_hash: [0; 32],
        private: false,
        rank: of.rank,
        parts: of.parts,
        generation: manifest.generation,
    };
    !state.lineage.rewinds.have_undone(&offer)
}

/// The round of the new configuration that begins with this step.
fn round_at(config: &RunConfig, step: u64) -> Result<Round, CliError> {
    let schedule = config.round_schedule();
    if step >= schedule.steps {
        let text = format!(
            "--keep-step: the checkpoint is at step {step}, and run.steps = {}: raise it",
            schedule.steps
        );
        return Err(CliError::Misuse(text));
    }
    let round = schedule.round_of(step);
    let steps = schedule.steps_of(round);
    if steps.start == step {
        return Ok(round);
    }
    Err(CliError::Misuse(format!(
        "--keep-step: step {step} of the checkpoint is within a round of this configuration (steps {} to {}): choose another --round or sync.every, or leave the option out",
        steps.start, steps.end
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(model: &str, data: &str) -> RunConfig {
        let run = "[run]\nname = \"a\"\nworkers = 2\nsteps = 9";
        RunConfig::parse(&format!("{run}\n[model]\n{model}\n[data]\n{data}\n")).unwrap()
    }

    /// The answer for a fork of `before`.
    fn refusal(before: &RunConfig, after: &RunConfig) -> Option<String> {
        let text = before.to_toml().unwrap();
        check((&text, before), after).err().map(|error| error.to_string())
    }

    #[test]
    fn other_classes_of_texts_are_refused_by_name_and_other_columns_are_not() {
        let model = "kind = \"bert\"\nlayers = 1\nwidth = 8\nheads = 1\ncontext = 8";
        let of = |labels: &str, more: &str| {
            let data = "sources = [{ path = \"a.jsonl\" }]\ntokenizer = \"t.json\"\nsequence_length = 8";
            config(model, &format!("{data}\n[data.classification]\nlabels = [{labels}]\n{more}"))
        };
        let before = of("\"bad\", \"good\"", "");
        assert_eq!(refusal(&before, &of("\"bad\", \"good\"", "text = \"review\"")), None);
        for labels in ["\"good\", \"bad\"", "\"bad\", \"fine\""] {
            let refused = refusal(&before, &of(labels, "")).unwrap();
            let text = "data.classification.labels was [\"bad\", \"good\"] and is [";
            assert!(refused.contains(text), "{refused}");
        }
    }

    #[test]
    fn other_sizes_or_classes_of_images_are_refused_by_name_and_another_shift_is_not() {
        let of = |image: &str| {
            let data = "sources = [{ path = \"a-idx3-ubyte\", labels = \"l\" }]\n[data.image]";
            config("kind = \"mlp\"", &format!("{data}\nchannels = 1\n{image}"))
        };
        let before = of("height = 28\nwidth = 28\nclasses = 10");
        assert_eq!(refusal(&before, &of("height = 28\nwidth = 28\nclasses = 10\nshift = 2")), None);
        let refused = refusal(&before, &of("height = 28\nwidth = 32\nclasses = 12")).unwrap();
        let text = "data.image.width was 28 and is 32, data.image.classes was 10 and is 12";
        assert!(refused.contains(text), "{refused}");
    }
}
