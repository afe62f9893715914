//! The table of families in the book, made from the fixtures that are compared with transformers.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use longhaul_checkpoint::describe_model;
use longhaul_common::config::{
    FrozenFormat, LoraConfig, ModelKind, RunConfig, SparseBackwardConfig, SparseMode,
};
use serde_json::Value;

use crate::{decoders, encoders};

/// Names of models that people know, by kind, in the order of the table.
const MODELS: [(ModelKind, &str); 17] = [
    (ModelKind::Gpt2, "GPT-2"),
    (ModelKind::Llama, "Llama 2 and 3, TinyLlama, SmolLM2"),
    (ModelKind::Mistral, "Mistral"),
    (ModelKind::Qwen2, "Qwen2, Qwen2.5"),
    (ModelKind::Qwen3, "Qwen3"),
    (ModelKind::SmolLm3, "SmolLM3"),
    (ModelKind::Phi3, "Phi-3, Phi-4, Phi-4-mini"),
    (ModelKind::Olmo2, "OLMo 2"),
    (ModelKind::Gemma2, "Gemma 2"),
    (ModelKind::Gemma3, "Gemma 3, its text models"),
    (ModelKind::Qwen3Moe, "Qwen3 with experts (30B-A3B, 235B-A22B)"),
    (ModelKind::Mixtral, "Mixtral"),
    (ModelKind::Olmoe, "OLMoE"),
    (ModelKind::Bert, "BERT, MiniLM"),
    (ModelKind::Roberta, "RoBERTa"),
    (ModelKind::XlmRoberta, "XLM-RoBERTa"),
    (ModelKind::Electra, "ELECTRA's generator"),
];

const RUN: &str = "[run]\nname = \"a\"\nworkers = 2\nsteps = 9\n[model]\nkind = \"gpt2\"\nlayers = 2\nwidth = 16\nheads = 4\ncontext = 32\nvocabulary = 48\n[data]\npath = \"a\"\nsequence_length = 8\n[parallel]\nplan = \"fixed\"\n";

/// Returns a run of the kind's first fixture.
fn run_of(folder: Option<&PathBuf>) -> RunConfig {
    let mut run = RunConfig::parse(RUN).unwrap();
    if let Some(folder) = folder {
        run.model = describe_model(folder).unwrap().model;
    }
    if run.model.kind.is_encoder() {
        run.data.masking = Some(Default::default());
        run.data.tokenizer = "tokenizer.json".to_owned();
    }
    run
}

fn is_accepted(run: &RunConfig, change: impl FnOnce(&mut RunConfig)) -> bool {
    let mut changed = run.clone();
    change(&mut changed);
    changed.check().is_ok()
}

fn adapters(run: &RunConfig) -> &'static str {
    let with = |targets: &[&str]| {
        let lora = LoraConfig {
            rank: 2,
            alpha: None,
            use_rslora: false,
            use_dora: false,
            dropout: 0.0,
            targets: targets.iter().map(|target| (*target).to_owned()).collect(),
            base: FrozenFormat::F32,
        };
        is_accepted(run, |run| {
            run.model.from = Some("a".to_owned());
            run.train.lora = Some(lora);
        })
    };
    told(with(&[LoraConfig::ALL_LINEAR]), || with(&["q_proj"]))
}

fn sparse(run: &RunConfig) -> &'static str {
    let with = |pattern: &str| {
        let layers = vec![pattern.to_owned()];
        let sparse = SparseBackwardConfig { keep: 0.5, mode: SparseMode::Columns, layers };
        is_accepted(run, |run| run.train.sparse_backward = Some(sparse))
    };
    told(with("*"), || with("*self_attn*"))
}

fn told(of_all: bool, of_attention: impl FnOnce() -> bool) -> &'static str {
    match of_all {
        true => "yes",
        false if of_attention() => "of attention",
        false => "no",
    }
}

/// Returns the folders of fixtures and their class, by kind.
fn fixtures() -> BTreeMap<String, (PathBuf, String)> {
    let folders =
        decoders::CASES.map(decoders::folder).into_iter().chain(encoders::CASES.map(encoders::folder));
    let mut found = BTreeMap::new();
    for folder in folders {
        let text = std::fs::read(folder.join("config.json")).unwrap();
        let config: Value = serde_json::from_slice(&text).unwrap();
        let kind = describe_model(&folder).unwrap().model.kind;
        let class = config["architectures"][0].as_str().unwrap().to_owned();
        found.entry(kind.name().to_owned()).or_insert((folder, class));
    }
    found
}

fn table() -> String {
    let mut fixtures = fixtures();
    let yes = |is_so| if is_so { "yes" } else { "no" };
    let mut lines = vec![
        "| `model.kind` | models | class of transformers | adapters | pipelines | tensor groups | sparse backward passes |".to_owned(),
        "| --- | --- | --- | --- | --- | --- | --- |".to_owned(),
    ];
    for (kind, models) in MODELS {
        let fixture = fixtures.remove(kind.name());
        // GPT-2 is compared in `pytorch.rs`.
        assert!(fixture.is_some() || kind == ModelKind::Gpt2, "{} has no fixture", kind.name());
        let (folder, class) =
            fixture.map_or((None, "GPT2LMHeadModel".to_owned()), |(folder, class)| (Some(folder), class));
        let run = run_of(folder.as_ref());
        assert_eq!(run.check(), Ok(()), "{}", kind.name());
        lines.push(format!(
            "| `{}` | {models} | `{class}` | {} | {} | {} | {} |",
            kind.name(),
            adapters(&run),
            yes(is_accepted(&run, |run| run.parallel.stages = 2)),
            yes(is_accepted(&run, |run| run.parallel.tensor = 2)),
            sparse(&run),
        ));
    }
    assert!(fixtures.is_empty(), "families that the table lacks: {:?}", fixtures.keys());
    lines.join("\n")
}

#[test]
fn the_table_of_families_in_the_book_is_that_of_the_fixtures() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/book/src/models.md");
    let page = std::fs::read_to_string(page).unwrap();
    let table = table();
    assert!(
        page.contains(&format!("\n\n{table}\n\n")),
        "the table of docs/book/src/models.md has to be:\n{table}"
    );
}
