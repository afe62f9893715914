//! What a `tokenizer.json` describes, by the `tokenizers` library.

use std::path::Path;

use tokenizers::models::ModelWrapper;
use tokenizers::models::bpe::BPE;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::{Model, OffsetReferential, OffsetType, PreTokenizer, PreTokenizerWrapper};

use crate::data::DataError;

/// A tokenizer of the library.
#[derive(Clone, Debug)]
pub struct Described {
    tokenizer: tokenizers::Tokenizer,
    may_leave_out: bool,
}

impl Described {
    /// Reads one, which came from there.
    ///
    /// # Errors
    /// When it is no tokenizer.
    pub(super) fn read(json: &[u8], path: &Path) -> Result<Self, DataError> {
        let refused = |reason: String| DataError::Tokenizer { path: path.to_owned(), reason };
        let read = tokenizers::Tokenizer::from_bytes(json);
        let tokenizer = read.map_err(|error| refused(error.to_string()))?;
        let may_leave_out = may_leave_out(&tokenizer);
        Ok(Self { tokenizer, may_leave_out })
    }

    /// Drops the settings of a file's last use, which are not the tokenizer: Hugging Face writes truncation and padding after a call with them, and
    /// dropout makes other tokens of the same text each time. Answers which those were.
    pub(super) fn without_settings(&mut self) -> Vec<String> {
        let tokenizer = &mut self.tokenizer;
        let mut settings = Vec::new();
        if let Some(truncation) = tokenizer.get_truncation() {
            settings.push(format!("truncation to {} tokens", truncation.max_length));
            // Without parameters there is nothing that it could refuse.
            let _ = tokenizer.with_truncation(None);
        }
        if tokenizer.get_padding().is_some() {
            settings.push("padding".to_owned());
            tokenizer.with_padding(None);
        }
        if let ModelWrapper::BPE(model) = tokenizer.get_model()
            && let Some(dropout) = model.dropout.filter(|dropout| *dropout > 0.0)
        {
            let mut model = model.clone();
            model.dropout = None;
            settings.push(format!("dropout of {dropout}"));
            tokenizer.with_model(model);
        }
        settings
    }

    /// Its largest token.
    pub(super) fn largest(&self) -> Option<u32> {
        self.tokenizer.get_vocab(true).into_values().max()
    }

    /// Its special tokens, by number.
    pub(super) fn special(&self) -> Vec<String> {
        let mut added: Vec<_> = self.tokenizer.get_added_tokens_decoder().into_iter().collect();
        added.sort_unstable_by_key(|(number, _)| *number);
        added.into_iter().filter(|(_, token)| token.special).map(|(_, token)| token.content).collect()
    }

    /// Whether a name is that of a token, or of several one after the other.
    pub(super) fn has_as_tokens(&self, name: &str) -> Result<bool, String> {
        if self.tokenizer.token_to_id(name).is_some() {
            return Ok(true);
        }
        let (added, mut rest) = (self.tokenizer.get_added_tokens_decoder(), name);
        for id in self.encode(name)? {
            let Some(after) = added.get(&id).and_then(|token| rest.strip_prefix(token.content.as_str()))
            else {
                return Ok(false);
            };
            rest = after.trim_start();
        }
        Ok(rest.is_empty())
    }

    /// The tokens of a text, without special ones around it.
    pub(super) fn encode(&self, text: &str) -> Result<Vec<u32>, String> {
        let encoding = self.tokenizer.encode_fast(text, false).map_err(|error| error.to_string())?;
        Ok(encoding.get_ids().to_vec())
    }

    /// Whether there may be characters that it makes no token of, without a word.
    pub(super) fn may_leave_out(&self) -> bool {
        self.may_leave_out
    }

    /// Whether characters have other tokens within a word than at its ends.
    pub(super) fn depends_on_place(&self) -> bool {
        matches!(self.tokenizer.get_model(), ModelWrapper::BPE(model) if !is_plain(model))
    }

    /// The first characters that the model would leave out of a text, each once, up to so many. They are as the model sees them: normalised, and without what only
    /// divides words.
    pub(super) fn left_out(&self, text: &str, most: usize) -> Result<Vec<char>, String> {
        let mut found = Vec::new();
        let (true, ModelWrapper::BPE(model)) = (self.may_leave_out, self.tokenizer.get_model()) else {
            return Ok(found);
        };
        let normalizer = self.tokenizer.get_normalizer();
        let mut words = self.tokenizer.get_added_vocabulary().extract_and_normalize(normalizer, text);
        if let Some(step) = self.tokenizer.get_pre_tokenizer() {
            step.pre_tokenize(&mut words).map_err(|error| error.to_string())?;
        }
        let [prefix, suffix] = [&model.continuing_subword_prefix, &model.end_of_word_suffix]
            .map(|part| part.as_deref().unwrap_or_default());
        let has = |name: &str| model.token_to_id(name).is_some();
        let mut name = String::new();
        // Those that have tokens by now are added ones.
        let words = words.get_splits(OffsetReferential::Normalized, OffsetType::None);
        for (word, ..) in words.into_iter().filter(|(.., tokens)| tokens.is_none()) {
            if model.ignore_merges && has(word) {
                continue;
            }
            // As the model looks them up.
            for (at, character) in word.char_indices() {
                let is_last = at + character.len_utf8() == word.len();
                name.clear();
                name.push_str(if at > 0 { prefix } else { "" });
                name.push(character);
                name.push_str(if is_last { suffix } else { "" });
                let is_known =
                    has(&name) || model.byte_fallback && name.bytes().all(|byte| has(&byte_name(byte)));
                if !is_known && !found.contains(&character) {
                    found.push(character);
                    if found.len() == most {
                        return Ok(found);
                    }
                }
            }
        }
        Ok(found)
    }

    /// The text of tokens, special ones included.
    pub(super) fn decode(&self, tokens: &[u32]) -> Result<String, String> {
        self.tokenizer.decode(tokens, false).map_err(|error| error.to_string())
    }
}

/// Whether a tokenizer may make no token of a character. Of the library's models BPE alone does, where there is neither an unknown token nor one for each byte; the others refuse such a text.
fn may_leave_out(tokenizer: &tokenizers::Tokenizer) -> bool {
    let ModelWrapper::BPE(model) = tokenizer.get_model() else { return false };
    let has = |name: &str| model.token_to_id(name).is_some();
    let has_bytes = || model.byte_fallback && (0..=u8::MAX).all(|byte| has(&byte_name(byte)));
    let has_alphabet = || {
        is_plain(model)
            && tokenizer.get_pre_tokenizer().is_some_and(ends_with_bytes)
            && ByteLevel::alphabet().into_iter().all(|character| has(&character.to_string()))
    };
    model.unk_token.is_none() && !has_bytes() && !has_alphabet()
}

/// Whether a character has the same token wherever it is in a word.
fn is_plain(model: &BPE) -> bool {
    let parts = [&model.continuing_subword_prefix, &model.end_of_word_suffix];
    parts.into_iter().all(|part| part.as_deref().unwrap_or_default().is_empty())
}

/// Whether all that the model sees is bytes, each as a character of an alphabet.
fn ends_with_bytes(step: &PreTokenizerWrapper) -> bool {
    match step {
        PreTokenizerWrapper::ByteLevel(_) => true,
        PreTokenizerWrapper::Sequence(steps) => {
            let steps: &[PreTokenizerWrapper] = steps.as_ref();
            steps.last().is_some_and(ends_with_bytes)
        }
        _ => false,
    }
}

/// What a model that falls back to bytes calls the token of one.
fn byte_name(byte: u8) -> String {
    format!("<{byte:#04X}>")
}
