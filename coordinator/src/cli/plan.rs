//! `coordinator plan`.

use std::path::Path;

use anyhow::Context as _;
use longhaul_common::config::{ParallelConfig, RunConfig};
use longhaul_common::model::ModelSpec;
use longhaul_common::pipeline::PipelineSchedule;
use longhaul_common::units::Bytes;
use serde_json::json;

use super::up::read_config;
use super::whole_run::in_words;
use super::{CliError, LogFormat, PlanArgs, print};
use longhaul_plan::{
    Candidate, Choice, DeviceId, Divisions, Plan, Prediction, Rival, Topology, Warmups, WholeRun, Workload,
    choose_among, choose_with_groups, parallel_of, phases, shape, whole_run, why,
};

pub(super) const HELP: &str = "\
Predict speed, memory and traffic of a run on given machines and links, before renting any.

Prints the part of the model that each worker would have, and predicts seconds per step, tokens per
second, memory and bytes between sites. A file describes the machines and the links:

    [[site]]
    name = \"home\"
    workers = 4           # identical ones; a further [[site]] table for each other site
    tflops = 40           # sustained in training, for each worker
    memory_gib = 24       # of the GPU itself if gpu = true
    gpu = true
    host_memory_gib = 64  # of the machine, for each of its GPUs; default: no limit
    [wan]                 # between all pairs of sites
    mbit = 200            # in each direction, for all pairs at the same time
    rtt_ms = 40
    loss_percent = 0.1    # packets that are lost and sent again; default: none
    [[link]]              # between two sites with another link
    between = [\"home\", \"lab\"]
    mbit = 1000
    rtt_ms = 5

examples/machines.toml is a complete file.";

pub(super) fn run(args: &PlanArgs) -> Result<(), CliError> {
    let mut config = read_config(&args.config, LogFormat::Text)?;
    let topology = read_topology(&args.topology)?;
    let spec = spec_of(&config)?;
    let (topology, choice) = chosen(&config, topology, &spec)?;
    let warmups = warmups_of(&config, &spec, &topology, &choice)?;
    config.decide_redundancy(warmups.as_ref().is_some_and(Warmups::is_redundant));
    let whole = whole_run_of(&config, &spec, &topology, &choice)?;
    if args.json {
        let mut json = as_json(&topology, &choice);
        json["whole_run"] = json!(whole);
        json["redundant_warmup"] = json!(config.sync.is_redundant_in(true));
        print(&format!("{json:#}"));
    } else {
        describe(&config, &spec, &topology, &choice).iter().for_each(|line| print(line));
        in_words(&whole).iter().for_each(|line| print(line));
        warmups.iter().for_each(|warmups| print(&sentence(&warmups.told())));
    }
    Ok(())
}

/// Both warm-ups of whole models, where the plan decides between them: for workers that compute alike.
fn warmups_of(
    config: &RunConfig,
    spec: &ModelSpec,
    topology: &Topology,
    choice: &Choice,
) -> Result<Option<Warmups>, CliError> {
    let is_whole = choice.tensor == 1 && choice.best.0.pipeline.ranks == 1;
    if !(is_whole && config.is_redundancy_open()) || topology.sites.len() < 2 {
        return Ok(None);
    }
    let warmups = Warmups::predict(topology, config, spec, &choice.best.0);
    Ok(Some(warmups.context("predict the warm-up")?))
}

/// As a sentence of its own, behind the phases.
fn sentence(words: &str) -> String {
    let mut letters = words.chars();
    let first = letters.next().into_iter().flat_map(char::to_uppercase);
    format!("{}{}.", first.collect::<String>(), letters.as_str())
}

/// From the first step to the last, with the warm-up.
fn whole_run_of(
    config: &RunConfig,
    spec: &ModelSpec,
    topology: &Topology,
    choice: &Choice,
) -> Result<WholeRun, CliError> {
    // As for the choice, how the model is cut does not change what a step asks for.
    let parallel = ParallelConfig { tensor: choice.tensor, ..config.parallel.joined() };
    let work = Workload::of(&RunConfig { parallel, ..config.clone() }, spec);
    let whole = whole_run(topology, &work, &choice.best.0, &phases(config, spec));
    Ok(whole.context("predict the whole run")?)
}

/// The best plan, and the machines that it is for: where it has tensor groups, or they are written (`parallel.tensor`), groups of them. Each of those that are written has a copy, or, where
/// `parallel.stages` is written too, so many of them have one.
fn chosen(config: &RunConfig, topology: Topology, spec: &ModelSpec) -> Result<(Topology, Choice), CliError> {
    let members = config.parallel.tensor;
    if members == 1 {
        let divisions = Divisions::of(config, spec).in_any_parts(config.model.kind);
        return Ok(choose_with_groups(topology, &divisions, false).context("plan the run")?);
    }
    let groups = topology.in_groups(members).map_err(|_| {
        let reason = format!("parallel.tensor = {members}: no site of the topology has that many workers, and a tensor group stays within one site");
        CliError::Misuse(reason)
    })?;
    let (stages, count) = (config.parallel.stages as usize, groups.devices().count());
    if count < stages {
        let reason = format!(
            "parallel.stages = {stages}, with parallel.tensor = {members}: the topology has {count} groups of {members} workers of one site, and a copy of the model needs {stages}"
        );
        return Err(CliError::Misuse(reason));
    }
    let is_written = |rows: &[Vec<DeviceId>]| rows.iter().all(|row| row.len() == stages);
    let choice = choose_among(&groups, &Workload::of(config, spec), is_written).context("plan the run")?;
    Ok((groups, choice))
}

pub(super) fn read_topology(path: &Path) -> Result<Topology, CliError> {
    let shown = path.display();
    let text = std::fs::read_to_string(path)
        .map_err(|error| CliError::Misuse(format!("read the topology {shown}: {error}")))?;
    Topology::parse(&text).map_err(|error| CliError::Misuse(format!("{shown}: {error}")))
}

/// The model: its vocabulary is known here only where the tokenizer is none or the configuration says so.
pub(super) fn spec_of(config: &RunConfig) -> Result<ModelSpec, CliError> {
    let vocabulary = config.vocabulary().ok_or_else(|| {
        let reason = "the tokenizer is a file on the workers' machines: set model.vocabulary to at least its number of entries";
        CliError::Misuse(reason.to_owned())
    })?;
    ModelSpec::of(config, vocabulary).map_err(|error| CliError::Misuse(error.to_string()))
}

fn describe(config: &RunConfig, spec: &ModelSpec, topology: &Topology, choice: &Choice) -> Vec<String> {
    let mut lines = vec![
        format!(
            "{}: {:.2} million parameters in {} blocks, {} devices on {} sites",
            config.run.name,
            spec.parameter_count() as f64 / 1e6,
            spec.head() + 1,
            topology.devices().count(),
            topology.sites.len()
        ),
        format!("of the divisions examined, {} fit and {} do not", choice.considered, choice.unfit),
        String::new(),
        format!(
            "  {:<22}{:>9}{:>12}{:>9}{:>12}{:>16}",
            "replicas × ranks", "s/step", "tokens/s", "bubble", "memory", "sites, each way"
        ),
    ];
    lines.push(row("→", &choice.best));
    lines.extend(choice.runners_up.iter().map(|candidate| row(" ", candidate)));
    lines.push(String::new());
    if choice.tensor > 1 {
        lines.push(format!(
            "Each device above is a tensor group of {} workers (parallel.tensor); memory is that of its first member, which holds the most.",
            choice.tensor
        ));
    }
    lines.push(why(choice));
    if let Some(Rival { members, stages, step_s }) = choice.rival.filter(|_| choice.tensor == 1) {
        let parts = if stages > 1 { format!(", in {stages} parts,") } else { String::new() };
        lines.push(format!(
            "With layers shared by tensor groups of {members}{parts} a step would take {step_s:.3} s."
        ));
    }
    let (plan, prediction) = &choice.best;
    let (used, all) = (plan.replicas.iter().map(Vec::len).sum::<usize>(), topology.devices().count());
    let around = prediction.host_memory_bytes.iter().copied().fold(0.0, f64::max);
    if around > 0.0 {
        lines.push(format!(
            "Memory is device memory. Exchanges and checkpoints also need up to {} of host memory per GPU.",
            Bytes(around as u64)
        ));
    }
    if used < all {
        lines.push(format!(
            "{} of {all} devices are unused: no plan examined is faster with them.",
            all - used
        ));
    }
    if plan.pipeline.schedule == PipelineSchedule::ZeroBubble {
        lines.push(
            "“in two”: backward passes are split in two (`parallel.schedule = \"zero-bubble\"`).".to_owned(),
        );
    }
    if plan.recompute {
        lines.push(
            "“again”: activations are recomputed for the backward pass (`train.recompute = true`)."
                .to_owned(),
        );
    }
    if plan.pipeline.ranks > 1 {
        lines.push(String::new());
        lines.extend(places(topology, plan));
        lines.push(String::new());
        lines.push("To run it so, write in run.toml:".to_owned());
        lines.extend(table(topology, choice));
    } else if choice.tensor > 1 && config.parallel.tensor == 1 {
        lines.push("To run it so, write in run.toml:".to_owned());
        lines.extend(["[parallel]".to_owned(), format!("tensor = {}", choice.tensor)]);
    }
    lines
}

fn row(mark: &str, (plan, prediction): &Candidate) -> String {
    let largest = prediction.memory_bytes.iter().copied().fold(0.0, f64::max);
    format!(
        "{mark} {:<22}{:>9}{:>12}{:>9}{:>12}{:>16}",
        shape(plan),
        format!("{:.3}", prediction.step_s),
        format!("{:.0}", prediction.tokens_per_s),
        format!("{:.1} %", 100.0 * prediction.bubble),
        Bytes(largest as u64).to_string(),
        format!("{}/step", Bytes(between_sites(prediction) as u64))
    )
}

fn between_sites(prediction: &Prediction) -> f64 {
    prediction.links.iter().map(|load| load.pipeline_bytes + load.sync_bytes).sum()
}

/// Who has what.
fn places(topology: &Topology, plan: &Plan) -> Vec<String> {
    let ranks = plan.pipeline.ranks as usize;
    let blocks = |rank: usize| {
        let stages = plan.stages.iter().skip(rank).step_by(ranks);
        stages.map(|stage| format!("{}–{}", stage.start, stage.end - 1)).collect::<Vec<_>>().join(" and ")
    };
    let sites = |rank: usize| {
        let names = plan.replicas.iter().map(|replica| topology.sites[replica[rank].site].name.as_str());
        names.collect::<Vec<_>>().join(", ")
    };
    (0..ranks).map(|rank| format!("rank {rank}: blocks {}, at {}", blocks(rank), sites(rank))).collect()
}

/// The plan as `[parallel]` has it.
fn table(topology: &Topology, choice: &Choice) -> Vec<String> {
    let ParallelConfig { stages, tensor, schedule, chunks, in_flight, blocks, sites, .. } =
        parallel_of(topology, choice, &ParallelConfig::undivided());
    let mut lines = vec!["[parallel]".to_owned(), format!("stages = {stages}")];
    if tensor > 1 {
        lines.push(format!("tensor = {tensor}"));
    }
    lines.push(format!("schedule = {}", json!(schedule)));
    if chunks > 1 {
        lines.push(format!("chunks = {chunks}"));
    }
    if !in_flight.is_empty() {
        lines.push(format!("in_flight = {in_flight:?}"));
    }
    lines.push(format!("blocks = {blocks:?}"));
    if !sites.is_empty() {
        lines.push(format!("sites = {sites:?}"));
    }
    lines
}

fn as_json(topology: &Topology, choice: &Choice) -> serde_json::Value {
    let candidate = |(plan, prediction): &Candidate| {
        let name = |site: usize| topology.sites[site].name.as_str();
        let device = |id: &DeviceId| json!({ "site": name(id.site), "device": id.device });
        let replicas: Vec<Vec<_>> =
            plan.replicas.iter().map(|replica| replica.iter().map(device).collect()).collect();
        let links = prediction.links.iter().map(|load| {
            json!({
                "between": [name(load.between.0), name(load.between.1)],
                "pipeline_bytes": load.pipeline_bytes,
                "sync_bytes": load.sync_bytes,
            })
        });
        json!({
            "replicas": replicas,
            "stages": plan.stages.iter().map(|stage| [stage.start, stage.end]).collect::<Vec<_>>(),
            "schedule": plan.pipeline.schedule,
            "chunks": plan.pipeline.chunks,
            "micro_batches": plan.pipeline.micro_batches,
            "in_flight": plan.pipeline.in_flight,
            "recompute": plan.recompute,
            "step_s": prediction.step_s,
            "compute_s": prediction.compute_s,
            "sync_s": prediction.sync_s,
            "coding_s": prediction.coding_s,
            "tokens_per_s": prediction.tokens_per_s,
            "bubble": prediction.bubble,
            "memory_bytes": prediction.memory_bytes,
            "host_memory_bytes": prediction.host_memory_bytes,
            "links": links.collect::<Vec<_>>(),
        })
    };
    json!({
        "best": candidate(&choice.best),
        "runners_up": choice.runners_up.iter().map(candidate).collect::<Vec<_>>(),
        "considered": choice.considered,
        "unfit": choice.unfit,
        "tensor": choice.tensor,
        "why": why(choice),
    })
}

#[cfg(test)]
mod tests {
    use longhaul_run_toml::{Gpt2, RunToml};

    use super::super::file_in_help;
    use super::*;

    fn choice(topology: &str, config: &RunToml) -> (RunConfig, Topology, Choice) {
        let (config, topology) = (parsed(config), Topology::parse(topology).unwrap());
        let (topology, choice) = chosen(&config, topology, &spec_of(&config).unwrap()).unwrap();
        (config, topology, choice)
    }

    #[test]
    fn the_file_that_the_help_shows_is_a_topology() {
        let lab = "\n[[site]]\nname = \"lab\"\nworkers = 1\ntflops = 1\nmemory_gib = 8\n";
        let topology = Topology::parse(&(file_in_help(HELP) + lab)).unwrap();
        assert_eq!(topology.devices().count(), 5);
    }

    fn small() -> RunToml {
        let run = RunToml::new("small").workers(4).steps(9).batch(64).set("train.micro_batch", 8);
        run.gpt2(Gpt2 { layers: 4, width: 128, heads: 4, context: 128 })
    }

    fn parsed(run: &RunToml) -> RunConfig {
        RunConfig::parse(&run.to_string()).unwrap()
    }

    /// With the table that is told in words.
    fn with_table(told: &str) -> RunConfig {
        let (_, table) = told.split_once("write in run.toml:\n").unwrap();
        parsed(&small().lines("parallel", table.strip_prefix("[parallel]").unwrap()))
    }

    fn sites(memory_gib: f64) -> String {
        let site = |name: &str| {
            format!("[[site]]\nname = \"{name}\"\nworkers = 2\ntflops = 0.05\nmemory_gib = {memory_gib}\n")
        };
        format!("{}{}[wan]\nmbit = 100\nrtt_ms = 50\n", site("home"), site("away"))
    }

    #[test]
    fn a_plan_is_told_in_words_and_in_numbers() {
        let (config, topology, choice) = choice(&sites(1.0), &small());
        let told = describe(&config, &spec_of(&config).unwrap(), &topology, &choice).join("\n");
        assert!(told.contains("→ 4 × 1 ") && told.contains("Each device holds the whole model"), "{told}");
        assert!(!told.contains("[parallel]"), "{told}");
        let json = as_json(&topology, &choice);
        assert_eq!(json["best"]["replicas"][3][0]["site"], "away");
        assert_eq!(json["best"]["step_s"], choice.best.1.step_s);
    }

    #[test]
    fn a_plan_for_gpus_says_what_it_takes_of_the_machines_around_them() {
        let gpus = sites(1.0).replace("memory_gib = 1", "gpu = true\nhost_memory_gib = 0.5\nmemory_gib = 1");
        let (config, topology, choice) = choice(&gpus, &small());
        let told = describe(&config, &spec_of(&config).unwrap(), &topology, &choice).join("\n");
        let bytes = choice.best.1.host_memory_bytes[0];
        assert!(told.contains(&format!("need up to {} of host memory", Bytes(bytes as u64))), "{told}");
        assert_eq!(as_json(&topology, &choice)["best"]["host_memory_bytes"][0], bytes);
    }

    #[test]
    fn the_examples_make_a_plan() {
        let (config, machines) =
            (include_str!("../../../examples/demo.toml"), include_str!("../../../examples/machines.toml"));
        let (_, _, choice) = choice(machines, &config.parse().unwrap());
        assert_eq!((choice.best.0.replicas.len(), choice.best.0.pipeline.ranks), (4, 1));
    }

    #[test]
    fn a_plan_with_parts_says_who_has_which_and_how_to_run_it() {
        let (config, topology, choice) = choice(&sites(0.055), &small());
        let told = describe(&config, &spec_of(&config).unwrap(), &topology, &choice).join("\n");
        assert!(told.contains("rank 0: blocks 0–"), "{told}");
        let run = with_table(&told);
        let (plan, _) = &choice.best;
        assert_eq!(run.parallel.stages, plan.pipeline.ranks);
        assert_eq!(run.parallel.pipeline(plan.pipeline.micro_batches).tasks(), plan.pipeline.tasks());
        let parts = spec_of(&run).unwrap().parts(&run.parallel, 128).unwrap();
        assert_eq!(parts[0].chunks[0], plan.stages[0]);
    }

    #[test]
    fn groups_that_are_written_are_planned_with_as_devices() {
        let run = small().set("parallel.tensor", 2);
        let (config, machines) = (parsed(&run), Topology::parse(&sites(1.0)).unwrap());
        let spec = spec_of(&config).unwrap();
        let (groups, choice) = chosen(&config, machines, &spec).unwrap();
        assert_eq!((choice.best.0.replicas.len(), choice.best.0.pipeline.ranks), (2, 1));
        let told = describe(&config, &spec, &groups, &choice).join("\n");
        assert!(told.contains("→ 2 × 1 ") && told.contains("tensor group of 2"), "{told}");
        let alone =
            Topology::parse("[[site]]\nname = \"a\"\nworkers = 2\ntflops = 1.0\nmemory_gib = 1.0\n").unwrap();
        let stages = parsed(&run.set("parallel.stages", 2));
        let refused = chosen(&stages, alone, &spec).unwrap_err().to_string();
        assert!(refused.contains("parallel.stages = 2") && refused.contains("has 1 groups"), "{refused}");
        let lonely =
            Topology::parse("[[site]]\nname = \"a\"\nworkers = 1\ntflops = 1.0\nmemory_gib = 1.0\n").unwrap();
        let refused = chosen(&config, lonely, &spec).unwrap_err().to_string();
        assert!(refused.contains("parallel.tensor = 2: no site"), "{refused}");
    }

    /// One part on each site, between which goes a residual stream of each of two members.
    #[test]
    fn stages_of_groups_that_are_written_are_planned_with_and_can_be_run() {
        let run = small().lines("parallel", "stages = 2\ntensor = 2");
        let (config, topology, choice) = choice(&sites(1.0), &run);
        let (plan, prediction) = &choice.best;
        assert_eq!((plan.replicas.len(), plan.pipeline.ranks, choice.tensor), (1, 2, 2));
        let told = describe(&config, &spec_of(&config).unwrap(), &topology, &choice).join("\n");
        assert!(told.contains("cut in 2, of which each part is shared by a tensor group of 2"), "{told}");
        let run = with_table(&told);
        assert_eq!((run.parallel.stages, run.parallel.tensor, run.replicas()), (2, 2, 1));
        let parts = spec_of(&run).unwrap().parts(&run.parallel, 128).unwrap();
        assert_eq!((&parts[1].chunks[0], &parts[2].chunks[0]), (&plan.stages[0], &plan.stages[1]));
        assert!(prediction.sums_s > 0.0 && prediction.sums_s < prediction.compute_s);
    }

    #[test]
    fn a_tokenizer_that_is_a_file_needs_its_size_said() {
        let run = small().set("data.tokenizer", "t.json");
        let error = spec_of(&parsed(&run)).unwrap_err().to_string();
        assert!(error.contains("model.vocabulary"), "{error}");
        let run = run.set("model.vocabulary", 32_000);
        assert_eq!(spec_of(&parsed(&run)).unwrap().vocabulary, 32_000);
    }
}
