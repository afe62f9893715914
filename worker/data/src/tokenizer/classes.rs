//! Tokenizer classes of `transformers`, and the choice for a folder. `classes.json` holds the tokenizer built by each class, found by
//! `tests/fixtures/make_classes.py` with the version at the start of the file (5.24).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use serde::Deserialize;
use serde_json::{Map, Value};

const TABLE: &str = include_str!("classes.json");
/// Classes that take all of the file, and the registered name of a class that reads it when its own file is missing.
const OF_ANY_FILE: [&str; 4] =
    ["TokenizersBackend", "PythonBackend", "PreTrainedTokenizerFast", "MistralCommonBackend"];
const FAST: &str = "Fast";

#[derive(Deserialize)]
struct Table {
    /// The class chosen for each name in a file.
    names: BTreeMap<String, String>,
    /// The class for each model type.
    registered: BTreeMap<String, String>,
    /// Types whose files are known to name a wrong class.
    distrusted: BTreeSet<String>,
    /// The class chosen if only the type is given; other types: all of the file.
    alone: BTreeMap<String, String>,
    /// Classes that could not be tried, and classes that read other files.
    unknown: BTreeSet<String>,
    own_program: BTreeSet<String>,
    classes: BTreeMap<String, Class>,
    steps: Vec<Value>,
}

/// The tokenizer built by a class.
#[derive(Deserialize)]
pub(super) struct Class {
    /// Settings that change its steps, with their defaults. `None`: it takes the file's steps.
    pub(super) settings: Option<Map<String, Value>>,
    #[serde(default)]
    normalizer: Vec<Case>,
    #[serde(default)]
    pre_tokenizer: Vec<Case>,
    #[serde(default)]
    model: Vec<Case>,
    pub(super) unk_id: Option<UnkId>,
    /// Its fixed vocabulary, or words of which the file must have one to take its vocabulary unchanged.
    pub(super) vocabulary: Option<Vec<String>>,
    pub(super) vocabulary_with: Option<Vec<String>>,
    /// Tokens that it adds: by the setting that may name another, and others.
    pub(super) tokens: BTreeMap<String, String>,
    #[serde(default)]
    more: Vec<String>,
    /// Tokens added if a setting lists such tokens.
    #[serde(default)]
    more_given: BTreeMap<String, Vec<String>>,
    /// The setting with their number.
    more_count: Option<String>,
    /// Flags of tokens that it names itself, and of tokens named by a setting.
    #[serde(default)]
    pub(super) flags: BTreeMap<String, Map<String, Value>>,
    #[serde(default)]
    pub(super) flags_given: BTreeMap<String, Map<String, Value>>,
}

/// A step under given settings.
#[derive(Deserialize)]
struct Case {
    #[serde(rename = "if")]
    when: Map<String, Value>,
    is: usize,
}

/// The unknown token of a list of tokens.
#[derive(Deserialize)]
pub(super) struct UnkId {
    /// `None`: its place is looked up.
    pub(super) is: Option<u64>,
    /// With any score; otherwise only with 0.
    pub(super) any_score: bool,
    #[serde(rename = "else")]
    pub(super) otherwise: Option<u64>,
    /// Whether `unk_id` may set another.
    pub(super) setting: bool,
}

/// A part of a tokenizer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    Normalizer,
    PreTokenizer,
    Model,
}

/// The choice for a folder.
pub(super) enum Taken {
    /// All of `tokenizer.json`.
    File,
    /// A class, with the evidence.
    Class { said: String, name: &'static str, class: &'static Class },
    /// A class with its own program, which reads other files.
    OwnProgram(String),
    /// An unknown class.
    Unknown(String),
}

static KNOWN: LazyLock<Option<Table>> = LazyLock::new(|| serde_json::from_str(TABLE).ok());

impl Class {
    /// Returns a part as built with these settings; `None`: it does not load with them.
    pub(super) fn built(&self, part: Part, values: &Map<String, Value>) -> Option<&'static Value> {
        let cases = match part {
            Part::Normalizer => &self.normalizer,
            Part::PreTokenizer => &self.pre_tokenizer,
            Part::Model => &self.model,
        };
        let holds = |case: &&Case| case.when.iter().all(|(name, value)| values.get(name) == Some(value));
        KNOWN.as_ref()?.steps.get(cases.iter().find(holds)?.is)
    }

    /// Returns the settings that change its steps, with these values.
    pub(super) fn values(&self, settings: &Map<String, Value>, charsmap: bool) -> Map<String, Value> {
        let mut values = self.settings.clone().unwrap_or_default();
        for (name, value) in &mut values {
            match settings.get(name) {
                Some(said @ (Value::Bool(_) | Value::Null)) => *value = said.clone(),
                Some(Value::Number(number)) => *value = Value::Bool(number.as_f64() != Some(0.0)),
                _ => {}
            }
        }
        values.insert("charsmap".to_owned(), Value::Bool(charsmap));
        values
    }

    /// Returns the tokens that it adds without a setting.
    pub(super) fn more<'c>(&'c self, settings: &Map<String, Value>) -> &'c [String] {
        let is_given = |key: &&String| {
            settings.get(*key).and_then(Value::as_array).is_some_and(|tokens| !tokens.is_empty())
        };
        if let Some(given) = self.more_given.keys().find(is_given) {
            return &self.more_given[given];
        }
        let count = self.more_count.as_ref().and_then(|name| settings.get(name)?.as_u64());
        let count = count.map_or(self.more.len(), |count| usize::try_from(count).unwrap_or(usize::MAX));
        &self.more[..count.min(self.more.len())]
    }
}

/// Returns a class of the table by its name in a file; `None`: it takes the file, or is unknown.
pub(super) fn by_name(name: &str) -> Option<&'static Class> {
    let table = KNOWN.as_ref()?;
    table.classes.get(table.names.get(name)?)
}

/// Returns the choice of `AutoTokenizer` of `transformers` 5 for a folder with this `tokenizer.json`.
pub(super) fn taken(
    json: &[u8],
    settings: Option<&Map<String, Value>>,
    config: Option<&Map<String, Value>>,
) -> Taken {
    let Some(table) = KNOWN.as_ref() else { return Taken::File };
    let text = |object: Option<&Map<String, Value>>, key: &str| {
        Some(object?.get(key)?.as_str()?.to_owned()).filter(|name| !name.is_empty())
    };
    let own = text(settings, "tokenizer_class");
    let said = match (&own, text(config, "tokenizer_class")) {
        (Some(own), _) => Some((own.clone(), "tokenizer_config.json")),
        (None, Some(other)) => Some((other, "config.json")),
        (None, None) => None,
    };
    let kind = text(config, "model_type");
    let is_distrusted = kind.as_ref().is_some_and(|kind| table.distrusted.contains(kind));
    if !is_distrusted && settings.is_some_and(names_own_code) {
        let why = "tokenizer_config.json beside the tokenizer names code of its own (auto_map)";
        return Taken::Unknown(why.to_owned());
    }
    let Some((class, file)) = said else {
        let Some(kind) = kind else { return Taken::File };
        let Some(class) = table.alone.get(&kind) else { return Taken::File };
        let said =
            format!("config.json beside the tokenizer says model_type = {kind:?}, which stands for {class}");
        return table.taken(class, said);
    };
    let plain = class.strip_suffix(FAST).unwrap_or(&class);
    if plain == "LlamaTokenizer" && !is_distrusted && memchr::memmem::find(json, b"\"ByteLevel\"").is_some() {
        return Taken::File;
    }
    let registered = kind.as_ref().and_then(|kind| table.registered.get(kind));
    let registered = registered.map(|name| name.strip_suffix(FAST).unwrap_or(name));
    let said = format!("{file} beside the tokenizer says tokenizer_class = {class:?}");
    match registered.filter(|name| *name != plain) {
        Some(name) if OF_ANY_FILE.contains(&name) => Taken::File,
        Some(name) if is_distrusted => {
            let kind = kind.unwrap_or_default();
            table.taken(
                name,
                format!(
                    "config.json beside the tokenizer says model_type = {kind:?}, which stands for {name}"
                ),
            )
        }
        _ => table.taken(&class, said),
    }
}

impl Table {
    fn taken(&'static self, name: &str, said: String) -> Taken {
        let Some(class) = self.names.get(name).or_else(|| self.names.get(name.strip_suffix(FAST)?)) else {
            return Taken::Unknown(said);
        };
        match self.classes.get_key_value(class) {
            Some((name, class)) => Taken::Class { said, name, class },
            None if self.own_program.contains(class) => Taken::OwnProgram(said),
            None if self.unknown.contains(class) => Taken::Unknown(said),
            None => Taken::File,
        }
    }
}

/// Whether the files come with their own tokenizer program.
fn names_own_code(settings: &Map<String, Value>) -> bool {
    match settings.get("auto_map") {
        Some(Value::Object(map)) => map.get("AutoTokenizer").is_some_and(|class| !class.is_null()),
        Some(Value::Array(_)) => true,
        _ => false,
    }
}
