use super::*;

fn parse(parallel: &str) -> Result<RunConfig, ConfigError> {
    RunConfig::parse(&format!(
        "[run]\nname = \"r\"\nworkers = 4\nsteps = 9\n[model]\nkind = \"gpt2\"\nlayers = 2\nwidth = 8\nheads = 1\n\
         context = 8\n[data]\npath = \"none\"\nsequence_length = 8\n[train]\nbatch = 8\nmicro_batch = 1\n[parallel]\n{parallel}"
    ))
}

fn key_of(parallel: &str) -> String {
    let error = parse(parallel).expect_err(parallel).to_string();
    error.split_whitespace().find(|word| word.contains('.')).unwrap_or_default().to_owned()
}

#[test]
fn each_worker_has_the_whole_model_unless_it_is_said_otherwise() {
    let config = parse("").unwrap().parallel;
    assert_eq!(config, ParallelConfig::default());
    assert!(!config.is_pipelined() && config.pipeline(4).tasks().is_ok());
}

#[test]
fn the_coordinator_decides_unless_it_is_written() {
    let is_open = |parallel: &str| parse(parallel).unwrap().is_plan_open();
    assert!(is_open("") && is_open("plan = \"auto\"\nboundary = \"bf16\""));
    assert!(!is_open("plan = \"fixed\"") && !is_open("stages = 2"));
    let mut config = parse("").unwrap();
    config.run.workers = 1;
    assert!(!config.is_plan_open());
    let config = RunConfig { parallel: ParallelConfig::undivided(), ..parse("").unwrap() };
    assert!(!RunConfig::parse(&config.to_toml().unwrap()).unwrap().is_plan_open());
}

#[test]
fn a_copy_of_the_model_has_as_many_ranks_as_its_tensor_group_has_members() {
    let config = parse("tensor = 1").unwrap();
    assert!(!config.parallel.is_divided() && config.is_plan_open());
    let text = "[run]\nname = \"r\"\nworkers = 4\nsteps = 9\n[model]\nkind = \"gpt2\"\nlayers = 2\nwidth = 8\nheads = 4\n\
                context = 8\n[data]\npath = \"none\"\nsequence_length = 8\n[train]\nbatch = 8\n";
    let of = |lines: &str| RunConfig::parse(&format!("{text}{lines}"));
    let config = of("[parallel]\ntensor = 2").unwrap();
    assert_eq!(
        (config.parallel.ranks_per_replica(), config.replicas(), config.is_plan_open()),
        (2, 2, false)
    );
    assert!(config.parallel.is_divided() && !config.parallel.is_pipelined());
    let refusal = |lines: &str| of(lines).unwrap_err().to_string();
    for (lines, words) in [
        ("[parallel]\ntensor = 0", "must divide run.workers = 4"),
        ("[parallel]\ntensor = 3", "must divide run.workers = 4"),
        (
            "[privacy]\nclip = 1.0\nnoise = 1.0\ndelta = 1e-5\n[parallel]\ntensor = 2",
            "does not go with [privacy]",
        ),
        (
            "[secure_aggregation]\nrange = 1.0\n[parallel]\ntensor = 2",
            "does not go with [secure_aggregation]",
        ),
    ] {
        let message = refusal(lines);
        assert!(message.starts_with("parallel.tensor = ") && message.contains(words), "{message}");
    }
    let message = parse("tensor = 2").unwrap_err().to_string();
    assert!(message.contains("must divide 1"), "one head cannot be divided: {message}");
}

/// Later members of a group have no part of an embedding or a head.
#[test]
fn stages_of_tensor_groups_have_so_many_times_as_many_ranks_and_a_layer_each() {
    let of = |parallel: &str| {
        let text = "[run]\nname = \"r\"\nworkers = 8\nsteps = 9\n[model]\nkind = \"gpt2\"\nlayers = 2\nwidth = 8\nheads = 4\n\
                    context = 8\n[data]\npath = \"none\"\nsequence_length = 8\n[train]\nbatch = 8\n[parallel]\n";
        RunConfig::parse(&format!("{text}{parallel}"))
    };
    let config = of("stages = 2\ntensor = 2\nblocks = [2, 2]\nsites = [\"a\", \"b\"]").unwrap();
    assert_eq!((config.parallel.ranks_per_replica(), config.replicas()), (4, 2));
    assert_eq!([0, 1, 2, 3].map(|rank| config.parallel.place_of(rank)), [(0, 0), (0, 1), (1, 0), (1, 1)]);
    for (parallel, words) in [
        ("stages = 4\ntensor = 4", "parallel.stages × parallel.tensor = 16"),
        ("stages = 4\ntensor = 2", "has a layer at least, and model.layers is 2"),
        ("stages = 2\nchunks = 2\nschedule = \"interleaved\"\ntensor = 2", "has a layer at least"),
        ("stages = 2\ntensor = 2\nblocks = [1, 3]", "has a layer at least"),
        ("stages = 2\ntensor = 2\nblocks = [3, 1]", "has a layer at least"),
    ] {
        let message = of(parallel).unwrap_err().to_string();
        assert!(message.starts_with("parallel.") && message.contains(words), "{message}");
    }
}

#[test]
fn a_pipeline_has_what_is_configured() {
    let config = parse("stages = 2\nin_flight = [3, 1]\nsites = [\"a\", \"b\"]").unwrap().parallel;
    let pipeline = config.pipeline(4);
    assert_eq!((pipeline.ranks, pipeline.in_flight), (2, vec![3, 1]));
    let config = parse("stages = 2\nchunks = 2\nschedule = \"interleaved\"").unwrap().parallel;
    assert_eq!(config.pipeline(4).stages(), 4);
}

#[test]
fn differences_are_sent_in_four_bits_where_they_are_asked_for() {
    assert_eq!(parse("stages = 2").unwrap().parallel.differences, None);
    let config = parse("stages = 2\n[parallel.differences]\nmemory_mib = 64").unwrap();
    let differences = Differences { values: ValueFormat::Int4, memory_mib: 64 };
    assert_eq!(config.parallel.differences, Some(differences));
    assert_eq!(RunConfig::parse(&config.to_toml().unwrap()).unwrap().parallel, config.parallel);
}

#[test]
fn who_is_between_two_others_remembers_both_ways() {
    let bytes = |parallel: &str, rank| parse(parallel).unwrap().parallel.remembered_bytes(rank) >> 20;
    let four = "stages = 4\n[parallel.differences]\nmemory_mib = 3";
    assert_eq!([0, 1, 2, 3].map(|rank| bytes(four, rank)), [3, 6, 6, 3]);
    let two = "stages = 2\nchunks = 2\nschedule = \"interleaved\"\n[parallel.differences]\nmemory_mib = 3";
    assert_eq!([bytes(two, 0), bytes(two, 1), bytes("stages = 2", 0)], [6, 6, 0]);
}

#[test]
fn a_cut_is_as_it_is_written() {
    assert_eq!(parse("stages = 2\nblocks = [1, 3]").unwrap().parallel.blocks, [1, 3]);
}

#[test]
fn what_cannot_be_is_refused_by_its_key() {
    for (parallel, key) in [
        ("stages = 0", "parallel.stages"),
        ("stages = 3", "parallel.stages"),
        ("stages = 2\nchunks = 0", "parallel.chunks"),
        ("stages = 2\nchunks = 2", "parallel.chunks"),
        ("stages = 2\nchunks = 3\nschedule = \"interleaved\"", "parallel.stages"),
        ("stages = 2\nsites = [\"a\"]", "parallel.sites"),
        ("stages = 2\nsites = [\"a\", \"\"]", "parallel.sites"),
        ("stages = 2\nin_flight = [2, 0]", "parallel.in_flight"),
        ("stages = 2\nin_flight = [2]", "parallel.in_flight"),
        ("stages = 2\nblocks = [4]", "parallel.blocks"),
        ("stages = 2\nblocks = [4, 0]", "parallel.blocks"),
        ("stages = 2\nblocks = [2, 3]", "parallel.blocks"),
        ("stages = 2\nboundary = \"1bit\"", "parallel.boundary"),
        ("stages = 2\nboundary_keep = 0", "parallel.boundary_keep"),
        ("stages = 2\nboundary_keep = 4097", "parallel.boundary_keep"),
        ("plan = \"fixed\"\nboundary_keep = 4095", "parallel.boundary_keep"),
        ("plan = \"fixed\"\n[parallel.differences]\nmemory_mib = 9", "parallel.differences.memory_mib"),
        ("stages = 2\n[parallel.differences]\nmemory_mib = 0", "parallel.differences.memory_mib"),
        (
            "stages = 2\n[parallel.differences]\nmemory_mib = 9\nvalues = \"2bit\"",
            "parallel.differences.values",
        ),
        ("stages = 2\nin_flight = [2, 1]\nschedule = \"gpipe\"", "parallel.in_flight"),
    ] {
        assert!(key_of(parallel).contains(key), "{parallel}: {}", parse(parallel).unwrap_err());
    }
    assert!(key_of("stages = 2\n[secure_aggregation]\nrange = 1.0\n").contains("parallel.stages"));
}
