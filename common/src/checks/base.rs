//! A run that starts from a pretrained model: `[model] from`.

use toml::{Table, Value};

use crate::config::{
    ConfigError, DataConfig, EncoderConfig, EncoderHead, ModelConfig, RunConfig, read_toml, with_new_names,
};

/// The description of a pretrained model.
#[derive(Clone, Debug, PartialEq)]
pub struct BaseDescription {
    /// `[model]`, without `from`.
    pub model: ModelConfig,
    /// Whether a `tokenizer.json` is beside it.
    pub has_tokenizer: bool,
    /// Dropout above zero that its `config.json` names.
    pub dropout: Vec<NamedDropout>,
    /// Names of the classes of its head, in order; empty: it has no such head.
    pub labels: Vec<String>,
}

/// A rate of dropout in a `config.json`.
#[derive(Clone, Debug, PartialEq)]
pub struct NamedDropout {
    /// Its key there.
    pub key: &'static str,
    /// Probability.
    pub rate: f64,
    /// What it drops.
    pub place: DropoutPlace,
}

/// What dropout is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DropoutPlace {
    /// The residual stream.
    Hidden,
    /// Attention weights.
    Attention,
    /// Inputs of a head for classes.
    Classifier,
}

/// Key of the folder in `[model]`.
const FROM: &str = "from";

impl RunConfig {
    /// Parses and checks a `run.toml`. If `[model]` names a folder and nothing else, `describe` returns the description of the model in it; the
    /// reason of its failure becomes part of the error.
    ///
    /// # Errors
    /// [`ConfigError`] names the key and the remedy.
    pub fn parse_with_base(
        text: &str,
        describe: impl FnOnce(&str) -> Result<BaseDescription, String>,
    ) -> Result<Self, ConfigError> {
        let text = with_new_names(text);
        let table = text.parse::<Table>().ok();
        let Some((folder, mut table)) = table.and_then(|table| Some((folder_alone(&table)?, table))) else {
            return Self::parse(&text);
        };
        // The other tables first, because errors of a rewritten file would name other lines.
        if let Some(text) = with_stand_in(&text) {
            read_toml::<Self>(&text).map_err(ConfigError::of_run)?;
        }
        let base = describe(&folder).map_err(|reason| ConfigError::value("model.from", &folder, reason))?;
        let dropout = base.dropout.clone();
        describe_in(&mut table, &folder, base)?;
        let config = Self::parse(&table.to_string())?;
        config.check_dropout(&dropout)?;
        Ok(config)
    }

    /// Asks for what the pretrained model's own dropout becomes.
    fn check_dropout(&self, named: &[NamedDropout]) -> Result<(), ConfigError> {
        for NamedDropout { key, rate, place } in named {
            let (own, given) = match place {
                DropoutPlace::Hidden => ("train.dropout", self.train.dropout),
                DropoutPlace::Attention => ("train.attention_dropout", self.train.attention_dropout),
                DropoutPlace::Classifier if self.data.classification.is_none() => continue,
                DropoutPlace::Classifier => ("train.classifier_dropout", self.train.classifier_dropout),
            };
            if given.is_none() {
                let reason = format!(
                    "the model's config.json says {key} = {rate}, which transformers applies in training: set {own} = {rate}, or 0.0 for none"
                );
                return Err(ConfigError::value(own, "absent", reason));
            }
        }
        Ok(())
    }

    pub(super) fn check_base(&self) -> Result<(), ConfigError> {
        let tokenizer_of_model = self.data.tokenizer == DataConfig::OF_MODEL;
        match &self.model.from {
            Some(folder) if self.model.kind.is_of_images() => {
                let reason = "is for language models: remove it";
                Err(ConfigError::value("model.from", folder, reason))
            }
            Some(folder) if self.model.vocabulary.is_none() => {
                let reason = "needs the description of the whole model: remove the other keys of [model], and it is read from the folder's config.json";
                Err(ConfigError::value("model.from", folder, reason))
            }
            None if tokenizer_of_model => {
                let reason = "is the tokenizer of the model that model.from names: set model.from, or name a tokenizer.json";
                Err(ConfigError::value("data.tokenizer", &self.data.tokenizer, reason))
            }
            _ => Ok(()),
        }
    }
}

/// Returns the folder of a file whose `[model]` leaves the description to it.
fn folder_alone(table: &Table) -> Option<String> {
    let model = table.get("model")?.as_table()?;
    let folder = model.get(FROM)?.as_str()?;
    (!model.contains_key("kind")).then(|| folder.to_owned())
}

/// Returns the file with a stand-in for the folder, with the same lines. `None`: the key has no line of its own.
fn with_stand_in(text: &str) -> Option<String> {
    let mut table = "";
    let mut found = false;
    let lines = text.split_inclusive('\n').map(|line| {
        let begun = line.trim_start();
        if let Some(name) = begun.strip_prefix('[') {
            table = name.split(']').next().unwrap_or_default().trim();
        }
        let key = begun.strip_prefix(FROM).map(str::trim_start);
        if table == "model" && key.is_some_and(|rest| rest.starts_with('=')) {
            found = true;
            return if line.ends_with('\n') { "kind = \"llama\"\n" } else { "kind = \"llama\"" };
        }
        line
    });
    let text = lines.collect();
    found.then_some(text)
}

/// Writes the description into the tables.
fn describe_in(table: &mut Table, folder: &str, base: BaseDescription) -> Result<(), ConfigError> {
    let of_toml = |error: toml::ser::Error| ConfigError::Syntax(error.to_string());
    let base = with_classes_of(table, base)?;
    let model = table.get_mut("model").and_then(Value::as_table_mut);
    let Some(model) = model else { return Ok(()) };
    if let Some(key) = model.keys().find(|key| *key != FROM) {
        let reason = format!(
            "takes the whole description from the folder's config.json, so model.{key} cannot be set as well: remove it"
        );
        return Err(ConfigError::value("model.from", folder, reason));
    }
    if let Value::Table(described) = Value::try_from(base.model).map_err(of_toml)? {
        model.extend(described);
    }
    if let Some(data) = table.get_mut("data").and_then(Value::as_table_mut)
        && !data.contains_key("tokenizer")
    {
        if !base.has_tokenizer {
            let reason = "has no tokenizer.json: write one with `AutoTokenizer.from_pretrained(…).save_pretrained(FOLDER)`, or set data.tokenizer to the file of this model's tokenizer";
            return Err(ConfigError::value("model.from", folder, reason));
        }
        data.insert("tokenizer".to_owned(), DataConfig::OF_MODEL.into());
    }
    Ok(())
}

/// Brings the classes of the run and those of the model together: a model without a head for classes gets one, which is then drawn.
fn with_classes_of(table: &mut Table, base: BaseDescription) -> Result<BaseDescription, ConfigError> {
    let data = table.get_mut("data").and_then(Value::as_table_mut);
    let classes = data.and_then(|data| data.get_mut("classification")).and_then(Value::as_table_mut);
    let Some(classes) = classes else { return Ok(base) };
    let given: Vec<String> = match classes.get("labels") {
        Some(labels) => labels.clone().try_into().map_err(|_| {
            ConfigError::value("data.classification.labels", labels, "must be a list of texts")
        })?,
        None => Vec::new(),
    };
    if base.labels.is_empty() {
        // Without labels they are asked for later.
        return Ok(BaseDescription { model: with_new_head(base.model), ..base });
    }
    if given.is_empty() {
        classes.insert("labels".to_owned(), base.labels.clone().into());
    } else if given != base.labels && !(given.len() == base.labels.len() && are_numbered(&base.labels)) {
        let reason = format!(
            "the model's head has the classes {:?} in its config.json: remove the key, or start from the model without that head",
            base.labels
        );
        return Err(ConfigError::value("data.classification.labels", format!("{given:?}"), reason));
    }
    Ok(base)
}

/// Leaves the head to the run's classes.
fn with_new_head(model: ModelConfig) -> ModelConfig {
    if !model.kind.is_encoder() {
        return model;
    }
    let encoder = model.encoder.unwrap_or_default();
    let encoder = EncoderConfig { head: Some(EncoderHead::Classes), classes: None, ..encoder };
    ModelConfig { tied_embeddings: Some(false), encoder: Some(encoder), ..model }
}

/// Whether classes have the names that transformers gives to those without.
fn are_numbered(labels: &[String]) -> bool {
    labels.iter().enumerate().all(|(class, label)| *label == format!("LABEL_{class}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ModelKind;

    const REST: &str =
        "[run]\nname = \"a\"\nworkers = 2\nsteps = 99\n[data]\npath = \"a\"\nsequence_length = 8\n";

    fn described() -> BaseDescription {
        let sizes =
            ModelConfig { layers: 2, width: 8, heads: 2, context: 16, ..ModelConfig::of(ModelKind::Qwen3) };
        let model = ModelConfig { vocabulary: Some(99), ..sizes };
        BaseDescription { model, has_tokenizer: true, dropout: Vec::new(), labels: Vec::new() }
    }

    fn parsed(model: &str, rest: &str) -> Result<RunConfig, String> {
        let text = format!("[model]\n{model}\n{rest}");
        RunConfig::parse_with_base(&text, |folder| match folder {
            "here" => Ok(described()),
            "bare" => Ok(BaseDescription { has_tokenizer: false, ..described() }),
            "drops" => {
                let of = |key, rate, place| NamedDropout { key, rate, place };
                let dropout = vec![
                    of("resid_pdrop", 0.2, DropoutPlace::Hidden),
                    of("attn_pdrop", 0.1, DropoutPlace::Attention),
                    of("classifier_dropout", 0.3, DropoutPlace::Classifier),
                ];
                Ok(BaseDescription { dropout, ..described() })
            }
            _ => Err("is not there".to_owned()),
        })
        .map_err(|error| error.to_string())
    }

    #[test]
    fn a_folder_gives_the_description_and_the_tokenizer_and_the_effective_file_has_both() {
        let config = parsed("from = \"here\"", REST).unwrap();
        assert_eq!(config.model, ModelConfig { from: Some("here".into()), ..described().model });
        assert_eq!(config.data.tokenizer, DataConfig::OF_MODEL);
        // Workers read the effective file and have no folder.
        let effective = config.to_toml().unwrap();
        let again = RunConfig::parse_with_base(&effective, |_| Err("nothing is here".into()));
        assert_eq!(again, Ok(config.clone()));
        assert_eq!(RunConfig::parse(&effective), Ok(config));
        // In another form, and with a tokenizer of its own.
        let inline = format!("model = {{ from = \"bare\" }}\n{REST}tokenizer = \"t.json\"\n");
        let config = RunConfig::parse_with_base(&inline, |_| Ok(described())).unwrap();
        assert_eq!((config.data.tokenizer.as_str(), config.model.layers), ("t.json", 2));
    }

    #[test]
    fn dropout_of_the_model_is_asked_for() {
        let train = |keys: &str| parsed("from = \"drops\"", &format!("{REST}[train]\n{keys}"));
        for (keys, words) in [
            ("", "train.dropout = absent: the model's config.json says resid_pdrop = 0.2"),
            ("attention_dropout = 0.0", "set train.dropout = 0.2, or 0.0 for none"),
            (
                "dropout = 0.2",
                "train.attention_dropout = absent: the model's config.json says attn_pdrop = 0.1",
            ),
        ] {
            let error = train(keys).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
        assert_eq!(train("dropout = 0.2\nattention_dropout = 0.0").unwrap().train.dropout, Some(0.2));
    }

    #[test]
    fn a_folder_that_describes_nothing_and_keys_beside_it_are_refused_by_name() {
        for (model, rest, words) in [
            ("from = \"gone\"", REST.to_owned(), "model.from = gone: is not there"),
            ("from = \"bare\"", REST.to_owned(), "model.from = bare: has no tokenizer.json"),
            (
                "from = \"here\"\nlayers = 3",
                REST.to_owned(),
                "so model.layers cannot be set as well: remove it",
            ),
            ("from = \"here\"\nkind = \"gpt2\"", REST.to_owned(), "model.from = here: needs the description"),
            ("from = \"here\"", REST.replace("steps = 99", "steps = \"many\""), "line 6, `steps = \"many\"`"),
            ("from = \"here\"", REST.replace("steps", "step"), "unknown key `step`, did you mean `steps`"),
            ("from = \"here\"", REST.replace("= 8", "= 32"), "must not exceed model.context = 16"),
            ("from = 7", REST.to_owned(), "from"),
            (
                "kind = \"gpt2\"\nlayers = 1\nwidth = 8\nheads = 1\ncontext = 8",
                format!("{REST}tokenizer = \"model\"\n"),
                "data.tokenizer = model: is the tokenizer of the model that model.from names",
            ),
        ] {
            let error = parsed(model, &rest).unwrap_err();
            assert!(error.contains(words), "{model}: {error}");
        }
    }
    #[test]
    fn a_model_without_a_head_for_classes_gets_one_and_another_gives_its_names() {
        let names = |of: &[&str]| of.iter().map(ToString::to_string).collect::<Vec<String>>();
        let of = |labels: &[&str], classes: &str| {
            let text = format!("{REST}[data.classification]\n{classes}\n[model]\nfrom = \"here\"\n");
            let text = text.replace("\"a\"\nsequence", "\"a.csv\"\nsequence");
            let head = (!labels.is_empty()).then_some(EncoderHead::Classes);
            let count = (!labels.is_empty()).then_some(labels.len() as u32);
            let encoder = EncoderConfig { head, classes: count, ..EncoderConfig::default() };
            let base = BaseDescription {
                model: ModelConfig {
                    kind: ModelKind::Bert,
                    tied_embeddings: Some(labels.is_empty()),
                    encoder: Some(encoder),
                    ..described().model
                },
                labels: names(labels),
                ..described()
            };
            RunConfig::parse_with_base(&text, |_| Ok(base)).map_err(|error| error.to_string())
        };
        for (labels, classes, expected) in [
            (&[][..], "labels = [\"a\", \"b\", \"c\"]", &["a", "b", "c"][..]),
            (&["x", "y"], "", &["x", "y"]),
            (&["x", "y"], "labels = [\"x\", \"y\"]", &["x", "y"]),
            (&["LABEL_0", "LABEL_1"], "labels = [\"a\", \"b\"]", &["a", "b"]),
            (&["LABEL_0", "LABEL_1"], "", &["LABEL_0", "LABEL_1"]),
        ] {
            let config = of(labels, classes).unwrap();
            assert_eq!(config.data.classification.as_ref().unwrap().labels, names(expected));
            let encoder = config.model.encoder.clone().unwrap();
            assert_eq!(
                (encoder.head, encoder.classes),
                (Some(EncoderHead::Classes), Some(expected.len() as u32))
            );
            assert_eq!(RunConfig::parse(&config.to_toml().unwrap()), Ok(config));
        }
        for (labels, classes, words) in [
            (&[][..], "", "data.classification.labels = []: name the classes in order"),
            (&["x", "y"], "labels = [\"y\", \"x\"]", "the model's head has the classes [\"x\", \"y\"]"),
            (&["LABEL_0", "LABEL_1"], "labels = [\"a\", \"b\", \"c\"]", "the model's head has the classes"),
            (&[], "labels = 3", "labels"),
        ] {
            let message = of(labels, classes).unwrap_err();
            assert!(message.contains(words), "{classes}: {message}");
        }
    }
}
