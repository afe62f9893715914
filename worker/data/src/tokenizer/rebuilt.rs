//! Cases in which `transformers` 5 builds another tokenizer than `tokenizer.json` describes: most classes take only its vocabulary and add their own steps.

use std::collections::HashSet;
use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::{NormalizerWrapper, PreTokenizerWrapper};

use super::beside::{CONFIG, SETTINGS, SPECIAL, Whole, content, named, object};
use super::classes::{self, Class, Part, Taken};
use super::described::byte_name;
use super::other_files::WHOLE;

const CHARSMAP: &str = "precompiled_charsmap";
const DECODER: &str = "added_tokens_decoder";
const UNK: &str = "unk_token";
/// Placeholder for the token of `unk_token`.
const NAMED: &str = "$";
/// Characters of a step shown in a message.
const SHOWN: usize = 200;

/// Explains why `AutoTokenizer` of `transformers` 5 may make other tokens than this `tokenizer.json`. Tokens here are the file's,
/// as in earlier versions and other programs.
pub(super) fn rebuilt(json: &[u8], path: &Path) -> Option<String> {
    let folder = path.parent().filter(|_| path.ends_with(WHOLE))?;
    let (settings, config) = (object(&folder.join(SETTINGS)), object(&folder.join(CONFIG)));
    let why = match classes::taken(json, settings.as_ref(), config.as_ref()) {
        Taken::File => return None,
        Taken::OwnProgram(said) => {
            format!("{said}, which in `transformers` 5 does not read {WHOLE} and makes tokens of other files")
        }
        Taken::Unknown(said) => {
            format!(
                "{said}, and whether `transformers` makes other steps of it than the file has is not known"
            )
        }
        Taken::Class { said, name, class } => {
            let mut settings = settings.unwrap_or_default();
            if !settings.contains_key(DECODER) {
                settings.extend(object(&folder.join(SPECIAL)).unwrap_or_default());
            }
            let other = difference(&serde_json::from_slice(json).ok()?, class, &settings)?;
            format!("{said}; `transformers` 5 builds {name} with {other}")
        }
    };
    Some(format!("{why}: tokens here are the file's"))
}

/// Describes how a class differs from the file; `None`: it makes the same tokens.
fn difference(whole: &Whole, class: &Class, settings: &Map<String, Value>) -> Option<String> {
    let tokens = || other_token(whole, class, settings);
    if class.settings.is_none() {
        return tokens();
    }
    let file = [
        steps(&canonical::<NormalizerWrapper>(&whole.normalizer)),
        steps(&canonical::<PreTokenizerWrapper>(&whole.pre_tokenizer)),
    ];
    // The class takes the first character map at any place.
    let map = file[0].iter().find_map(|step| step.get(CHARSMAP));
    let values = class.values(settings, map.is_some());
    let built = [Part::Normalizer, Part::PreTokenizer].map(|part| class.built(part, &values).map(steps));
    other_kind(whole, class, &values)
        .or_else(|| {
            let names = ["normalizer", "pre_tokenizer"];
            names.into_iter().zip(&file).zip(&built).find_map(|((name, there), built)| {
                let there: Vec<Value> = there.iter().map(|step| without(step, map)).collect();
                built.as_ref().and_then(|built| other_steps(name, built, &there))
            })
        })
        .or_else(|| {
            let model = class.built(Part::Model, &values)?;
            other_model(whole, class, settings, model, [built[1].as_deref().unwrap_or_default(), &file[1]])
        })
        .or_else(|| other_vocabulary(whole, class))
        .or_else(tokens)
}

/// Returns a part in the library's form, with all optional fields.
fn canonical<T: DeserializeOwned + Serialize>(part: &Value) -> Value {
    serde_json::from_value::<T>(part.clone()).and_then(serde_json::to_value).unwrap_or_else(|_| part.clone())
}

/// Returns the steps of a part in order, without settings that change no token.
fn steps(part: &Value) -> Vec<Value> {
    let inner = ["normalizers", "pretokenizers"].into_iter().find_map(|key| part.get(key)?.as_array());
    if let Some(inner) = inner {
        return inner.iter().flat_map(steps).collect();
    }
    let Value::Object(step) = part else { return Vec::new() };
    let mut step = step.clone();
    step.remove("trim_offsets");
    let kind = step.get("type").and_then(Value::as_str).unwrap_or_default();
    match kind {
        // It strips nothing.
        "Strip"
            if ["strip_left", "strip_right"].iter().all(|side| step.get(*side) == Some(&false.into())) =>
        {
            return Vec::new();
        }
        // Without its own setting, accents are stripped with lower-casing.
        "BertNormalizer" if step.get("strip_accents").is_none_or(Value::is_null) => {
            let lowercase = step.get("lowercase").cloned().unwrap_or_default();
            step.insert("strip_accents".to_owned(), lowercase);
        }
        _ => {}
    }
    // A regular expression of plain characters equals a text.
    if let Some(pattern) = step.get("pattern").and_then(|pattern| pattern.get("Regex")?.as_str())
        && pattern.chars().all(|c| c.is_alphanumeric() || c == ' ' || c == '▁')
    {
        let text = serde_json::json!({ "String": pattern });
        step.insert("pattern".to_owned(), text);
    }
    vec![Value::Object(step)]
}

/// Returns a step without the file's character map, which the class shares.
fn without(step: &Value, map: Option<&Value>) -> Value {
    let mut step = step.clone();
    if step.get(CHARSMAP) == map
        && let Value::Object(step) = &mut step
    {
        step.remove(CHARSMAP);
    }
    step
}

/// Describes a model of another kind than the file's.
fn other_kind(whole: &Whole, class: &Class, values: &Map<String, Value>) -> Option<String> {
    let (built, there) = (class.built(Part::Model, values)?.get("type")?, whole.model.get("type")?.as_str()?);
    (built != there)
        .then(|| format!("a {} model, and the file has {there}", built.as_str().unwrap_or_default()))
}

fn other_steps(name: &str, built: &[Value], there: &[Value]) -> Option<String> {
    let index = (0..built.len().max(there.len())).find(|index| built.get(*index) != there.get(*index))?;
    let kinds = |steps: &[Value]| {
        let kinds: Vec<&str> = steps.iter().map(|step| step["type"].as_str().unwrap_or_default()).collect();
        if kinds.is_empty() { "none".to_owned() } else { kinds.join(", ") }
    };
    let is_same = kinds(built) == kinds(there);
    let shown = |steps: &[Value]| match steps.get(index).filter(|_| is_same) {
        Some(step) => step.to_string().chars().take(SHOWN).collect(),
        None => kinds(steps),
    };
    Some(format!("the {name} {}, and the file has {}", shown(built), shown(there)))
}

/// Describes a property in which the model differs from the file's.
fn other_model(
    whole: &Whole,
    class: &Class,
    settings: &Map<String, Value>,
    built: &Value,
    [built_steps, file_steps]: [&[Value]; 2],
) -> Option<String> {
    let there = &whole.model;
    let words = words(there);
    let never = |model: &Value, steps: &[Value]| never_unknown(model, &words, steps);
    let is_never_unknown = never(built, built_steps) && never(there, file_steps);
    if !is_never_unknown && let Some(why) = other_unknown(whole, class, settings) {
        return Some(why);
    }
    let has_bytes = (0..=u8::MAX).any(|byte| words.contains(byte_name(byte).as_str()));
    let has_unknown = there.get(UNK).is_some_and(|token| !token.is_null());
    let is_words = built["type"] == "WordPiece";
    let is_nothing = |value: &Value| value.is_null() || *value == false || *value == "";
    built.as_object()?.iter().find_map(|(key, value)| {
        let (counts, default): (bool, Value) = match key.as_str() {
            "type" => (false, Value::Null),
            UNK => (!is_never_unknown, if is_words { "[UNK]".into() } else { Value::Null }),
            "fuse_unk" => (!is_never_unknown && has_unknown, false.into()),
            "byte_fallback" => (!is_never_unknown && has_bytes, false.into()),
            "continuing_subword_prefix" if is_words => (true, "##".into()),
            "max_input_chars_per_word" => (true, 100.into()),
            _ => (true, Value::Null),
        };
        let named = (key == UNK && value == NAMED)
            .then(|| unknown_name(class, settings).map_or(Value::Null, Value::from));
        let (value, file) =
            (named.unwrap_or_else(|| value.clone()), there.get(key).cloned().unwrap_or(default));
        let is_same = value == file || is_nothing(&value) && is_nothing(&file);
        (counts && !is_same).then(|| format!("{key} = {value} in its model, and the file has {file}"))
    })
}

/// Describes another index of the unknown token in a list of tokens.
fn other_unknown(whole: &Whole, class: &Class, settings: &Map<String, Value>) -> Option<String> {
    let unk = class.unk_id.as_ref()?;
    let name = unknown_name(class, settings).unwrap_or_default();
    let has_place =
        |item: &Value| item[0] == name.as_str() && (unk.any_score || item[1].as_f64() == Some(0.0));
    let found = || whole.model.get("vocab")?.as_array()?.iter().position(has_place);
    let found = if unk.is.is_none() { found().map(|place| place as u64) } else { None };
    let said = settings.get("unk_id").filter(|_| unk.setting).and_then(Value::as_u64);
    // Without an index, it does not load.
    let number = found.or(said).or(unk.is).or(unk.otherwise)?;
    let there = whole.model.get("unk_id").and_then(Value::as_u64);
    let shown = || there.map_or("none".to_owned(), |there| there.to_string());
    (there != Some(number)).then(|| format!("unk_id = {number} in its model, and the file has {}", shown()))
}

/// Returns the name of the unknown token.
fn unknown_name(class: &Class, settings: &Map<String, Value>) -> Option<String> {
    settings.get(UNK).and_then(content).or(class.tokens.get(UNK).map(String::as_str)).map(str::to_owned)
}

fn words(model: &Value) -> HashSet<&str> {
    match model.get("vocab") {
        Some(Value::Object(vocab)) => vocab.keys().map(String::as_str).collect(),
        Some(Value::Array(vocab)) => vocab.iter().filter_map(|item| item[0].as_str()).collect(),
        _ => HashSet::new(),
    }
}

/// Whether a model with these words, after these steps, has a token for everything.
fn never_unknown(model: &Value, words: &HashSet<&str>, steps: &[Value]) -> bool {
    let is_empty = |key: &str| model.get(key).and_then(Value::as_str).unwrap_or_default().is_empty();
    let is_plain = ["continuing_subword_prefix", "end_of_word_suffix"].into_iter().all(is_empty);
    let has_bytes = || (0..=u8::MAX).all(|byte| words.contains(byte_name(byte).as_str()));
    let has_alphabet =
        || ByteLevel::alphabet().into_iter().all(|letter| words.contains(letter.to_string().as_str()));
    model.get("byte_fallback") == Some(&true.into()) && has_bytes()
        || model["type"] == "BPE"
            && is_plain
            && steps.last().is_some_and(|step| step["type"] == "ByteLevel")
            && has_alphabet()
}

fn other_vocabulary(whole: &Whole, class: &Class) -> Option<String> {
    let there = words(&whole.model);
    let has_number = |(number, word): (usize, &String)| {
        whole.model["vocab"].get(word).and_then(Value::as_u64) == Some(number as u64)
    };
    let is_other = match (&class.vocabulary, &class.vocabulary_with) {
        (Some(own), _) => own.len() != there.len() || !own.iter().enumerate().all(has_number),
        (None, Some(some)) => !some.iter().any(|word| there.contains(word.as_str())),
        (None, None) => false,
    };
    is_other.then(|| "a vocabulary of its own, and the file has another".to_owned())
}

/// Describes a token that a class adds, omits or matches differently.
fn other_token(whole: &Whole, class: &Class, settings: &Map<String, Value>) -> Option<String> {
    let token = |content: &str| whole.added_tokens.iter().find(|added| added.content == content);
    let mut names = Vec::new();
    for (setting, default) in &class.tokens {
        match settings.get(setting) {
            None => names.push((default.as_str(), class.flags.get(default))),
            Some(said) => {
                names.extend(content(said).map(|said| (said, class.flags_given.get(default))));
            }
        }
    }
    names.extend(class.more(settings).iter().map(|token| (token.as_str(), class.flags.get(token))));
    if let Some((name, _)) = names.iter().find(|(name, _)| token(name).is_none()) {
        return Some(format!("the added token {name:?}, which the file has not"));
    }
    let is_other = |(name, flags): &&(&str, Option<&Map<String, Value>>)| {
        let has_normalizer = !whole.normalizer.is_null();
        flags.zip(token(name)).is_some_and(|(flags, token)| token.differs(flags, has_normalizer))
    };
    if let Some((name, _)) = names.iter().find(is_other) {
        return Some(format!(
            "other flags (lstrip, rstrip, single_word, normalized) of the token {name:?} than the file has"
        ));
    }
    // If the settings list added tokens, a class with its own steps takes only these.
    let listed = settings.get(DECODER).filter(|_| class.settings.is_some())?.as_object()?;
    let is_listed = |name: &str| {
        listed.values().any(|token| content(token) == Some(name))
            || named(settings).any(|token| token == name)
    };
    let left_out = whole.added_tokens.iter().find(|token| {
        let name = token.content.as_str();
        !is_listed(name) && !names.iter().any(|(other, _)| *other == name)
    })?;
    Some(format!("no token {:?} of those that the file adds ({SETTINGS} lists others)", left_out.content))
}

#[cfg(test)]
mod tests;
