//! Hugging Face's `transformers` opens the checkpoints, if `LONGHAUL_PYTHON` names a Python that has it (`fixtures/make_reference.py` has the release).

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use longhaul_checkpoint::{CheckpointData, CheckpointStore, ModelState, PrivateState, open_model};
use longhaul_common::config::{ModelConfig, ModelKind, Precision};
use longhaul_common::id::{Generation, Round, RunId, WorkerId};
use longhaul_common::model::ModelSpec;
use longhaul_engine::models::{Model, Parameters};
use longhaul_tests::tools::skipped;
use serde_json::Value;

use super::{
    CONTEXT, SEQUENCES, TOKEN_STREAM, VOCABULARY, device, distance, inputs, language_model, noise, parameters,
};
use crate::decoders;

#[test]
fn transformers_opens_checkpoints_of_both_families_and_computes_the_same_logits() {
    let Some(python) = python() else {
        return skipped("LONGHAUL_PYTHON names no Python that has transformers");
    };
    for (kind, class) in [(ModelKind::Gpt2, "GPT2LMHeadModel"), (ModelKind::Llama, "LlamaForCausalLM")] {
        for tied in [false, true] {
            let config = ModelConfig { tied_embeddings: Some(tied), ..language_model(kind) };
            let spec = ModelSpec::resolve(&config, VOCABULARY).unwrap();
            let folder = tempfile::tempdir().unwrap();
            let theirs = opened(&python, &written(&spec, folder.path()));
            assert_eq!(
                (theirs["class"].as_str(), theirs["unfit"].to_string()),
                (Some(class), "[]".to_owned())
            );
            let logits = theirs["logits"].as_array().unwrap();
            let logits: Vec<f32> = logits.iter().map(|value| value.as_f64().unwrap() as f32).collect();
            let off = distance(&ours(&spec, kind), &logits);
            assert!(off < 2e-6, "{kind:?}, tied: {tied}: {off}");
        }
    }
}

/// What a run writes of each family, `AutoModelForCausalLM` opens.
#[test]
fn transformers_opens_checkpoints_of_every_decoder_and_computes_the_same_logits() {
    let Some(python) = python() else {
        return skipped("LONGHAUL_PYTHON names no Python that has transformers");
    };
    for case in decoders::CASES {
        let (model, expected) = (open_model(&decoders::folder(case)).unwrap(), decoders::expected(case));
        let folder = tempfile::tempdir().unwrap();
        let checkpoint = written_with(&model.spec, &model.parameters, folder.path());
        let tokens = expected.tokens[..expected.tokens.len() - 1].to_vec();
        let theirs = opened_with(&python, &checkpoint, &[&tokens]);
        assert_eq!(theirs["unfit"].to_string(), "[]", "{case}");
        let logits = theirs["logits"].as_array().unwrap();
        let logits: Vec<f32> = logits.iter().map(|value| value.as_f64().unwrap() as f32).collect();
        let off = distance(&expected.logits, &logits);
        assert!(off < 1e-5, "{case}: {off}");
    }
}

/// The named Python, if it has the imports of the script. Optional, as it takes gigabytes.
fn python() -> Option<std::ffi::OsString> {
    let python = std::env::var_os("LONGHAUL_PYTHON")?;
    let imports = Command::new(&python)
        .args(["-c", "import torch; from transformers import AutoModelForCausalLM"])
        .stderr(Stdio::null())
        .status();
    imports.is_ok_and(|status| status.success()).then_some(python)
}

/// A checkpoint's folder as written by a run.
fn written(spec: &ModelSpec, folder: &Path) -> std::path::PathBuf {
    written_with(spec, &parameters(spec), folder)
}

fn written_with(spec: &ModelSpec, parameters: &[f32], folder: &Path) -> std::path::PathBuf {
    let data = CheckpointData {
        next_round: Round(1),
        next_step: 1,
        generation: Generation(1),
        state_hash: [0; 32],
        private: PrivateState::default(),
        model: Some(ModelState {
            spec: spec.clone(),
            parameters: Arc::from(parameters),
            companions: Default::default(),
            shared: [].into(),
        }),
    };
    CheckpointStore::new(folder, RunId([7; 16]), WorkerId(0), 1).write(&data).unwrap()
}

/// The script's report on the folder.
fn opened(python: &std::ffi::OsStr, folder: &Path) -> Value {
    let tokens: Vec<i64> = noise(SEQUENCES * (CONTEXT + 1), TOKEN_STREAM)
        .map(|value| ((value + 0.5) * VOCABULARY as f32) as i64)
        .collect();
    // Like `inputs`: all tokens of a sequence but the last.
    let tokens: Vec<&[i64]> = tokens.chunks(CONTEXT + 1).map(|sequence| &sequence[..CONTEXT]).collect();
    opened_with(python, folder, &tokens)
}

fn opened_with(python: &std::ffi::OsStr, folder: &Path, tokens: &[&[i64]]) -> Value {
    let mut child = Command::new(python)
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/load_checkpoint.py"))
        .arg(folder)
        .env("HF_HUB_OFFLINE", "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(serde_json::to_string(tokens).unwrap().as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn ours(spec: &ModelSpec, kind: ModelKind) -> Vec<f32> {
    let parameters = Parameters::new(spec, &parameters(spec), device()).unwrap();
    let model = Model::of_all(spec, &parameters, Precision::F32).unwrap();
    let logits = tch::no_grad(|| model.logits(&inputs(kind))).unwrap();
    Vec::try_from(logits.reshape([-1])).unwrap()
}
