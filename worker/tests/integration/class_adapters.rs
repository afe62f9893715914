//! Encoders that tell classes with adapters, against PEFT: see `fixtures/make_adapters.py`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use longhaul_checkpoint::{
    BaseModel, CheckpointData, CheckpointStore, ExportType, ModelState, OpenedModel, PrivateState,
    WholeModel, beside_base, export, open_model, read_run,
};
use longhaul_common::config::{FrozenFormat, LoraConfig, Precision, TrainConfig};
use longhaul_common::id::{Generation, Round, RunId, WorkerId};
use longhaul_common::model::{ModelSpec, ParameterSpec};
use longhaul_engine::models::{Model, Parameters};
use longhaul_engine::{Batch, Engine};
use longhaul_worker::train::first_state;
use serde::Deserialize;
use serde_json::{Value, json};
use tch::{Device, Tensor};

use crate::adapters::{check_merged, fixture, frozen};
use crate::classification::{Expected, compare};
use crate::encoders;
use crate::pytorch::noise;

const CASES: [&str; 3] = ["bert", "electra", "roberta"];
pub const LABELS: [&str; 3] = ["no", "yes", "perhaps"];
const STORED_ROUND: Round = Round(2);

/// What PEFT computes in f32.
#[derive(Deserialize)]
struct OfPeft {
    /// Folder of the pretrained model among the fixtures.
    base: String,
    #[serde(flatten)]
    expected: Expected,
    /// By tensor of the merged model: the norm, and the first three values.
    merged: BTreeMap<String, Vec<f64>>,
}

#[test]
fn losses_gradients_and_merged_weights_are_those_of_peft() {
    for case in CASES {
        let folder = fixture("class_adapters").join(case);
        let of_peft: OfPeft =
            serde_json::from_slice(&std::fs::read(folder.join("expected.json")).unwrap()).unwrap();
        let (base, expected) = (fixture(&of_peft.base), of_peft.expected);
        let opened = open_model(&folder, Some(&base)).unwrap();
        for (length, micro_batch, recompute) in [(20, 3, false), (24, 1, true)] {
            let at = format!("{case}, {length}");
            let train = TrainConfig { micro_batch, recompute, ..TrainConfig::default() };
            let frozen = frozen(&opened.spec, &base);
            let mut engine =
                Engine::with_parameters(&opened.spec, &train, 1, &opened.parameters, frozen, None).unwrap();
            let batch = Batch::from(expected.batch(length));
            let mut gradient = Vec::new();
            let loss = f64::from(engine.gradient(&batch, &mut gradient).unwrap().loss);
            assert!((loss - expected.loss).abs() < 1e-5 * expected.loss, "{at}: {loss}");
            for (found, (loss, _)) in engine.sample_losses(&batch).unwrap().iter().zip(expected.judged()) {
                assert!((f64::from(*found) - loss).abs() < 1e-4 * loss.max(0.1), "{at}: {found} for {loss}");
            }
            compare(&opened.spec, &gradient, &expected, &at);
        }
        check_merged(case, opened, &base, &of_peft.merged);
    }
}

/// Adapters, as lines of `[train]`.
const LORA: &str = "lora = { rank = 2 }";

/// The model of a run that trains this part and a new head.
fn of_run(base: &Path, part: &str) -> ModelSpec {
    let text = format!(
        "[run]\nname = \"a\"\nworkers = 2\nsteps = 9\n[model]\nfrom = {base:?}\n\
         [data]\nsequence_length = 8\nsources = [{{ path = \"a.csv\" }}]\ntokenizer = \"t.json\"\n\
         [data.classification]\nlabels = {LABELS:?}\n\
         [train]\ndropout = 0.0\nattention_dropout = 0.0\n{part}\n"
    );
    ModelSpec::of(&read_run(&text).unwrap(), 0).unwrap()
}

/// A run's checkpoint of adapters and a new head.
pub struct Written {
    base: PathBuf,
    pub opened: OpenedModel,
    /// PEFT's folder.
    pub exported: PathBuf,
    /// That of the merged model.
    pub merged: PathBuf,
}

/// Writes a checkpoint of a run that trains this part and a new head, loads it as a run that goes on does, and opens it.
fn checkpoint(case: &str, part: &str, into: &Path) -> OpenedModel {
    let base = encoders::folder(case);
    let (model, whole) = (BaseModel::open(&base, |_, _| {}).unwrap(), of_run(&base, part));
    model.check(&whole).unwrap();
    let start = |seed| first_state(Some(&model), (&whole, &whole), seed, Device::Cpu).unwrap().0;
    let (first, other) = (start(7), start(8));
    assert_eq!(first, start(7), "{case}: all workers draw the same head");
    let mut at = 0;
    for tensor in whole.parameters() {
        let place = at..at + tensor.count() as usize;
        at = place.end;
        // Zeros are biases and upper adapters.
        let is_drawn = !tensor.name.ends_with(".bias") && !tensor.name.contains(".lora_B");
        assert_eq!(first[place.clone()] != other[place], is_drawn, "{case}, {}", tensor.name);
    }
    let moved = first.iter().zip(noise(first.len(), 3)).map(|(value, noise)| value + 0.3 * noise);
    let parameters: Arc<[f32]> = moved.collect();
    let labels = LABELS.map(str::to_owned);
    let companions = beside_base(&whole, base.to_str().unwrap(), &model).unwrap();
    let companions = companions.or(model.companions().unwrap()).with_classes(&whole, &labels).unwrap();
    let data = CheckpointData {
        next_round: STORED_ROUND,
        next_step: 2,
        generation: Generation(1),
        state_hash: [0; 32],
        private: PrivateState::default(),
        model: Some(ModelState {
            spec: whole.clone(),
            parameters: Arc::clone(&parameters),
            companions: companions.clone(),
            shared: [].into(),
        }),
    };
    let folder = into.join(format!("{case}-checkpoint"));
    let store = CheckpointStore::new(&folder, RunId([7; 16]), WorkerId(0), 1).beside(&companions);
    store.write(&data).unwrap();
    assert_eq!(store.load_model(STORED_ROUND, &whole).unwrap().parameters, parameters.to_vec());
    let opened = open_model(&folder, None).unwrap();
    assert_eq!((&opened.spec, &opened.parameters[..]), (&whole, &parameters[..]), "{case}");
    opened
}

/// Writes a checkpoint of adapters and a new head, and exports it.
pub fn written(case: &str, into: &Path) -> Written {
    let (base, opened) = (encoders::folder(case), checkpoint(case, LORA, into));
    let of = |opened: &OpenedModel| WholeModel {
        path: String::new(),
        spec: opened.spec.clone(),
        parameters: opened.parameters.clone(),
        companions: opened.companions.clone(),
    };
    let [exported, merged] = ["exported", "merged"].map(|name| into.join(format!("{case}-{name}")));
    export(&of(&opened), &exported, ExportType::F32, 1 << 30, |_, _| {}).unwrap();
    export(&of(&opened).merged(None).unwrap(), &merged, ExportType::F32, 1 << 30, |_, _| {}).unwrap();
    Written { base, opened, exported, merged }
}

#[test]
fn a_checkpoint_has_adapters_and_the_head_for_classes_and_leads_back_to_them() {
    let folder = tempfile::tempdir().unwrap();
    for (case, saved) in [("bert", &["bert.pooler.dense", "classifier"][..]), ("roberta", &["classifier"])] {
        let Written { base, opened, exported, merged } = written(case, folder.path());
        let config = |folder: &Path, name: &str| -> Value {
            serde_json::from_slice(&std::fs::read(folder.join(name)).unwrap()).unwrap()
        };
        let described = config(&exported, "adapter_config.json");
        assert_eq!(
            (&described["task_type"], &described["modules_to_save"]),
            (&json!("SEQ_CLS"), &json!(saved))
        );
        let classes = json!({ "0": "no", "1": "yes", "2": "perhaps" });
        for folder in [&exported, &merged] {
            assert_eq!(config(folder, "config.json")["id2label"], classes, "{}", folder.display());
        }
        // As a folder that PEFT wrote, without the run's own files.
        for name in ["base_model.json", "config.json"] {
            std::fs::remove_file(exported.join(name)).unwrap();
        }
        let again = open_model(&exported, Some(&base)).unwrap();
        assert_eq!(again.parameters, opened.parameters);
        let names =
            |spec: &ModelSpec| spec.parameters().into_iter().map(|tensor| tensor.name).collect::<Vec<_>>();
        assert_eq!(names(&again.spec), names(&opened.spec));
        let whole = open_model(&merged, None).unwrap();
        let again = again.merged(Some(&base)).unwrap();
        assert_eq!((&again.spec, &again.parameters), (&whole.spec, &whole.parameters));
    }
}

#[test]
fn chosen_tensors_and_a_new_head_merge_into_a_whole_model() {
    let folder = tempfile::tempdir().unwrap();
    // BitFit, and the head alone.
    for (case, part, tensors) in [
        ("bert", "unfrozen_parameters = [\"*.query.bias\"]", 2 + 4),
        ("roberta", "unfrozen_parameters = []", 4),
    ] {
        let opened = checkpoint(case, part, folder.path());
        let trained = opened.spec.parameters();
        assert_eq!(trained.len(), tensors, "{case}");
        let values = opened.parameters.clone();
        let merged = opened.merged(None).unwrap();
        assert_eq!(merged.spec.classes(), Some(3));
        let base = open_model(&encoders::folder(case), None).unwrap();
        let place = |all: &[ParameterSpec], name: &str| {
            let before = all.iter().take_while(|tensor| tensor.name != name);
            before.map(|tensor| tensor.count() as usize).sum::<usize>()
        };
        let all = merged.spec.parameters();
        for tensor in &all {
            let (count, at) = (tensor.count() as usize, place(&all, &tensor.name));
            let (of, from) = match trained.iter().any(|of| of.name == tensor.name) {
                true => (&values, place(&trained, &tensor.name)),
                false => (&base.parameters, place(&base.spec.parameters(), &tensor.name)),
            };
            assert!(merged.parameters[at..at + count] == of[from..from + count], "{case}, {}", tensor.name);
        }
    }
}

/// PEFT leaves BERT's pooler frozen. One that transformers drew is in no file.
#[test]
fn a_drawn_pooler_that_is_in_no_file_is_told_when_adapters_are_merged() {
    let (base, folder) = (encoders::folder("bert"), tempfile::tempdir().unwrap());
    let out = folder.path().join("out");
    let lora = LoraConfig {
        rank: 2,
        alpha: None,
        use_rslora: false,
        targets: vec!["query".to_owned()],
        use_dora: false,
        dropout: 0.0,
        base: FrozenFormat::F32,
    };
    let train = TrainConfig { lora: Some(lora), ..TrainConfig::default() };
    let spec = open_model(&base, None).unwrap().spec.with_classes(3);
    let spec = spec.tuned_with(&train, &["classifier.*".to_owned()]).unwrap();
    let companions = beside_base(&spec, "elsewhere", &BaseModel::open(&base, |_, _| {}).unwrap()).unwrap();
    let parameters = noise(spec.parameter_count() as usize, 1).collect();
    let whole = WholeModel { path: String::new(), spec, parameters, companions };
    export(&whole, &out, ExportType::F32, 1 << 30, |_, _| {}).unwrap();
    let opened = open_model(&out, Some(&base)).unwrap();
    let error = opened.merged(Some(&base)).unwrap_err().to_string();
    assert!(error.contains("nor these trained weights have bert.pooler.dense."), "{error}");
}

/// Cases for the script: PEFT on the exported folder and transformers on the merged one, with the logits of frozen weights and adapters.
pub fn written_by_runs(into: &Path) -> Vec<(&'static str, Value, Vec<i64>, Vec<f32>)> {
    let mut cases = Vec::new();
    for case in encoders::CASES {
        let Written { base, opened, exported, merged } = written(case, into);
        let weights = frozen(&opened.spec, &base);
        let parameters = Parameters::beside(&opened.spec, &opened.parameters, weights).unwrap();
        let model = Model::of_all(&opened.spec, &parameters, Precision::F32).unwrap();
        let tokens = encoders::expected(case).tokens;
        let logits = tch::no_grad(|| model.logits(&Tensor::from_slice(&tokens).unsqueeze(0))).unwrap();
        let logits: Vec<f32> = Vec::try_from(logits.reshape([-1])).unwrap();
        let auto = "AutoModelForSequenceClassification";
        // The last token is left out of each case.
        let tokens = [tokens, vec![0]].concat();
        let of_peft = json!({"folder": exported, "base": base, "auto": auto, "classes": LABELS.len()});
        cases.push((case, of_peft, tokens.clone(), logits.clone()));
        cases.push((case, json!({"folder": merged, "auto": auto}), tokens, logits));
    }
    cases
}
