//! Hugging Face's `transformers` opens the checkpoints, if `LONGHAUL_PYTHON` names a Python that has it (`fixtures/make_reference.py` has the release).

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use longhaul_checkpoint::{
    BaseModel, CheckpointData, CheckpointStore, ExportType, ModelState, OpenedModel, PrivateState,
    WholeModel, beside_base, export, open_model,
};
use longhaul_common::config::{FrozenFormat, LoraConfig, ModelConfig, ModelKind, Precision, TrainConfig};
use longhaul_common::id::{Generation, Round, RunId, WorkerId};
use longhaul_common::model::ModelSpec;
use longhaul_engine::models::{Model, Parameters};
use longhaul_tests::tools::skipped;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    CONTEXT, SEQUENCES, TOKEN_STREAM, VOCABULARY, device, distance, inputs, language_model, noise, parameters,
};
use crate::{adapters, class_adapters, decoders, encoders};

#[test]
fn transformers_opens_checkpoints_of_both_families_and_computes_the_same_logits() {
    let Some(python) = python() else {
        return skipped("LONGHAUL_PYTHON names no Python that has transformers");
    };
    let classes = [(ModelKind::Gpt2, "GPT2LMHeadModel"), (ModelKind::Llama, "LlamaForCausalLM")];
    let all = classes.iter().flat_map(|of| [(of, false), (of, true)]);
    let cases = all.map(|(&(kind, class), tied)| {
        let config = ModelConfig { tied_embeddings: Some(tied), ..language_model(kind) };
        (kind, class, ModelSpec::resolve(&config, VOCABULARY).unwrap())
    });
    let cases: Vec<_> = cases.collect();
    let folder = tempfile::tempdir().unwrap();
    // Like `inputs`: all tokens of a sequence but the last.
    let tokens: Vec<i64> = noise(SEQUENCES * (CONTEXT + 1), TOKEN_STREAM)
        .map(|value| ((value + 0.5) * VOCABULARY as f32) as i64)
        .collect();
    let tokens: Vec<&[i64]> = tokens.chunks(CONTEXT + 1).map(|sequence| &sequence[..CONTEXT]).collect();
    let written = cases.iter().enumerate().map(|(at, (_, _, spec))| {
        let path = written(spec, &parameters(spec), &folder.path().join(at.to_string()));
        json!({"folder": path, "tokens": tokens})
    });
    for ((kind, class, spec), theirs) in cases.iter().zip(opened(&python, written.collect())) {
        assert_eq!((theirs.class.as_str(), theirs.unfit.len()), (*class, 0), "{:?}", theirs.unfit);
        let off = distance(&ours(spec, *kind), &theirs.logits);
        assert!(off < 2e-6, "{kind:?}, tied: {}: {off}", spec.tied_embeddings);
    }
}

/// What a run writes of each family, `AutoModelForCausalLM` and its like open; and of adapters, PEFT.
#[test]
fn transformers_and_peft_open_what_runs_write_of_every_family_and_compute_the_same_logits() {
    let Some(python) = python() else {
        return skipped("LONGHAUL_PYTHON names no Python that has transformers and PEFT");
    };
    let folder = tempfile::tempdir().unwrap();
    let mut cases = Vec::new();
    for case in decoders::CASES {
        let (model, expected) =
            (open_model(&decoders::folder(case), None).unwrap(), decoders::expected(case));
        let path = written(&model.spec, &model.parameters, &folder.path().join(case));
        cases.push((case, json!({"folder": path}), expected.tokens, expected.logits));
    }
    for case in encoders::CASES {
        let (model, expected) =
            (open_model(&encoders::folder(case), None).unwrap(), encoders::expected(case));
        let path = written(&model.spec, &model.parameters, &folder.path().join(case));
        // The last token is left out below.
        let tokens = [expected.tokens, vec![0]].concat();
        cases.push((case, json!({"folder": path, "auto": "AutoModelForMaskedLM"}), tokens, expected.logits));
    }
    for (case, auto) in encoders::HEADS {
        let (model, expected) =
            (open_model(&encoders::head(case), None).unwrap(), encoders::expected_of(case));
        let path = written(&model.spec, &model.parameters, &folder.path().join(case));
        let (tokens, count) = (&expected.tokens[0], expected.output.len() / expected.tokens.len());
        let tokens = [&tokens[..], &[0]].concat();
        cases.push((case, json!({"folder": path, "auto": auto}), tokens, expected.output[..count].to_vec()));
    }
    cases.push(adapters_of_an_encoder(folder.path()));
    cases.extend(class_adapters::written_by_runs(folder.path()));
    for case in adapters::CASES {
        let (OpenedModel { spec, parameters, .. }, base, expected) = adapters::case(case);
        let given = (spec.clone(), parameters.clone());
        let model = BaseModel::open(&base, |_, _| {}).unwrap();
        let companions = beside_base(&spec, base.to_str().unwrap(), &model).unwrap();
        let whole = WholeModel { path: String::new(), spec, parameters, companions };
        let out = folder.path().join(format!("adapters-{case}"));
        export(&whole, &out, ExportType::F32, 1 << 30, |_, _| {}).unwrap();
        let again = open_model(&out, Some(&base)).unwrap();
        assert!((again.spec, again.parameters) == given, "{case}: the written file leads back to its values");
        cases.push((case, json!({"folder": out, "base": base}), expected.tokens, expected.logits));
    }
    let written = cases.iter().map(|(_, folder, tokens, _)| {
        let mut case = folder.clone();
        case["tokens"] = json!([tokens[..tokens.len() - 1]]);
        case
    });
    for ((case, folder, _, expected), theirs) in cases.iter().zip(opened(&python, written.collect())) {
        // The pooler of next sentences is left out.
        let fits = |name: &&String| case != &"bert-none" || !name.starts_with("pooler.dense.");
        let unfit: Vec<&String> = theirs.unfit.iter().filter(fits).collect();
        assert!(unfit.is_empty(), "{case}: {unfit:?}");
        let off = distance(expected, &theirs.logits);
        assert!(off < 1e-5, "{folder}: {off}");
    }
}

/// Adapters in layers and head of BERT, with the logits of the merged weights.
fn adapters_of_an_encoder(folder: &Path) -> (&'static str, Value, Vec<i64>, Vec<f32>) {
    let (base, out) = (encoders::folder("bert"), folder.join("adapters-bert"));
    let model = BaseModel::open(&base, |_, _| {}).unwrap();
    let lora = LoraConfig {
        rank: 2,
        alpha: None,
        use_rslora: false,
        targets: vec!["query".to_owned(), "dense".to_owned()],
        dropout: 0.0,
        use_dora: false,
        base: FrozenFormat::F32,
    };
    let spec = open_model(&base, None).unwrap().spec;
    let spec = spec.tuned(&TrainConfig { lora: Some(lora), ..TrainConfig::default() }).unwrap();
    let parameters = noise(spec.parameter_count() as usize, 7).collect();
    let companions = beside_base(&spec, base.to_str().unwrap(), &model).unwrap();
    let whole = WholeModel { path: String::new(), spec, parameters, companions };
    export(&whole, &out, ExportType::F32, 1 << 30, |_, _| {}).unwrap();
    let OpenedModel { spec, parameters, .. } =
        open_model(&out, Some(&base)).unwrap().merged(Some(&base)).unwrap();
    let parameters = Parameters::new(&spec, &parameters, device()).unwrap();
    let model = Model::of_all(&spec, &parameters, Precision::F32).unwrap();
    let tokens = encoders::expected("bert").tokens;
    let input = tch::Tensor::from_slice(&tokens).unsqueeze(0).to_device(device());
    let logits = tch::no_grad(|| model.logits(&input)).unwrap();
    let case = json!({"folder": out, "base": base, "auto": "AutoModelForMaskedLM"});
    ("bert with adapters", case, [tokens, vec![0]].concat(), Vec::try_from(logits.reshape([-1])).unwrap())
}

/// The named Python, if it has the imports of the script. Optional, as it takes gigabytes.
pub fn python() -> Option<std::ffi::OsString> {
    let python = std::env::var_os("LONGHAUL_PYTHON")?;
    let imports = Command::new(&python)
        .args(["-c", "import torch, peft; from transformers import AutoModelForCausalLM"])
        .stderr(Stdio::null())
        .status();
    imports.is_ok_and(|status| status.success()).then_some(python)
}

/// A checkpoint's folder as written by a run.
fn written(spec: &ModelSpec, parameters: &[f32], folder: &Path) -> std::path::PathBuf {
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

/// The script's report on a folder.
#[derive(Deserialize)]
struct Opened {
    class: String,
    unfit: Vec<String>,
    logits: Vec<f32>,
}

/// The script's reports on all folders.
fn opened(python: &std::ffi::OsStr, folders: Vec<Value>) -> Vec<Opened> {
    let mut child = Command::new(python)
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/load_checkpoint.py"))
        .env("HF_HUB_OFFLINE", "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(Value::from(folders.clone()).to_string().as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let lines = std::str::from_utf8(&output.stdout).unwrap().lines();
    let reports: Vec<Opened> = lines.map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(reports.len(), folders.len());
    reports
}

fn ours(spec: &ModelSpec, kind: ModelKind) -> Vec<f32> {
    let parameters = Parameters::new(spec, &parameters(spec), device()).unwrap();
    let model = Model::of_all(spec, &parameters, Precision::F32).unwrap();
    let logits = tch::no_grad(|| model.logits(&inputs(kind))).unwrap();
    Vec::try_from(logits.reshape([-1])).unwrap()
}
