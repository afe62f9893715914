//! Names of classes in `config.json`: `id2label`, and what goes with it.

use anyhow::{Context, Result};
use longhaul_common::config::{EncoderHead, ModelConfig};
use longhaul_common::model::ModelSpec;
use serde_json::{Map, Value, json};

use super::decoder_config::UnsupportedKey;
use super::{Companions, MODEL_CONFIG, encoder_config, model_config};

/// Returns the names of the classes of a described model, in order; none without a head for classes.
///
/// # Errors
/// A class has no name.
pub(super) fn names_of(json: &Value, model: &ModelConfig) -> Result<Vec<String>, UnsupportedKey> {
    let encoder = model.encoder.as_ref().filter(|encoder| encoder.head == Some(EncoderHead::Classes));
    let Some(classes) = encoder.and_then(|encoder| encoder.classes) else { return Ok(Vec::new()) };
    let Some(names) = json.get("id2label").and_then(Value::as_object) else {
        return Ok(numbered(classes));
    };
    if let Some(count) = json["num_labels"].as_u64().filter(|count| *count != names.len() as u64) {
        // Old releases wrote these two for any number of classes.
        if names.iter().all(|(class, name)| *name == format!("LABEL_{class}")) {
            return Ok(numbered(classes));
        }
        let reason =
            format!("num_labels is {count}, and there are names for {}: correct one of them", names.len());
        return Err(UnsupportedKey::new("id2label", &json["id2label"], reason));
    }
    let name = |class: u32| {
        let name = names.get(&class.to_string()).and_then(Value::as_str);
        name.map(str::to_owned).ok_or_else(|| {
            UnsupportedKey::new("id2label", &json!(names), format!("class {class} has no name: give it one"))
        })
    };
    let names: Vec<String> = (0..classes).map(name).collect::<Result<_, _>>()?;
    check_numbers(json, &names)?;
    Ok(names)
}

/// Refuses a `label2id` that numbers the classes otherwise than `id2label`. One with the names of classes without is as good as none.
fn check_numbers(json: &Value, names: &[String]) -> Result<(), UnsupportedKey> {
    let numbers = &json["label2id"];
    if *names == *numbered(names.len() as u32) {
        return Ok(());
    }
    for (name, number) in numbers.as_object().into_iter().flatten() {
        let Some(class) = number.as_u64().or_else(|| number.as_str()?.parse().ok()) else { continue };
        let named = usize::try_from(class).ok().and_then(|class| names.get(class));
        if named != Some(name) && *name != unnamed(class) {
            let named = named.map_or_else(|| "no class".to_owned(), |named| format!("`{named}`"));
            let reason = format!("class {class} is `{name}`, and {named} by id2label: correct one of them");
            return Err(UnsupportedKey::new("label2id", numbers, reason));
        }
    }
    Ok(())
}

/// Returns the names that transformers gives to classes without.
pub(super) fn numbered(classes: u32) -> Vec<String> {
    (0..classes.into()).map(unnamed).collect()
}

fn unnamed(class: u64) -> String {
    format!("LABEL_{class}")
}

/// Writes the classes of a model into its description.
pub(super) fn write(json: &mut Value, labels: &[String]) {
    let numbered = labels.iter().enumerate();
    let named: Map<String, Value> =
        numbered.clone().map(|(class, label)| (class.to_string(), label.as_str().into())).collect();
    let numbers: Map<String, Value> = numbered.map(|(class, label)| (label.clone(), class.into())).collect();
    json["id2label"] = named.into();
    json["label2id"] = numbers.into();
    json["problem_type"] = json!("single_label_classification");
}

impl Companions {
    /// Describes the model as one with a head for these classes.
    ///
    /// # Errors
    /// The original `config.json` is no JSON.
    pub fn with_classes(self, whole: &ModelSpec, labels: &[String]) -> Result<Self> {
        let mut json = match self.get(MODEL_CONFIG) {
            Some(original) => serde_json::from_slice(original).context("read the model's config.json")?,
            None => model_config::to_json(whole),
        };
        if let Some(class) = encoder_config::class_of(whole.kind, EncoderHead::Classes) {
            json["architectures"] = json!([class]);
        }
        write(&mut json, labels);
        if let Some(keys) = json.as_object_mut() {
            keys.remove("num_labels");
        }
        let config = [(MODEL_CONFIG.to_owned(), json.to_string().into_bytes().into())];
        Ok(config.into_iter().collect::<Self>().or(self))
    }
}

#[cfg(test)]
mod tests {
    use longhaul_common::config::{EncoderConfig, ModelKind};

    use super::*;

    #[test]
    fn classes_are_written_as_transformers_names_them_and_read_back_in_order() {
        let labels: Vec<String> = ["no", "yes", "perhaps"].map(str::to_owned).to_vec();
        let encoder =
            EncoderConfig { head: Some(EncoderHead::Classes), classes: Some(3), ..Default::default() };
        let sizes = ModelConfig {
            layers: 1,
            width: 8,
            heads: 1,
            context: 8,
            vocabulary: Some(9),
            ..ModelConfig::of(ModelKind::Bert)
        };
        let spec = ModelSpec::resolve(&ModelConfig { encoder: Some(encoder), ..sizes.clone() }, 0).unwrap();
        let masked = model_config::to_json(&ModelSpec::resolve(&sizes, 0).unwrap());
        let original = json!({ "num_labels": 2, "pad_token_id": 7 });
        let mut original_json = masked;
        original_json.as_object_mut().unwrap().extend(original.as_object().unwrap().clone());
        let original = [(MODEL_CONFIG.to_owned(), original_json.to_string().into_bytes().into())];
        for companions in [Companions::default(), original.into_iter().collect()] {
            let has_original = companions.get(MODEL_CONFIG).is_some();
            let written = companions.with_classes(&spec, &labels).unwrap();
            let json = model_config::carried(&spec, &written);
            assert_eq!(json["architectures"], json!(["BertForSequenceClassification"]));
            assert_eq!(json["id2label"], json!({ "0": "no", "1": "yes", "2": "perhaps" }));
            assert_eq!(json["label2id"], json!({ "no": 0, "yes": 1, "perhaps": 2 }));
            assert_eq!(json.get("pad_token_id").is_some(), has_original, "other keys stay");
            assert_eq!(names_of(&json, &model_config::read(&json).unwrap()).unwrap(), labels);
        }
        let mut json = model_config::to_json(&spec);
        let unnamed = names_of(&json, &model_config::read(&json).unwrap()).unwrap();
        assert_eq!(unnamed, ["LABEL_0", "LABEL_1", "LABEL_2"]);
        json["id2label"] = json!({ "0": "a", "1": "b", "7": "c" });
        let error = names_of(&json, &model_config::read(&json).unwrap()).unwrap_err();
        assert!(error.reason.contains("class 2 has no name"), "{error:?}");
        json["num_labels"] = json!(2);
        let error = names_of(&json, &model_config::read(&json).unwrap()).unwrap_err();
        assert!(error.reason.contains("num_labels is 2, and there are names for 3"), "{error:?}");
        json["id2label"] = json!({ "0": "LABEL_0", "1": "LABEL_1", "2": "LABEL_2" });
        assert_eq!(names_of(&json, &model_config::read(&json).unwrap()).unwrap(), ["LABEL_0", "LABEL_1"]);
        json["num_labels"] = Value::Null;
        json["id2label"] = json!({ "0": "a", "1": "b", "2": "b" });
        for (numbers, words) in [
            (json!({ "b": 0, "a": 1 }), "class 1 is `a`, and `b` by id2label: correct"),
            (json!({ "a": 0, "c": "1" }), "class 1 is `c`, and `b` by id2label: correct"),
            (json!({ "a": 3 }), "class 3 is `a`, and no class by id2label: correct"),
            (json!({ "a": 0, "b": 2 }), ""),
            (json!({ "LABEL_0": 0, "LABEL_1": 1, "LABEL_2": 2 }), ""),
        ] {
            json["label2id"] = numbers;
            let error = names_of(&json, &model_config::read(&json).unwrap()).err();
            let told = error.map(|error| format!("{}: {}", error.key, error.reason)).unwrap_or_default();
            assert_eq!(told.is_empty(), words.is_empty(), "{told}");
            assert!(told.is_empty() || told.starts_with(&format!("label2id: {words}")), "{told}");
        }
    }
}
