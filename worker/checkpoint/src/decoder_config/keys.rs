//! Reading of an object's keys, of which none may be left.

use std::cell::RefCell;
use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::UnsupportedKey;

/// Keys of transformers' base class that change no computation of the model: names, tokens, outputs, other frameworks, and generation, whose defaults old
/// releases wrote with every model.
const OF_EVERY_MODEL: [&str; 65] = [
    "_attn_implementation",
    "_attn_implementation_autoset",
    "_commit_hash",
    "_flash_attn_2_enabled",
    "_name_or_path",
    "_num_labels",
    "architectures",
    "auto_map",
    "bad_words_ids",
    "begin_suppress_tokens",
    "bos_token_id",
    "cache_implementation",
    "chunk_size_feed_forward",
    "decoder_start_token_id",
    "diversity_penalty",
    "do_sample",
    "dtype",
    "early_stopping",
    "encoder_no_repeat_ngram_size",
    "eos_token_id",
    "eos_token_ids",
    "exponential_decay_length_penalty",
    "finetuning_task",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "gradient_checkpointing",
    "id2label",
    "initializer_range",
    "label2id",
    "length_penalty",
    "max_length",
    "min_length",
    "model_type",
    "no_repeat_ngram_size",
    "num_beam_groups",
    "num_beams",
    "num_labels",
    "num_return_sequences",
    "output_attentions",
    "output_hidden_states",
    "output_past",
    "output_scores",
    "prefix",
    "problem_type",
    "remove_invalid_values",
    "repetition_penalty",
    "return_dict",
    "return_dict_in_generate",
    "sep_token_id",
    "suppress_tokens",
    "task_specific_params",
    "temperature",
    "tf_legacy_loss",
    "tokenizer_class",
    "top_k",
    "top_p",
    "torch_dtype",
    "torchscript",
    "transformers.js_config",
    "transformers_version",
    "typical_p",
    "unsloth_fixed",
    "use_bfloat16",
    "use_cache",
    "xla_device",
];

/// The keys of an object, which all have to be read.
pub(crate) struct Keys<'a> {
    pub(super) of: &'a Map<String, Value>,
    read: RefCell<BTreeSet<&'static str>>,
    /// Prefix of the keys in messages.
    path: &'static str,
}

pub(crate) type Read<T> = Result<T, UnsupportedKey>;

impl<'a> Keys<'a> {
    pub(crate) fn new(of: &'a Map<String, Value>, path: &'static str) -> Self {
        Self { of, read: RefCell::default(), path }
    }

    /// Returns a value; `None`: it is absent or null.
    pub(crate) fn get(&self, key: &'static str) -> Option<&'a Value> {
        self.read.borrow_mut().insert(key);
        self.of.get(key).filter(|value| !value.is_null())
    }

    pub(crate) fn refused(&self, key: &str, value: &Value, reason: impl Into<String>) -> UnsupportedKey {
        UnsupportedKey::new(&format!("{}{key}", self.path), value, reason)
    }

    pub(crate) fn parsed<T>(
        &self,
        key: &'static str,
        wanted: &str,
        parse: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Read<Option<T>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let parsed = parse(value).ok_or_else(|| self.refused(key, value, format!("it must be {wanted}")))?;
        Ok(Some(parsed))
    }

    pub(crate) fn count(&self, key: &'static str) -> Read<Option<u32>> {
        self.parsed(key, "a whole number below 2^32", |value| value.as_u64()?.try_into().ok())
    }

    pub(crate) fn number(&self, key: &'static str) -> Read<Option<f64>> {
        self.parsed(key, "a number", Value::as_f64)
    }

    pub(crate) fn flag(&self, key: &'static str) -> Read<Option<bool>> {
        self.parsed(key, "true or false", Value::as_bool)
    }

    pub(crate) fn text(&self, key: &'static str) -> Read<Option<&'a str>> {
        self.parsed(key, "text", Value::as_str)
    }

    pub(crate) fn numbers(&self, key: &'static str) -> Read<Option<Vec<f64>>> {
        let numbers = |value: &Value| value.as_array()?.iter().map(Value::as_f64).collect();
        self.parsed(key, "a list of numbers", numbers)
    }

    pub(crate) fn needed<T>(&self, key: &'static str, value: Option<T>) -> Read<T> {
        value.ok_or_else(|| self.refused(key, &Value::Null, "it is missing"))
    }

    /// Refuses a value other than the only one supported.
    pub(crate) fn expect(
        &self,
        key: &'static str,
        is_supported: impl Fn(&Value) -> bool,
        reason: &str,
    ) -> Read<()> {
        match self.get(key) {
            Some(value) if !is_supported(value) => Err(self.refused(key, value, reason)),
            _ => Ok(()),
        }
    }

    /// Refuses the first key of a model's description that nobody has read, and that neither this family nor every model may have. Some of the base class have one
    /// value in every model that can be trained here, which transformers writes where nothing is said.
    pub(crate) fn finish_model(&self, of_family: &[&str]) -> Read<()> {
        for (key, only) in [
            ("add_cross_attention", json!(false)),
            ("cross_attention_hidden_size", Value::Null),
            ("is_encoder_decoder", json!(false)),
            ("pruned_heads", json!({})),
            ("tie_encoder_decoder", json!(false)),
        ] {
            self.expect(key, |value| *value == only, &format!("{only} is supported"))?;
        }
        self.finish(&[&OF_EVERY_MODEL, of_family].concat())
    }

    /// Refuses the first key that nobody has read.
    pub(crate) fn finish(&self, known: &[&str]) -> Read<()> {
        let read = self.read.borrow();
        let is_left = |key: &&String| !read.contains(key.as_str()) && !known.contains(&key.as_str());
        match self.of.keys().find(is_left) {
            Some(key) => {
                let reason = "this key is not known for this model_type: remove it if it changes nothing, else the model cannot be trained here";
                Err(self.refused(key, &self.of[key], reason))
            }
            None => Ok(()),
        }
    }
}
