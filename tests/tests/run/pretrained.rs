//! Runs that start from a pretrained model, which one machine has.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use longhaul_checkpoint::{BaseModel, describe_model, open_model};
use longhaul_common::model::ModelSpec;
use longhaul_tests::cluster::binary;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::scenario::{RUN_MAX, Scenario, Setup};

/// Entries of the fixture's vocabulary.
const VOCABULARY: usize = 48;
/// Bytes of a file that goes with the model: much more than all else that a short run sends.
const LICENCE_BYTES: usize = 8 << 20;

/// A folder of a pretrained model as `save_pretrained` writes it, with tokenizer, chat template and licence.
pub struct Pretrained {
    folder: TempDir,
    text: PathBuf,
}

impl Pretrained {
    pub fn new(case: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let fixture =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../worker/tests/fixtures/decoders").join(case);
        for name in ["config.json", "model.safetensors"] {
            fs::copy(fixture.join(name), folder.path().join(name)).unwrap();
        }
        let words: Vec<String> = (0..VOCABULARY - 1).map(|word| format!("w{word}")).collect();
        let vocabulary: serde_json::Map<String, Value> = words
            .iter()
            .map(String::as_str)
            .chain(["[UNK]"])
            .zip(0..)
            .map(|(word, id)| (word.to_owned(), json!(id)))
            .collect();
        let tokenizer = json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
            "pre_tokenizer": {"type": "Whitespace"}, "post_processor": null, "decoder": null,
            "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "[UNK]"},
        });
        let beside = folder.path().join("text.txt");
        let text: Vec<&str> = (0..20_000).map(|at| words[at * at % words.len()].as_str()).collect();
        fs::write(&beside, text.join(" ")).unwrap();
        for (name, content) in [
            ("tokenizer.json", tokenizer.to_string().into_bytes()),
            (
                "chat_template.jinja",
                b"{% for message in messages %}{{ message.content }}{% endfor %}".to_vec(),
            ),
            ("generation_config.json", b"{\"max_new_tokens\": 7}".to_vec()),
            ("LICENSE", incompressible(LICENCE_BYTES)),
        ] {
            fs::write(folder.path().join(name), content).unwrap();
        }
        Self { folder, text: beside }
    }

    /// Gives it a tokenizer of small letters, a template of the usual form, and a context for sentences.
    pub fn speaks_in_letters(&self) {
        let specials = ["[UNK]", "<|im_start|>", "<|im_end|>"].map(str::to_owned).into_iter();
        let letters = ('a'..='z').chain(" \n.,?'-".chars()).map(String::from);
        let vocabulary: serde_json::Map<String, Value> =
            specials.clone().chain(letters).zip(0..).map(|(token, id)| (token, json!(id))).collect();
        let special = |(content, id): (String, u32)| {
            json!({
                "id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": true,
            })
        };
        let tokenizer = json!({
            "version": "1.0", "truncation": null, "padding": null,
            "added_tokens": specials.zip(0..).map(special).collect::<Vec<_>>(),
            "normalizer": {"type": "Lowercase"},
            "pre_tokenizer": {"type": "Split", "pattern": {"Regex": "[\\s\\S]"}, "behavior": "Isolated", "invert": false},
            "post_processor": null, "decoder": {"type": "Fuse"},
            "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "[UNK]"},
        });
        let template = "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}\
                        {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
        let mut config = config_of(self.path());
        config["max_position_embeddings"] = json!(256);
        for (name, text) in [
            ("tokenizer.json", tokenizer.to_string()),
            ("chat_template.jinja", template.to_owned()),
            ("config.json", config.to_string()),
        ] {
            fs::write(self.path().join(name), text).unwrap();
        }
    }

    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// The lines of `[model]` and `[data]`.
    fn lines(&self) -> (String, String) {
        let line = |key: &str, path: &Path| format!("{key} = \"{}\"", path.display());
        (line("from", self.path()), line("path", &self.text))
    }
}

fn incompressible(bytes: usize) -> Vec<u8> {
    let mut state = 1_u64;
    let next = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..bytes).map(next).collect()
}

/// Conversations of a random word and an answer that is always the same.
fn conversations() -> String {
    let line = |at: usize| {
        let question = format!("w{}", at * at % 40);
        let messages =
            json!([{"role": "user", "content": question}, {"role": "assistant", "content": "w41"}]);
        json!({ "messages": messages }).to_string() + "\n"
    };
    (0..800).map(line).collect()
}

/// Nothing but the answers can be learnt: a mean over all tokens would stay above one.
#[test]
fn a_pretrained_model_is_tuned_on_answers_by_a_worker_without_files_too() {
    let pretrained = Pretrained::new("qwen3");
    let template = "{% for m in messages %}w46 {% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% endgeneration %}{% else %}{{ m.content }}{% endif %}{{ ' ' }}{% endfor %}";
    fs::write(pretrained.path().join("chat_template.jinja"), template).unwrap();
    let chats = pretrained.text.with_file_name("chats.jsonl");
    fs::write(&chats, conversations()).unwrap();
    let (model, _) = pretrained.lines();
    let sources =
        format!("sources = [{{ path = {chats:?} }}]\nconversations = {{ too_long = \"leave-out\" }}");
    let setup = Setup { sites: vec![1, 1], steps: 60, learning_rate: 1e-2, ..setup(&model, &sources) };
    let mut scenario = start_with(setup, 2, &["--model", "remote", "--data", "remote"]);
    let status = scenario.finish();
    let loss = status["validation_loss"].as_f64().unwrap();
    assert!(loss < 0.3, "{loss}");
}

/// Nothing moves: the parameters at the end are those of the beginning.
fn setup<'a>(model: &'a str, sources: &'a str) -> Setup<'a> {
    Setup { model: Some(model), sources, learning_rate: 1e-12, steps: 16, batch: 12, ..Setup::default() }
}

/// Starts the workers: the first has the model, which the coordinator's machine describes; the others fetch it.
fn start(setup: Setup<'_>, workers: usize) -> Scenario {
    start_with(setup, workers, &["--model", "remote"])
}

/// The same, where the others lack this.
fn start_with(setup: Setup<'_>, workers: usize, lacking: &[&str]) -> Scenario {
    let mut scenario = setup.start_coordinator();
    for worker in (1..workers).rev() {
        scenario.cluster.start_worker_with(worker, lacking).unwrap();
    }
    let all_wait = |status: &Value| {
        let is_lacking = |text: &str| text.contains("without the run's model");
        status["problems"].as_array().is_some_and(|all| all.iter().filter_map(Value::as_str).any(is_lacking))
    };
    scenario.cluster.wait_for("workers that wait for the model", RUN_MAX, all_wait).unwrap();
    scenario.cluster.start_worker(0).unwrap();
    scenario
}

fn config_of(folder: &Path) -> Value {
    serde_json::from_slice(&fs::read(folder.join("config.json")).unwrap()).unwrap()
}

/// Compares the files beside the weights.
fn assert_same_files(folder: &Path, pretrained: &Pretrained) {
    for name in ["tokenizer.json", "chat_template.jinja", "generation_config.json", "LICENSE"] {
        let [own, given] = [folder, pretrained.path()].map(|folder| fs::read(folder.join(name)).unwrap());
        assert!(own == given, "{name}");
    }
}

/// Compares the newest checkpoint with the model that the run started from.
fn assert_is_the_model(checkpoints: &Path, pretrained: &Pretrained) {
    let opened = open_model(checkpoints, None).unwrap();
    let base = BaseModel::open(pretrained.path(), |_, _| {}).unwrap();
    let spec = ModelSpec::resolve(&describe_model(pretrained.path()).unwrap().model, 0).unwrap();
    assert_eq!(opened.spec, spec);
    let values = base.parameters(&spec, &spec).unwrap();
    let apart = opened.parameters.iter().zip(&values).map(|(own, given)| (own - given).abs());
    assert!(apart.fold(0.0, f32::max) < 1e-6, "the run started from other weights");
    assert_same_files(&opened.path, pretrained);
    let mut original = config_of(pretrained.path());
    original["dtype"] = json!("float32");
    assert_eq!(config_of(&opened.path), original);
}

#[test]
fn a_run_starts_from_a_model_that_one_machine_has_and_its_checkpoints_carry_all_of_it() {
    let pretrained = Pretrained::new("qwen3");
    let (model, sources) = pretrained.lines();
    let mut scenario = start(Setup { sites: vec![1, 2], ..setup(&model, &sources) }, 3);
    scenario.finish();
    let bytes = scenario.cluster.wan().into_site(1).stats().delivered.bytes;
    let once = LICENCE_BYTES as u64;
    assert!(
        (once..once * 3 / 2).contains(&bytes),
        "{bytes} bytes came to the site, and the model has {once}"
    );
    let checkpoints = scenario.cluster.folder().join("checkpoints");
    assert_is_the_model(&checkpoints, &pretrained);
    assert_export_is_the_model(&checkpoints, &pretrained);
}

/// In the model's own type, the export of unmoved weights is the model again, bit by bit.
fn assert_export_is_the_model(checkpoints: &Path, pretrained: &Pretrained) {
    let out = checkpoints.join("exported");
    let mut command = Command::new(binary("coordinator").unwrap());
    command.args(["checkpoints", "export"]).arg(&out).arg("--dir").arg(checkpoints);
    let output = command.args(["--dtype", "bf16", "--max-shard-gib", "0.00001"]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(out.join("model.safetensors.index.json").is_file());
    let [exported, given] =
        [out.as_path(), pretrained.path()].map(|path| BaseModel::open(path, |_, _| {}).unwrap());
    let spec = ModelSpec::resolve(&describe_model(pretrained.path()).unwrap().model, 0).unwrap();
    exported.check(&spec).unwrap();
    assert_eq!(exported.parameters(&spec, &spec).unwrap(), given.parameters(&spec, &spec).unwrap());
    assert_eq!(config_of(&out), config_of(pretrained.path()));
    assert_same_files(&out, pretrained);
    // A second export overwrites nothing.
    let again = command.output().unwrap();
    assert!(String::from_utf8_lossy(&again.stderr).contains("is there and not empty"));
}

#[test]
fn adapters_alone_cross_the_link_and_pretrained_weights_keep_their_bits() {
    let pretrained = Pretrained::new("qwen3");
    let (model, sources) = pretrained.lines();
    let setup = Setup {
        model: Some(&model),
        sources: &sources,
        sites: vec![1, 1],
        lora: Some("rank = 64\ntargets = [\"q_proj\", \"down_proj\"]"),
        sync: "preset = \"dense\"",
        steps: 8,
        ..Setup::default()
    };
    let mut scenario = start(setup, 2);
    let status = scenario.finish();
    let checkpoints = scenario.cluster.folder().join("checkpoints");
    let opened = open_model(&checkpoints, None).unwrap();
    let trained = opened.spec.parameter_count();
    // Each of two sites sends half of the gradients and half of the results, in f32.
    let expected = (trained * 2 * 4 * 8) as f64;
    let sent = status["wan_bytes"].as_f64().unwrap();
    assert!((sent - expected).abs() < 0.02 * expected, "{sent} bytes for {trained} parameters: {expected}");
    let merged = opened.merged(None).unwrap();
    let base = BaseModel::open(pretrained.path(), |_, _| {}).unwrap();
    let given = base.parameters(&merged.spec, &merged.spec).unwrap();
    let mut at = 0;
    for tensor in merged.spec.parameters() {
        let range = at..at + tensor.count() as usize;
        let is_adapted = tensor.name.contains("q_proj") || tensor.name.contains("down_proj");
        assert_eq!(merged.parameters[range.clone()] != given[range.clone()], is_adapted, "{}", tensor.name);
        at = range.end;
    }
    assert_same_files(&merged.path, &pretrained);
}

#[test]
#[ignore = "nightly: covered by each_part_of_a_model_has_its_own_values, a_run_starts_from_a_model_that_one_machine_has_and_its_checkpoints_carry_all_of_it"]
fn each_stage_of_a_pipeline_starts_from_its_part_of_the_model() {
    let pretrained = Pretrained::new("phi3");
    let (model, sources) = pretrained.lines();
    let parallel = "plan = \"fixed\"\nstages = 2";
    let mut scenario = start(Setup { sites: vec![1, 1], parallel, ..setup(&model, &sources) }, 2);
    scenario.finish();
    assert_is_the_model(&scenario.cluster.folder().join("checkpoints"), &pretrained);
}
