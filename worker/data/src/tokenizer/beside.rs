//! Files beside a `tokenizer.json` with which the `transformers` library changes its tokenizer: missing tokens, and contradicting settings.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;
use serde_json::{Map, Value};

use super::classes::{self, Part, Taken};
use super::other_files::{WHOLE, command};

/// Upper bound in bytes of such a file.
const BYTES_MAX: u64 = 64 << 20;
const ADDED: &str = "added_tokens.json";
pub(super) const SPECIAL: &str = "special_tokens_map.json";
pub(super) const SETTINGS: &str = "tokenizer_config.json";
pub(super) const CONFIG: &str = "config.json";
const SPLITS: &str = "split_special_tokens";
/// Classes for which the library takes `tokenizer.json` unchanged, except for added tokens.
const GENERIC: [&str; 2] = ["PreTrainedTokenizerFast", "TokenizersBackend"];

/// The parts of a `tokenizer.json` that other files may change.
#[derive(Deserialize)]
pub(super) struct Whole {
    #[serde(default)]
    pub(super) added_tokens: Vec<AddedToken>,
    #[serde(default)]
    pub(super) normalizer: Value,
    #[serde(default)]
    pub(super) pre_tokenizer: Value,
    #[serde(default)]
    pub(super) model: Value,
}

/// A token matched before all others, in the form of `tokenizer.json` and `added_tokens_decoder`.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct AddedToken {
    pub(super) content: String,
    #[serde(default)]
    lstrip: bool,
    #[serde(default)]
    rstrip: bool,
    #[serde(default)]
    single_word: bool,
    /// Matched in the normalised text. May be absent from `added_tokens_decoder`.
    #[serde(default)]
    normalized: Option<bool>,
}

impl AddedToken {
    /// Whether these flags change its matching.
    pub(super) fn differs(&self, flags: &Map<String, Value>, has_normalizer: bool) -> bool {
        let own = [
            ("lstrip", Some(self.lstrip)),
            ("rstrip", Some(self.rstrip)),
            ("single_word", Some(self.single_word)),
            ("normalized", self.normalized.filter(|_| has_normalizer)),
        ];
        own.into_iter()
            .any(|(name, own)| flags.get(name).and_then(Value::as_bool).zip(own).is_some_and(|(a, b)| a != b))
    }

    fn has_same_flags(&self, other: &Self) -> bool {
        let flags = |token: &Self| (token.lstrip, token.rstrip, token.single_word);
        self.content == other.content && flags(self) == flags(other)
    }
}

/// Returns the reason why other files change this `tokenizer.json`; `None`: they do not, or it has another name.
pub(super) fn contradicted(json: &[u8], path: &Path) -> Option<String> {
    let folder = path.parent().filter(|_| path.ends_with(WHOLE))?;
    let read = |name: &str| object(&folder.join(name));
    let (added, special, settings) = (read(ADDED), read(SPECIAL), read(SETTINGS));
    if [&added, &special, &settings].into_iter().all(Option::is_none) {
        return None;
    }
    let whole: Whole = serde_json::from_slice(json).ok()?;
    let empty = Map::new();
    let taken = classes::taken(json, settings.as_ref(), read(CONFIG).as_ref());
    let settings = settings.as_ref().unwrap_or(&empty);
    let why = lacking(&whole, ADDED, added.iter().flat_map(Map::keys).map(String::as_str))
        .or_else(|| lacking(&whole, SPECIAL, special.iter().flat_map(named)))
        .or_else(|| lacking(&whole, SETTINGS, named(settings)))
        .or_else(|| other_version(settings, folder))
        .or_else(|| decoder(&whole, settings))
        .or_else(|| other_setting(&whole, settings, &taken))?;
    if why.contains(SPLITS) {
        return Some(format!("{why}: name a copy of {WHOLE} in a folder of its own, where they are not"));
    }
    Some(format!(
        "{why}: {}; or name a copy of {WHOLE} in a folder of its own, to have it as it is",
        command(if folder.as_os_str().is_empty() { Path::new(".") } else { folder })
    ))
}

pub(super) fn object(path: &Path) -> Option<Map<String, Value>> {
    let is_one = std::fs::metadata(path).is_ok_and(|file| file.is_file() && file.len() <= BYTES_MAX);
    is_one.then(|| serde_json::from_slice(&std::fs::read(path).ok()?).ok()).flatten()
}

/// Returns the tokens named as in `"pad_token": "<pad>"`, as an object, or in lists of these.
pub(super) fn named(object: &Map<String, Value>) -> impl Iterator<Item = &str> {
    object.iter().flat_map(move |(key, value)| {
        let tokens: Vec<&str> = match value {
            Value::Array(all) if key.ends_with("special_tokens") => all.iter().filter_map(content).collect(),
            Value::Object(all)
                if ["extra_special_tokens", "model_specific_special_tokens"].contains(&key.as_str()) =>
            {
                all.values().filter_map(content).collect()
            }
            _ if key.ends_with("_token") => content(value).into_iter().collect(),
            _ => Vec::new(),
        };
        tokens
    })
}

pub(super) fn content(value: &Value) -> Option<&str> {
    value.as_str().or_else(|| value.get("content")?.as_str())
}

/// Returns a message for the first that is no added token.
fn lacking<'t>(whole: &Whole, file: &str, mut tokens: impl Iterator<Item = &'t str>) -> Option<String> {
    let is_there = |token: &str| whole.added_tokens.iter().any(|added| added.content == token);
    let token = tokens.find(|token| !token.is_empty() && !is_there(token))?;
    Some(format!("{file} beside it adds the token {token:?}, which would be text"))
}

/// Returns a message if `transformers` reads a file for its own version in place of this one.
fn other_version(settings: &Map<String, Value>, folder: &Path) -> Option<String> {
    let names = settings.get("fast_tokenizer_files")?.as_array()?;
    let is_one = |name: &&str| {
        let version = name.strip_prefix("tokenizer.").and_then(|name| name.strip_suffix(".json"));
        version.is_some_and(|version| version.starts_with(|c: char| c.is_ascii_digit()))
            && folder.join(name).is_file()
    };
    let name = names.iter().filter_map(Value::as_str).find(is_one)?;
    Some(format!("{SETTINGS} beside it names {name} in fast_tokenizer_files, which is read in its place"))
}

/// Returns a message for the first of `added_tokens_decoder` that differs.
fn decoder(whole: &Whole, settings: &Map<String, Value>) -> Option<String> {
    let tokens: BTreeMap<String, AddedToken> =
        serde_json::from_value(settings.get("added_tokens_decoder")?.clone()).ok()?;
    lacking(whole, SETTINGS, tokens.values().map(|token| token.content.as_str())).or_else(|| {
        let is_other =
            |token: &&AddedToken| !whole.added_tokens.iter().any(|added| added.has_same_flags(token));
        let token = tokens.values().find(is_other)?;
        Some(format!(
            "{SETTINGS} beside it has other flags (lstrip, rstrip, single_word) of the token {:?}",
            token.content
        ))
    })
}

/// Returns a message for a class that builds another model than the file's. For Llama's classes, both kinds are in use.
fn other_model(whole: &Whole, class: &str) -> Option<String> {
    let there = whole.model.get("type")?.as_str()?;
    let known = classes::by_name(class).filter(|_| !class.contains("Llama"))?;
    let built = known.built(Part::Model, &known.values(&Map::new(), false))?.get("type")?.as_str()?;
    (built != there).then(|| {
        format!("{SETTINGS} beside it says tokenizer_class = {class:?}, which makes a {built} model, and the file itself has {there}")
    })
}

/// Returns a message if lower-casing contradicts the setting. A character map may also lower-case.
fn other_case(whole: &Whole, class: &str, settings: &Map<String, Value>) -> Option<String> {
    let said = settings.get("do_lower_case")?.as_bool()?;
    let has = |kind| step(&whole.normalizer, kind).is_some();
    let is_other = match said {
        true => !has("Lowercase") && !has("Precompiled"),
        false => has("Lowercase"),
    };
    let is_step = || {
        let [small, others] = built_with(class, Part::Normalizer, "do_lower_case")?;
        Some(step(small, "Lowercase").is_some() && step(others, "Lowercase").is_none())
    };
    (is_other && is_step() == Some(true)).then(|| {
        let steps = if said { "no step that does" } else { "a step that does all the same" };
        format!("{SETTINGS} beside it says do_lower_case = {said}, and the file itself has {steps}")
    })
}

/// Returns a message for a setting that contradicts the file's own steps.
fn other_setting(whole: &Whole, settings: &Map<String, Value>, taken: &Taken) -> Option<String> {
    if settings.get(SPLITS) == Some(&Value::Bool(true)) {
        return Some(format!("{SETTINGS} beside it says {SPLITS}, so that special tokens are text"));
    }
    let class = settings.get("tokenizer_class").and_then(Value::as_str).unwrap_or(GENERIC[0]);
    if GENERIC.contains(&class) || matches!(taken, Taken::File) {
        return None;
    }
    // A class with its own steps may ignore a setting.
    let own = if let Taken::Class { class, .. } = taken { class.settings.as_ref() } else { None };
    let counts = |key: &str| own.is_none_or(|own| own.contains_key(key));
    const OF_BERT: [(&str, &str); 3] = [
        ("do_lower_case", "lowercase"),
        ("strip_accents", "strip_accents"),
        ("tokenize_chinese_chars", "handle_chinese_chars"),
    ];
    let bert = step(&whole.normalizer, "BertNormalizer");
    let byte_level = step(&whole.pre_tokenizer, "ByteLevel");
    let pairs = OF_BERT.iter().map(|(key, own)| (bert, *key, *own));
    let why = other_model(whole, class)
        .or_else(|| other_prefix(whole, class, settings))
        .or_else(|| other_case(whole, class, settings));
    if why.is_some() {
        return why;
    }
    let pairs = pairs.chain([(byte_level, "add_prefix_space", "add_prefix_space")]);
    let mut pairs = pairs.filter(|(_, key, _)| counts(key));
    pairs.find_map(|(step, key, own)| {
        let (said, there) = (settings.get(key)?.as_bool()?, step?.get(own)?.as_bool());
        // Without its own setting, accents are stripped with lower-casing.
        let there = there.or_else(|| step?.get("lowercase")?.as_bool().filter(|_| own == "strip_accents"))?;
        (said != there)
            .then(|| format!("{SETTINGS} beside it says {key} = {said}, and the file itself {own} = {there}"))
    })
}

/// Returns a part as a class builds it with and without this setting.
fn built_with(class: &str, part: Part, setting: &str) -> Option<[&'static Value; 2]> {
    let class = classes::by_name(class)?;
    let built = |said: bool| {
        let settings = serde_json::json!({ setting: said });
        class.built(part, &class.values(settings.as_object()?, false))
    };
    Some([built(true)?, built(false)?])
}

/// Returns a message if the space mark before a text, from `Metaspace` or a normalizer, contradicts the setting.
fn other_prefix(whole: &Whole, class: &str, settings: &Map<String, Value>) -> Option<String> {
    let said = settings.get("add_prefix_space")?.as_bool()?;
    let scheme =
        step(&whole.pre_tokenizer, "Metaspace").and_then(|step| step.get("prepend_scheme")?.as_str());
    let prepends = step(&whole.normalizer, "Prepend").is_some();
    let (there, own) = match scheme {
        Some(scheme) => (scheme != "never" || prepends, format!("prepend_scheme = {scheme:?}")),
        None if prepends => (true, "the normalizer Prepend".to_owned()),
        None => return None,
    };
    let takes_setting = || {
        let schemes = built_with(class, Part::PreTokenizer, "add_prefix_space")?
            .map(|built| step(built, "Metaspace")?.get("prepend_scheme")?.as_str());
        Some(schemes[0]? != "never" && schemes[1]? == "never")
    };
    let is_other = said != there && takes_setting() == Some(true);
    is_other
        .then(|| format!("{SETTINGS} beside it says add_prefix_space = {said}, and the file itself {own}"))
}

/// Finds a step of a kind, possibly within a sequence.
fn step<'v>(steps: &'v Value, kind: &str) -> Option<&'v Value> {
    if steps.get("type").and_then(Value::as_str) == Some(kind) {
        return Some(steps);
    }
    let all = ["normalizers", "pretokenizers"].into_iter().find_map(|key| steps.get(key)?.as_array())?;
    all.iter().find_map(|inner| step(inner, kind))
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHOLE_FILE: &str = r#"{"added_tokens":[{"id":5,"content":"<s>","lstrip":false,"rstrip":false,"single_word":false,"special":true}],
        "normalizer":{"type":"Sequence","normalizers":[{"type":"NFC"},{"type":"BertNormalizer","lowercase":false,"strip_accents":null,"handle_chinese_chars":true}]},
        "pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false},"model":{"type":"BPE"}}"#;

    /// Returns the message for [`WHOLE_FILE`] beside these files.
    fn told(files: &[(&str, &str)]) -> Option<String> {
        let folder = tempfile::tempdir().unwrap();
        files.iter().for_each(|(name, content)| std::fs::write(folder.path().join(name), content).unwrap());
        contradicted(WHOLE_FILE.as_bytes(), &folder.path().join(WHOLE))
    }

    #[test]
    fn a_file_for_other_versions_is_told_where_it_is_there_and_named() {
        let settings = |name: &str| format!(r#"{{"fast_tokenizer_files": ["{name}", "tokenizer.json"]}}"#);
        for (named, there, is_told) in [
            ("tokenizer.4.0.0.json", "tokenizer.4.0.0.json", true),
            ("tokenizer.5.json", "tokenizer.5.json", true),
            ("tokenizer.4.0.0.json", "tokenizer.4.0.1.json", false),
            ("tokenizer.json", "tokenizer.4.0.0.json", false),
            ("tokenizer.old.json", "tokenizer.old.json", false),
        ] {
            let told = told(&[(SETTINGS, &settings(named)), (there, "{}")]);
            assert_eq!(told.is_some_and(|told| told.contains(named)), is_told, "{named}, {there}");
        }
    }

    /// Each makes other tokens with `transformers` 5.24.
    #[test]
    fn what_other_files_add_or_change_is_told() {
        for (name, content, words) in [
            (
                ADDED,
                r#"{"<x>": 6}"#,
                "added_tokens.json beside it adds the token \"<x>\", which would be text",
            ),
            (
                SPECIAL,
                r#"{"pad_token": "<pad>"}"#,
                "special_tokens_map.json beside it adds the token \"<pad>\"",
            ),
            (SPECIAL, r#"{"eos_token": {"content": "</s>", "lstrip": false}}"#, "the token \"</s>\""),
            (SETTINGS, r#"{"additional_special_tokens": ["<s>", "<y>"]}"#, "the token \"<y>\""),
            (SETTINGS, r#"{"extra_special_tokens": {"image_token": "<image>"}}"#, "the token \"<image>\""),
            (SETTINGS, r#"{"model_specific_special_tokens": {"image_token": "<i>"}}"#, "the token \"<i>\""),
            (
                SETTINGS,
                r#"{"added_tokens_decoder": {"6": {"content": "<x>", "special": true}}}"#,
                "the token \"<x>\"",
            ),
            (
                SETTINGS,
                r#"{"added_tokens_decoder": {"5": {"content": "<s>", "lstrip": true}}}"#,
                "other flags",
            ),
            (SETTINGS, r#"{"split_special_tokens": true}"#, "split_special_tokens"),
            (
                SETTINGS,
                r#"{"tokenizer_class": "ElectraTokenizer"}"#,
                "says tokenizer_class = \"ElectraTokenizer\", which makes a WordPiece model, and the file itself has BPE",
            ),
            (SETTINGS, r#"{"tokenizer_class": "T5TokenizerFast"}"#, "which makes a Unigram model"),
            (
                SETTINGS,
                r#"{"tokenizer_class": "BertGenerationTokenizer", "do_lower_case": true}"#,
                "says do_lower_case = true, and the file itself lowercase = false",
            ),
            (
                SETTINGS,
                r#"{"tokenizer_class": "BertJapaneseTokenizer", "strip_accents": true}"#,
                "strip_accents = false",
            ),
            (
                SETTINGS,
                r#"{"tokenizer_class": "MyBertTokenizerFast", "tokenize_chinese_chars": false}"#,
                "handle_chinese",
            ),
            (
                SETTINGS,
                r#"{"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": true}"#,
                "add_prefix_space = true",
            ),
        ] {
            let told = told(&[(name, content)]).unwrap();
            let is_split = content.contains(SPLITS);
            assert!(
                told.contains(words) && told.contains("save_pretrained('OUT')") != is_split,
                "{content}: {told}"
            );
            assert!(told.contains("name a copy of tokenizer.json in a folder of its own"), "{told}");
        }
    }

    #[test]
    fn a_mark_before_a_text_is_compared_for_classes_that_take_it_from_the_setting() {
        let metaspace = r#"{"pre_tokenizer":{"type":"Metaspace","prepend_scheme":"always"}}"#;
        let prepend = r#"{"normalizer":{"type":"Sequence","normalizers":[{"type":"Prepend","prepend":"▁"},{"type":"Replace"}]}}"#;
        for (whole, class, said, is_other) in [
            (metaspace, "LlamaTokenizer", false, true),
            (metaspace, "LlamaTokenizerFast", true, false),
            (metaspace, "XLMRobertaTokenizer", false, true),
            (metaspace, "T5Tokenizer", false, false),
            (prepend, "LlamaTokenizer", false, true),
            (prepend, "LlamaTokenizer", true, false),
            (prepend, "T5Tokenizer", false, false),
            (r#"{"normalizer":{"type":"NFC"}}"#, "LlamaTokenizer", true, false),
        ] {
            let (whole, settings) =
                (serde_json::from_str(whole).unwrap(), serde_json::json!({ "add_prefix_space": said }));
            let told = other_prefix(&whole, class, settings.as_object().unwrap());
            assert_eq!(told.is_some(), is_other, "{class} {said}: {told:?}");
        }
    }

    #[test]
    fn letters_that_a_class_makes_small_otherwise_than_the_file_are_told() {
        let small = r#"{"type":"Sequence","normalizers":[{"type":"NFKD"},{"type":"Lowercase"}]}"#;
        let map = r#"{"type":"Sequence","normalizers":[{"type":"Precompiled"}]}"#;
        for (class, said, normalizer, is_other) in [
            ("AlbertTokenizer", false, small, true),
            ("AlbertTokenizer", true, small, false),
            ("XLNetTokenizerFast", true, r#"{"type":"NFC"}"#, true),
            ("XLNetTokenizerFast", false, r#"{"type":"NFC"}"#, false),
            ("RemBertTokenizer", true, map, false),
            ("T5Tokenizer", false, small, false),
        ] {
            let whole: Whole = serde_json::from_str(&format!(r#"{{"normalizer":{normalizer}}}"#)).unwrap();
            let settings = serde_json::json!({ "do_lower_case": said });
            let told = other_case(&whole, class, settings.as_object().unwrap());
            assert_eq!(told.is_some(), is_other, "{class} {said}: {told:?}");
        }
    }

    #[test]
    fn files_that_change_nothing_are_not_told() {
        for (name, content) in [
            (ADDED, r#"{"<s>": 5}"#),
            (SPECIAL, r#"{"bos_token": "<s>", "pad_token": null}"#),
            (SETTINGS, r#"{"bos_token": "<s>", "add_bos_token": true, "model_max_length": 1024}"#),
            (SETTINGS, r#"{"added_tokens_decoder": {"5": {"content": "<s>", "special": true}}}"#),
            // Of its class the library takes the file's own steps.
            (
                SETTINGS,
                r#"{"tokenizer_class": "PreTrainedTokenizerFast", "do_lower_case": true, "add_prefix_space": true}"#,
            ),
            (
                SETTINGS,
                r#"{"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": false, "do_lower_case": false}"#,
            ),
            (
                SETTINGS,
                r#"{"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": null, "strip_accents": null}"#,
            ),
            (SETTINGS, "[]"),
            (SETTINGS, "{"),
            ("config.json", r#"{"pad_token": "<pad>"}"#),
        ] {
            assert_eq!(told(&[(name, content)]), None, "{content}");
        }
        let elsewhere = tempfile::tempdir().unwrap();
        std::fs::write(elsewhere.path().join(ADDED), r#"{"<x>": 6}"#).unwrap();
        assert_eq!(contradicted(WHOLE_FILE.as_bytes(), &elsewhere.path().join("mine.json")), None);
    }
}
