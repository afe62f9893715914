//! The tokenizer of a `tokenizer.json`, by the `tokenizers` library.

use std::ops::Range;
use std::path::Path;
use std::sync::OnceLock;

use serde::Deserialize;
use tokenizers::models::ModelWrapper;
use tokenizers::models::bpe::BPE;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::{
    Model, OffsetReferential, OffsetType, PostProcessor as _, PreTokenizer, PreTokenizerWrapper,
    TruncationParams, truncate_encodings,
};

use super::behind_text::LETTER;
use super::{Framed, UnknownToken, other_files};
use crate::DataError;
use crate::unwound::caught;

/// The key of a regular expression in a file.
const PATTERN: &[u8] = b"\"Regex\"";

/// Unknown tokens of models that were made without one, of words and of WordPiece.
const DEFAULT_UNKNOWN: [&str; 2] = ["<unk>", "[UNK]"];

/// A tokenizer of the library.
#[derive(Clone, Debug)]
pub struct Described {
    tokenizer: tokenizers::Tokenizer,
    may_leave_out: bool,
    has_patterns: bool,
    unknown: Unknown,
    /// Numbers of the added tokens that take the blanks after them (`rstrip`), in order.
    strip_behind: Vec<u32>,
    /// See [`super::Tokenizer::check_reach`].
    reach: OnceLock<Result<(), String>>,
}

/// The unknown token of a model.
#[derive(Clone, Debug)]
enum Unknown {
    /// It exists.
    Token(UnknownToken),
    /// It is required but missing: the reason for refusing a text.
    Missing(String),
    /// It is not required, or characters without a token are left out.
    Never,
}

impl Described {
    /// Parses the content of the file at `path`.
    ///
    /// # Errors
    /// It is no tokenizer.
    pub(super) fn read(json: &[u8], path: &Path) -> Result<Self, DataError> {
        let refused = |reason: String| DataError::Tokenizer { path: path.to_owned(), reason };
        let read = caught(|| tokenizers::Tokenizer::from_bytes(json)).map_err(&refused)?;
        let words = |error: tokenizers::Error| {
            refused(other_files::other(json, path).unwrap_or_else(|| error.to_string()))
        };
        let tokenizer = read.map_err(words)?;
        let (may_leave_out, unknown) = (may_leave_out(&tokenizer), Unknown::of(&tokenizer, json, path));
        let has_patterns = json.windows(PATTERN.len()).any(|part| part == PATTERN);
        let added = tokenizer.get_added_tokens_decoder().into_iter();
        let mut strip_behind: Vec<u32> =
            added.filter(|(_, token)| token.rstrip).map(|(number, _)| number).collect();
        strip_behind.sort_unstable();
        Ok(Self { tokenizer, may_leave_out, has_patterns, unknown, strip_behind, reach: OnceLock::new() })
    }

    /// Returns the error for a folder in place of a file.
    pub(super) fn folder(path: &Path) -> DataError {
        DataError::Tokenizer { path: path.to_owned(), reason: other_files::folder(path) }
    }

    /// Drops the settings of a file's last use, which are not part of the tokenizer, and returns them. Hugging Face saves truncation and padding after
    /// a call with them; dropout makes other tokens of the same text each time.
    pub(super) fn without_settings(&mut self) -> Vec<String> {
        let tokenizer = &mut self.tokenizer;
        let mut settings = Vec::new();
        if let Some(truncation) = tokenizer.get_truncation() {
            settings.push(format!("truncation to {} tokens", truncation.max_length));
            // Without parameters it cannot fail.
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

    /// Returns the number of special tokens that it would put around each text.
    pub(super) fn around(&self) -> usize {
        self.tokenizer.get_post_processor().map_or(0, |processor| processor.added_tokens(false))
    }

    /// Returns the special tokens that it would put before each text.
    pub(super) fn beginning(&self) -> Vec<u32> {
        let Ok(around) = self.called(|tokenizer| tokenizer.encode("a", true)) else { return Vec::new() };
        let tokens = around.get_ids().iter().zip(around.get_special_tokens_mask());
        tokens.take_while(|(_, is_special)| **is_special == 1).map(|(token, _)| *token).collect()
    }

    /// Returns its largest token.
    pub(super) fn largest(&self) -> Option<u32> {
        self.tokenizer.get_vocab(true).into_values().max()
    }

    /// Returns the tokens that it adds to its vocabulary.
    pub(super) fn added_names(&self) -> Vec<String> {
        let added = self.tokenizer.get_added_tokens_decoder().into_values();
        added.map(|token| token.content).collect()
    }

    /// Returns its special tokens, by number.
    pub(super) fn special(&self) -> Vec<String> {
        let mut added: Vec<_> = self.tokenizer.get_added_tokens_decoder().into_iter().collect();
        added.sort_unstable_by_key(|(number, _)| *number);
        added.into_iter().filter(|(_, token)| token.special).map(|(_, token)| token.content).collect()
    }

    /// Returns the numbers of its special tokens, in order.
    pub(super) fn special_numbers(&self) -> Vec<u32> {
        let added = self.tokenizer.get_added_tokens_decoder().into_iter();
        let mut numbers: Vec<u32> =
            added.filter(|(_, token)| token.special).map(|(number, _)| number).collect();
        numbers.sort_unstable();
        numbers
    }

    /// Returns the number of a token.
    pub(super) fn number(&self, token: &str) -> Option<u32> {
        self.tokenizer.token_to_id(token)
    }

    /// Returns the added token at the start of a separator that takes the blanks before it.
    pub(super) fn strips_before(&self, separator: &str) -> Option<String> {
        let added = self.tokenizer.get_added_tokens_decoder().into_values();
        let mut added =
            added.filter(|token| token.lstrip && separator.trim_start().starts_with(&token.content));
        added.next().map(|token| token.content)
    }

    /// Returns an added token in a separator that is none behind a letter, as the file asks for white space or punctuation on both sides (`single_word`).
    pub(super) fn no_token_behind_letters(&self, separator: &str) -> Option<String> {
        let added = self.tokenizer.get_added_tokens_decoder();
        let mut within = added.into_iter().filter(|(_, token)| {
            token.single_word && !token.content.is_empty() && separator.contains(&token.content)
        });
        let made = self.encode(&format!("{LETTER}{separator}")).ok()?;
        let is_lost = |number: u32, content: &str| {
            made.iter().filter(|other| **other == number).count() < separator.matches(content).count()
        };
        within.find(|(number, token)| is_lost(*number, &token.content)).map(|(_, token)| token.content)
    }

    /// Whether some added token takes the blanks after it.
    pub(super) fn has_strip_behind(&self) -> bool {
        !self.strip_behind.is_empty()
    }

    /// Whether a token is such a one.
    pub(super) fn strips_behind(&self, number: u32) -> bool {
        self.strip_behind.binary_search(&number).is_ok()
    }

    /// Whether a name is a token, or each of these parts of it becomes one, regardless of the text between them.
    pub(super) fn has_as_tokens(&self, name: &str, parts: &[&str]) -> Result<bool, String> {
        if self.tokenizer.token_to_id(name).is_some() {
            return Ok(true);
        }
        let mut made = self.encode(name)?.into_iter();
        Ok(parts.iter().all(|part| {
            self.tokenizer.token_to_id(part).is_some_and(|token| made.any(|other| other == token))
        }))
    }

    /// Encodes a text, without special tokens around it.
    pub(super) fn encode(&self, text: &str) -> Result<Vec<u32>, String> {
        let encoding = self.called(|tokenizer| tokenizer.encode_fast(text, false))?;
        Ok(encoding.get_ids().to_vec())
    }

    /// The same, with the byte range of the text under each token.
    pub(super) fn encode_with_places(&self, text: &str) -> Result<Vec<(u32, Range<usize>)>, String> {
        let encoding = self.called(|tokenizer| tokenizer.encode(text, false))?;
        let tokens = encoding.get_ids().iter().zip(encoding.get_offsets());
        Ok(tokens.map(|(number, (start, end))| (*number, *start..*end)).collect())
    }

    /// Encodes a text or a pair with special tokens, cut to `length` tokens.
    pub(super) fn frame(&self, text: &str, pair: Option<&str>, length: usize) -> Result<Framed, String> {
        let added = self.tokenizer.get_post_processor();
        let added = added.map_or(0, |processor| processor.added_tokens(pair.is_some()));
        let Some(max_length) = length.checked_sub(added).filter(|room| *room > 0) else {
            return Err(format!(
                "data.sequence_length = {length} tokens have no room for a text beside {added} special ones: raise it"
            ));
        };
        let truncation = TruncationParams { max_length, ..TruncationParams::default() };
        let (encoding, whole) = self.called(|tokenizer| {
            let first = tokenizer.encode(text, false)?;
            let second = pair.map(|pair| tokenizer.encode(pair, false)).transpose()?.map(|mut second| {
                // A post-processor has types of its own.
                second.set_type_ids(vec![1; second.len()]);
                second
            });
            let whole = first.len() + second.as_ref().map_or(0, tokenizers::Encoding::len);
            let (first, second) = truncate_encodings(first, second, &truncation)?;
            Ok((tokenizer.post_process(first, second, true)?, whole))
        })?;
        let types = encoding.get_type_ids().iter().map(|kind| *kind > 0);
        let tokens = encoding.get_ids().iter().copied().zip(types).collect();
        Ok(Framed { tokens, is_cut: whole > max_length })
    }

    /// Calls the library and catches panics: it panics when a pattern gives up, as Oniguruma does after ten million backtracking steps.
    fn called<T>(
        &self,
        call: impl FnOnce(&tokenizers::Tokenizer) -> tokenizers::Result<T>,
    ) -> Result<T, String> {
        let made = caught(|| call(&self.tokenizer))
            .map_err(|reason| format!("the tokenizer's library gives up on a text: {reason}"))?;
        made.map_err(|error| self.unknown.refused(error.to_string()))
    }

    /// Returns its unknown token.
    pub(super) fn unknown(&self) -> Option<&UnknownToken> {
        if let Unknown::Token(token) = &self.unknown { Some(token) } else { None }
    }

    /// Returns the byte ranges of a text that become the unknown token, as the library reports them.
    pub(super) fn unknown_parts(&self, text: &str) -> Result<Vec<Range<usize>>, String> {
        let Some(unknown) = self.unknown() else { return Ok(Vec::new()) };
        let encoding = self.called(|tokenizer| tokenizer.encode(text, false))?;
        let tokens = encoding.get_ids().iter().zip(encoding.get_offsets());
        let is_unknown = |(number, _): &(&u32, _)| **number == unknown.number;
        Ok(tokens.filter(is_unknown).map(|(_, (start, end))| *start..*end).collect())
    }

    /// Whether it may silently leave out characters.
    pub(super) fn may_leave_out(&self) -> bool {
        self.may_leave_out
    }

    /// Returns the cached result of `find`.
    pub(super) fn reach(&self, find: impl FnOnce() -> Result<(), String>) -> Result<(), String> {
        self.reach.get_or_init(find).clone()
    }

    /// Whether its file has regular expressions.
    pub(super) fn has_patterns(&self) -> bool {
        self.has_patterns
    }

    /// Whether characters within a word have other tokens than at its ends.
    pub(super) fn depends_on_place(&self) -> bool {
        match self.tokenizer.get_model() {
            ModelWrapper::BPE(model) => !is_plain(model),
            ModelWrapper::WordPiece(_) => true,
            ModelWrapper::WordLevel(_) | ModelWrapper::Unigram(_) => false,
        }
    }

    /// Returns up to `most` distinct characters of a text that the model would leave out, as the model sees them: normalised, and without mere word
    /// dividers.
    pub(super) fn left_out(&self, text: &str, most: usize) -> Result<Vec<char>, String> {
        let mut found = Vec::new();
        let (true, ModelWrapper::BPE(model)) = (self.may_leave_out, self.tokenizer.get_model()) else {
            return Ok(found);
        };
        let words = self.called(|tokenizer| {
            let normalizer = tokenizer.get_normalizer();
            let mut words = tokenizer.get_added_vocabulary().extract_and_normalize(normalizer, text);
            if let Some(step) = tokenizer.get_pre_tokenizer() {
                step.pre_tokenize(&mut words)?;
            }
            Ok(words)
        })?;
        let [prefix, suffix] = [&model.continuing_subword_prefix, &model.end_of_word_suffix]
            .map(|part| part.as_deref().unwrap_or_default());
        let has = |name: &str| model.token_to_id(name).is_some();
        let mut name = String::new();
        // Parts that already have tokens are added tokens.
        let words = words.get_splits(OffsetReferential::Normalized, OffsetType::None);
        for (word, ..) in words.into_iter().filter(|(.., tokens)| tokens.is_none()) {
            if model.ignore_merges && has(word) {
                continue;
            }
            // In the form of the model's lookup.
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

    /// Decodes tokens, including special ones.
    pub(super) fn decode(&self, tokens: &[u32]) -> Result<String, String> {
        self.called(|tokenizer| tokenizer.decode(tokens, false))
    }
}

impl Unknown {
    /// Returns that of a tokenizer read from this file.
    fn of(tokenizer: &tokenizers::Tokenizer, json: &[u8], path: &Path) -> Self {
        if has_token_for_all(tokenizer) {
            return Self::Never;
        }
        let model = tokenizer.get_model();
        let named = |name: &str| (model.token_to_id(name), name.to_owned());
        let (number, name) = match model {
            ModelWrapper::BPE(BPE { unk_token: None, .. }) => return Self::Never,
            ModelWrapper::BPE(BPE { unk_token: Some(name), .. }) => named(name),
            ModelWrapper::WordPiece(model) => named(&model.unk_token),
            ModelWrapper::WordLevel(model) => named(&model.unk_token),
            ModelWrapper::Unigram(_) => match unk_id(json) {
                Some(number) => (Some(number), model.id_to_token(number).unwrap_or_default()),
                None => {
                    return Self::Missing(format!(
                        "{} has no token for some of the text, and its model names no unknown token: give it an `unk_id`",
                        path.display()
                    ));
                }
            },
        };
        let Some(number) = number else {
            let which = match DEFAULT_UNKNOWN.contains(&name.as_str()) {
                true => ", which the library writes where none is named, is not in the vocabulary",
                false => " that its model names is not in its vocabulary",
            };
            return Self::Missing(format!(
                "{} has no token for some of the text, and the unknown token `{name}`{which}: add it there, or name one that is (`unk_token`)",
                path.display()
            ));
        };
        let added = tokenizer.get_added_vocabulary().get_added_tokens_decoder();
        let is_added = added.get(&number).is_some_and(|token| token.content == name);
        Self::Token(UnknownToken { number, name, is_added })
    }

    /// Returns the reason for refusing a text. The library's message does not name a missing unknown token or its file.
    fn refused(&self, words: String) -> String {
        match self {
            Self::Missing(reason) if words.to_ascii_lowercase().contains("unk") => reason.clone(),
            _ => words,
        }
    }
}

/// Returns the unknown token of a Unigram model's file, which the library does not expose.
fn unk_id(json: &[u8]) -> Option<u32> {
    #[derive(Deserialize)]
    struct File {
        model: Unigram,
    }
    #[derive(Deserialize)]
    struct Unigram {
        unk_id: Option<u32>,
    }
    serde_json::from_slice::<File>(json).ok()?.model.unk_id
}

/// Whether a tokenizer may leave out a character. Of the library's models only BPE does, without an unknown token and tokens for all bytes; the others
/// refuse such a text.
fn may_leave_out(tokenizer: &tokenizers::Tokenizer) -> bool {
    matches!(tokenizer.get_model(), ModelWrapper::BPE(model) if model.unk_token.is_none())
        && !has_token_for_all(tokenizer)
}

/// Whether a tokenizer has tokens for everything: its model sees only bytes, or falls back to them.
fn has_token_for_all(tokenizer: &tokenizers::Tokenizer) -> bool {
    let model = tokenizer.get_model();
    let has = |name: &str| model.token_to_id(name).is_some();
    let has_bytes = || (0..=u8::MAX).all(|byte| has(&byte_name(byte)));
    match model {
        ModelWrapper::BPE(bpe) => {
            let has_alphabet = || {
                is_plain(bpe)
                    && tokenizer.get_pre_tokenizer().is_some_and(ends_with_bytes)
                    && ByteLevel::alphabet().into_iter().all(|character| has(&character.to_string()))
            };
            bpe.byte_fallback && has_bytes() || has_alphabet()
        }
        ModelWrapper::Unigram(unigram) => unigram.byte_fallback() && has_bytes(),
        ModelWrapper::WordPiece(_) | ModelWrapper::WordLevel(_) => false,
    }
}

/// Whether a character has the same token at any place in a word.
fn is_plain(model: &BPE) -> bool {
    let parts = [&model.continuing_subword_prefix, &model.end_of_word_suffix];
    parts.into_iter().all(|part| part.as_deref().unwrap_or_default().is_empty())
}

/// Whether the model sees only bytes, each as a character of an alphabet.
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

/// Returns the name of a byte's token in a model with byte fallback.
pub(super) fn byte_name(byte: u8) -> String {
    format!("<{byte:#04X}>")
}

#[cfg(test)]
mod tests;
