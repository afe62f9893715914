//! Weights that are trained beside a pretrained model: their files, in PEFT's layout where they have adapters, and their pretrained model.

pub(super) mod joined;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use longhaul_common::config::{FrozenFormat, LoraConfig, ModelKind, TrainConfig};
use longhaul_common::model::{Lora, ModelSpec, module_of};
use longhaul_proto::checkpoint::folder::{ADAPTER, FileRecord, MODEL, TRAINED};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::{BaseModel, CheckpointError, Companions};

/// PEFT's description of adapters.
pub(super) const ADAPTER_CONFIG: &str = "adapter_config.json";
/// The pretrained model of trained weights.
pub(super) const BASE: &str = "base_model.json";
/// PEFT puts this before the name of a model's tensor.
pub(super) const PREFIX: &str = "base_model.model.";

/// PEFT's type of models that tell classes of sequences.
const OF_CLASSES: &str = "SEQ_CLS";
/// Heads of such models, by their usual names. PEFT saves both of all such models, which have one of them.
const CLASS_HEADS: [&str; 2] = ["classifier", "score"];

/// `base_model.json`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct BaseRecord {
    /// `model.from` of the run.
    base_model_name_or_path: String,
    /// Hash of all its files, in hexadecimal. Some records have that of `weights_blake3` in its place.
    blake3: String,
    /// Hash of its weights and their `config.json`, in hexadecimal. Records of earlier releases lack it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    weights_blake3: Option<String>,
    /// Patterns of the tensors trained themselves.
    unfrozen_parameters: Vec<String>,
}

impl BaseRecord {
    /// Whether it is for this pretrained model.
    fn is_of(&self, base: &BaseIdentity) -> bool {
        match &self.weights_blake3 {
            Some(weights) => *weights == base.weights,
            None => [&base.files, &base.weights].contains(&&self.blake3),
        }
    }

    /// Returns the hash for display.
    fn shown_hash(&self) -> &str {
        self.weights_blake3.as_ref().unwrap_or(&self.blake3)
    }
}

/// The identity of a pretrained model: BLAKE3 hashes, in hexadecimal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct BaseIdentity {
    /// Of all its files.
    files: String,
    /// Of its weights and their `config.json`.
    weights: String,
}

impl BaseIdentity {
    fn of(base: &BaseModel) -> Result<Self> {
        let files = blake3::Hash::from_bytes(base.files().hash()?).to_hex().to_string();
        Ok(Self { files, weights: base.files().weights_hash()? })
    }

    /// Returns that of the pretrained model that the files beside trained weights name.
    pub(super) fn in_companions(companions: &Companions) -> Option<Self> {
        let BaseRecord { blake3: files, weights_blake3, .. } = record_of(companions.get(BASE)?).ok()?;
        let weights = weights_blake3.unwrap_or_else(|| files.clone());
        Some(Self { files, weights })
    }
}

/// Returns the name of the file with a model's trained weights.
pub(super) fn weights_file(spec: &ModelSpec) -> &'static str {
    match &spec.tuning {
        None => MODEL,
        Some(tuning) if tuning.lora.is_some() => ADAPTER,
        Some(_) => TRAINED,
    }
}

/// Returns the name of the listed file of weights.
pub(super) fn weights_in(files: &BTreeMap<String, FileRecord>) -> Option<&'static str> {
    [MODEL, ADAPTER, TRAINED].into_iter().find(|name| files.contains_key(*name))
}

/// Returns the files that tell checkpoints of trained weights which model they are for; none where the whole model is trained.
///
/// # Errors
/// The model's files cannot be listed.
pub fn beside_base(whole: &ModelSpec, from: &str, base: &BaseModel) -> Result<Companions> {
    let Some(tuning) = &whole.tuning else { return Ok(Companions::default()) };
    let BaseIdentity { files, weights } = BaseIdentity::of(base)?;
    let record = BaseRecord {
        base_model_name_or_path: from.to_owned(),
        blake3: files,
        weights_blake3: Some(weights),
        unfrozen_parameters: tuning.unfrozen.clone(),
    };
    let mut files = vec![(BASE.to_owned(), text_of(&serde_json::to_value(record)?))];
    if let Some(lora) = &tuning.lora {
        files.push((ADAPTER_CONFIG.to_owned(), text_of(&peft_config(whole, lora, from))));
    }
    Ok(files.into_iter().map(|(name, text)| (name, text.into_bytes().into())).collect())
}

fn text_of(json: &Value) -> String {
    format!("{json:#}\n")
}

/// Returns `adapter_config.json`, with PEFT's own names.
fn peft_config(whole: &ModelSpec, lora: &Lora, from: &str) -> Value {
    let trained = whole.parameters();
    let modules: BTreeSet<&str> = trained
        .iter()
        .filter(|tensor| whole.tuning.as_ref().is_some_and(|tuning| tuning.trains(&tensor.name)))
        .map(|tensor| saved_module(&tensor.name))
        .collect();
    let targets = targets(whole, lora);
    let [ranks, alphas] = joined::patterns(whole.kind, &targets, (lora.rank, lora.alpha, lora.use_rslora));
    json!({
        "peft_type": "LORA",
        "task_type": match (&whole.encoder, whole.classes()) {
            (None, _) => json!("CAUSAL_LM"),
            (Some(_), Some(_)) => json!(OF_CLASSES),
            // PEFT has no type for masked language models.
            (Some(_), None) => Value::Null,
        },
        "base_model_name_or_path": from,
        "r": lora.rank,
        "lora_alpha": lora.alpha,
        "rank_pattern": ranks,
        "alpha_pattern": alphas,
        "lora_dropout": lora.dropout,
        "use_rslora": lora.use_rslora,
        "use_dora": lora.use_dora,
        "bias": "none",
        "fan_in_fan_out": whole.kind == ModelKind::Gpt2,
        "target_modules": targets,
        "modules_to_save": if modules.is_empty() { Value::Null } else { json!(modules) },
        "inference_mode": true,
    })
}

/// Returns the module that PEFT is to save for a tensor. PEFT adds the whole of a head for classes, whose parts must not be named beside it.
fn saved_module(name: &str) -> &str {
    let head =
        CLASS_HEADS.iter().find(|head| name.strip_prefix(**head).is_some_and(|rest| rest.starts_with('.')));
    head.map_or(module_of(name), |head| *head)
}

/// Returns the shortest names of the adapted modules: their last part, where all modules of that name are adapted.
fn targets(whole: &ModelSpec, lora: &Lora) -> BTreeSet<String> {
    let module = |weight: &str| {
        let module = module_of(weight);
        whole.kind.joined_name(module).unwrap_or_else(|| module.to_owned())
    };
    let last = |weight: &str| module(weight).rsplit('.').next().unwrap_or_default().to_owned();
    let untuned = whole.untuned();
    let others: BTreeSet<String> = untuned
        .parameters()
        .iter()
        .filter(|tensor| tensor.shape.len() == 2 && !lora.weights.contains(&tensor.name))
        .map(|tensor| last(&tensor.name))
        .collect();
    let shortest = |weight: &String| {
        let last = last(weight);
        if others.contains(&last) { module(weight) } else { last }
    };
    lora.weights.iter().map(shortest).collect()
}

/// Returns the model with its trained part, as the files beside a checkpoint's weights tell; without them, the model itself.
///
/// # Errors
/// Names the file and the key that cannot be honoured.
pub(super) fn tuned_as(spec: ModelSpec, companions: &Companions) -> Result<ModelSpec> {
    let lora = companions.get(ADAPTER_CONFIG).map(|text| read_peft(text, &spec)).transpose()?;
    let record = companions.get(BASE).map(|text| record_of(text)).transpose()?;
    let (lora, modules) = lora.unzip();
    let whole = record.map_or(modules.unwrap_or_default(), |record| record.unfrozen_parameters);
    let unfrozen_parameters = (lora.is_none() && !whole.is_empty()).then(Vec::new);
    let train = TrainConfig { lora, unfrozen_parameters, ..TrainConfig::default() };
    spec.tuned_with(&train, &whole).with_context(|| format!("{ADAPTER_CONFIG} is for another model"))
}

fn record_of(text: &[u8]) -> Result<BaseRecord> {
    serde_json::from_slice(text).with_context(|| format!("read {BASE}"))
}

/// Checks that a checkpoint's weights were trained beside this model.
///
/// # Errors
/// They were trained beside another one, or the file that says so is missing.
pub(super) fn check_base(folder: &Path, base: Option<&BaseIdentity>) -> Result<(), CheckpointError> {
    let path = folder.join(BASE);
    let text = std::fs::read(&path).map_err(CheckpointError::io("read", &path))?;
    let record = record_of(&text).map_err(|error| CheckpointError::damaged(&path, error))?;
    if base.is_some_and(|base| record.is_of(base)) {
        return Ok(());
    }
    let reason = format!(
        "its weights were trained beside the pretrained model {} with the hash {}, and the run has opened {}: give it that model again",
        record.base_model_name_or_path,
        record.shown_hash(),
        base.map_or("none", |base| &base.weights)
    );
    Err(CheckpointError::OtherModel { path, reason })
}

/// Keys of `adapter_config.json` that do not change what an adapter computes.
const OF_NO_EFFECT: [&str; 13] = [
    "peft_version",
    "task_type",
    "auto_mapping",
    "base_model_name_or_path",
    "revision",
    "inference_mode",
    "lora_dropout",
    "fan_in_fan_out",
    "runtime_config",
    "eva_config",
    "loftq_config",
    "qalora_group_size",
    "megatron_core",
];

/// Reads PEFT's description: the adapters, and the patterns of the modules that are saved whole.
fn read_peft(text: &[u8], spec: &ModelSpec) -> Result<(LoraConfig, Vec<String>)> {
    let json: Map<String, Value> =
        serde_json::from_slice(text).with_context(|| format!("read {ADAPTER_CONFIG}"))?;
    let refused = |key: &str, remedy: &str| {
        let value = json.get(key).unwrap_or(&Value::Null);
        anyhow::anyhow!("{ADAPTER_CONFIG}: {key} = {value}: {remedy}")
    };
    let names = |key: &str| match json.get(key) {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::Array(names)) if names.iter().all(Value::is_string) => {
            Ok(names.iter().filter_map(Value::as_str).map(str::to_owned).collect())
        }
        Some(Value::String(name)) if name == LoraConfig::ALL_LINEAR => Ok(vec![name.clone()]),
        Some(_) => Err(refused(key, "a list of modules is supported: write their names")),
    };
    let is_usual = |key: &str, value: &Value| match key {
        "peft_type" => value == "LORA",
        "bias" => value == "none",
        // Others change the pretrained weights as well.
        "init_lora_weights" => value.is_boolean() || value == "gaussian" || value == "eva",
        "use_rslora" | "use_dora" => value.is_boolean() || value.is_null(),
        "r" | "lora_alpha" | "target_modules" | "modules_to_save" => true,
        key if OF_NO_EFFECT.contains(&key) || joined::PATTERNS.contains(&key) => true,
        _ => {
            let is_empty =
                value.as_array().is_some_and(Vec::is_empty) || value.as_object().is_some_and(Map::is_empty);
            is_empty || matches!(value, Value::Null | Value::Bool(false))
        }
    };
    const MERGE: &str = "it is not supported; merge the adapter with PEFT (`merge_and_unload`)";
    if let Some((key, _)) = json.iter().find(|(key, value)| !is_usual(key, value)) {
        return Err(refused(key, MERGE));
    }
    let rank = json.get("r").and_then(Value::as_u64).and_then(|rank| u32::try_from(rank).ok());
    let lora = LoraConfig {
        rank: rank
            .filter(|rank| *rank > 0)
            .ok_or_else(|| refused("r", "it must be a whole number above 0"))?,
        alpha: Some(
            json.get("lora_alpha")
                .and_then(Value::as_f64)
                .ok_or_else(|| refused("lora_alpha", "it must be a number"))?,
        ),
        use_rslora: json.get("use_rslora").is_some_and(|value| value == true),
        targets: names("target_modules")?,
        use_dora: json.get("use_dora").is_some_and(|value| value == true),
        dropout: 0.0,
        base: FrozenFormat::F32,
    };
    lora.check().with_context(|| format!("read {ADAPTER_CONFIG}"))?;
    if let Some(key) = joined::unfit(&json, spec.kind, &lora) {
        return Err(refused(key, MERGE));
    }
    let all = spec.parameters();
    let is_of_classes = json.get("task_type").is_some_and(|kind| kind == OF_CLASSES);
    let mut saved = BTreeSet::new();
    for name in names("modules_to_save")? {
        let modules = all.iter().map(|tensor| module_of(&tensor.name));
        let mut modules = modules.filter(|module| is_saved_as(module, &name)).peekable();
        // PEFT adds the names of heads that the model does not have.
        let is_added = is_of_classes && CLASS_HEADS.contains(&name.as_str());
        ensure!(
            modules.peek().is_some() || is_added,
            refused("modules_to_save", "the model has no such module")
        );
        saved.extend(modules.map(|module| format!("{module}.*")));
    }
    Ok((lora, saved.into_iter().collect()))
}

/// Whether PEFT saves a module under this name: it or one that it is in ends with it. PEFT wants no dot before the end: `norm` is every norm.
fn is_saved_as(module: &str, name: &str) -> bool {
    let ends = module.match_indices('.').map(|(end, _)| end).chain([module.len()]);
    ends.into_iter().any(|end| module[..end].ends_with(name))
}

/// Returns the folder of the pretrained model of trained weights: the given one, or the one they were trained from.
///
/// # Errors
/// It is not on this machine, or has changed since.
pub(super) fn find_base(companions: &Companions, given: Option<&Path>) -> Result<PathBuf> {
    let (folder, named) = base_folder(companions, given)?;
    let record = companions.get(BASE).map(|text| record_of(text)).transpose()?;
    if let Some(record) = record
        && !record.is_of(&BaseIdentity::of(&BaseModel::open(&folder, |_, _| {})?)?)
    {
        bail!("{} is not the model that {named} was when training began: {REMEDY}", folder.display());
    }
    Ok(folder)
}

/// The remedy for a pretrained model that is not there.
const REMEDY: &str = "give the folder of that model with --base";

/// The same without a look at its weights; and its name in these files.
pub(super) fn base_folder(companions: &Companions, given: Option<&Path>) -> Result<(PathBuf, String)> {
    let record = companions.get(BASE).map(|text| record_of(text)).transpose()?;
    let from = match (&record, companions.get(ADAPTER_CONFIG)) {
        (Some(record), _) => Some(record.base_model_name_or_path.clone()),
        (None, Some(text)) => {
            let json: Value =
                serde_json::from_slice(text).with_context(|| format!("read {ADAPTER_CONFIG}"))?;
            json.get("base_model_name_or_path").and_then(Value::as_str).map(str::to_owned)
        }
        (None, None) => None,
    };
    let named = from.unwrap_or_else(|| "a model without a name".to_owned());
    let folder = given.or(Some(Path::new(&named)).filter(|folder| folder.is_dir()));
    let folder =
        folder.with_context(|| format!("these are adapters of {named}, which is not here: {REMEDY}"))?;
    Ok((folder.to_owned(), named))
}

#[cfg(test)]
mod tests;
