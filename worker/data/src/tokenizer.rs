//! Conversion between text and tokens.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use longhaul_common::config::DataConfig;

use super::error::READ_TOKENIZER;
use super::{DataError, bounds};

mod behind_text;
#[cfg(feature = "tokenizers")]
mod beside;
#[cfg(feature = "tokenizers")]
mod classes;
#[cfg(feature = "tokenizers")]
mod deleting;
#[cfg(feature = "tokenizers")]
mod described;
#[cfg(not(feature = "tokenizers"))]
#[path = "tokenizer/not_described.rs"]
mod described;
mod framed;
mod mask;
#[cfg(feature = "tokenizers")]
mod other_files;
mod reach;
#[cfg(feature = "tokenizers")]
mod rebuilt;
mod separator;
mod unknown;

pub use self::described::Described;
pub(crate) use self::framed::Framed;
pub(super) use self::unknown::{UnknownText, UnknownToken};

/// A tokenizer.
#[derive(Clone, Debug)]
pub enum Tokenizer {
    /// One token per byte.
    Bytes,
    /// Described by a `tokenizer.json`.
    Json {
        /// The file's content, which is saved in checkpoints.
        json: Arc<[u8]>,
        /// The file, where it was read.
        path: Arc<Path>,
        /// The tokenizer described by it.
        tokenizer: Arc<Described>,
        /// Settings in the file that are not adopted.
        settings: Vec<String>,
        /// Unexpected effects of the file, and hints in the files beside it that another program makes other tokens.
        notices: Vec<String>,
    },
}

impl Tokenizer {
    /// Loads the tokenizer of `data.tokenizer`: `bytes`, or the path of a `tokenizer.json`.
    ///
    /// # Errors
    /// The file cannot be read, is no tokenizer, or the files beside it change the tokenizer.
    pub fn load(name: &str) -> Result<Self, DataError> {
        if name == DataConfig::BYTES {
            return Ok(Self::Bytes);
        }
        let path = Path::new(name);
        if path.is_dir() {
            return Err(Described::folder(path));
        }
        let json = std::fs::read(path).map_err(DataError::io(READ_TOKENIZER, path))?;
        #[cfg_attr(
            not(feature = "tokenizers"),
            allow(unused_mut, reason = "nothing is looked for beside it")
        )]
        let mut read = Self::of_json(json, path)?;
        #[cfg(feature = "tokenizers")]
        if let Self::Json { json, notices, .. } = &mut read {
            *notices = deleting::notices(json);
            notices.extend(rebuilt::rebuilt(json, path));
            notices.iter().for_each(|notice| tracing::warn!("{notice}"));
        }
        #[cfg(feature = "tokenizers")]
        if let Some(reason) = read.json().and_then(|json| beside::contradicted(&json, path)) {
            return Err(DataError::PartOfTokenizer { path: path.to_owned(), reason });
        }
        Ok(read)
    }

    /// Parses a `tokenizer.json` read from `path`.
    ///
    /// # Errors
    /// It is no tokenizer.
    pub fn of_json(json: Vec<u8>, path: &Path) -> Result<Self, DataError> {
        let mut tokenizer = Described::read(&json, path)?;
        let settings = tokenizer.without_settings();
        if tokenizer.largest() == Some(u32::MAX) {
            let reason = format!("it has a token {}, and there must be one more than that", u32::MAX);
            return Err(DataError::Tokenizer { path: path.to_owned(), reason });
        }
        let at = Arc::from(path);
        if !settings.is_empty() {
            let (path, settings) = (path.display(), settings.join(", "));
            tracing::info!(%path, settings, "a tokenizer's file has settings of its last use, which are ignored");
        }
        let (json, tokenizer, notices) = (json.into(), Arc::new(tokenizer), Vec::new());
        Ok(Self::Json { json, path: at, tokenizer, settings, notices })
    }

    /// Returns the settings saved from the file's last use, in words: truncation, padding, dropout. Encoding ignores them.
    #[must_use]
    pub fn settings(&self) -> &[String] {
        match self {
            Self::Bytes => &[],
            Self::Json { settings, .. } => settings,
        }
    }

    /// Returns, in words, the steps that delete characters, and reasons why another program may make other tokens with the files beside it.
    #[must_use]
    pub fn notices(&self) -> &[String] {
        match self {
            Self::Bytes => &[],
            Self::Json { notices, .. } => notices,
        }
    }

    /// Returns the number of special tokens, such as `<s>`, that its file would put around each text. They are not added: a separator follows instead.
    #[must_use]
    pub(crate) fn tokens_around(&self) -> usize {
        match self {
            Self::Bytes => 0,
            Self::Json { tokenizer, .. } => tokenizer.around(),
        }
    }

    /// Returns the special tokens that its file puts before each text.
    #[must_use]
    pub fn beginning(&self) -> Vec<u32> {
        match self {
            Self::Bytes => Vec::new(),
            Self::Json { tokenizer, .. } => tokenizer.beginning(),
        }
    }

    /// Returns the names of its special tokens.
    pub(super) fn special(&self) -> Vec<String> {
        match self {
            Self::Bytes => Vec::new(),
            Self::Json { tokenizer, .. } => tokenizer.special(),
        }
    }

    /// Returns the names of the tokens that it adds to its vocabulary.
    pub(super) fn added_names(&self) -> Vec<String> {
        match self {
            Self::Bytes => Vec::new(),
            Self::Json { tokenizer, .. } => tokenizer.added_names(),
        }
    }

    /// Whether a name is one token.
    pub(super) fn has_token(&self, name: &str) -> bool {
        match self {
            Self::Bytes => false,
            Self::Json { tokenizer, .. } => {
                let number = tokenizer.number(name);
                number.is_some_and(|number| self.encode(name).is_ok_and(|tokens| tokens == [number]))
            }
        }
    }

    /// Returns the largest token plus one.
    #[must_use]
    pub fn vocabulary(&self) -> u32 {
        match self {
            Self::Bytes => DataConfig::BYTES_VOCABULARY,
            Self::Json { tokenizer, .. } => {
                tokenizer.largest().map_or(0, |largest| largest.saturating_add(1))
            }
        }
    }

    /// Returns a hash of its behaviour: tokenizers with equal hashes make equal tokens.
    #[must_use]
    pub fn hash(&self) -> blake3::Hash {
        match self {
            Self::Bytes => blake3::hash(DataConfig::BYTES.as_bytes()),
            Self::Json { json, tokenizer, settings, .. } => {
                let mut hasher = blake3::Hasher::new();
                // Versions that adopted these settings made other tokens of the same file,
                if !settings.is_empty() {
                    hasher.update(b"without settings of its last use");
                }
                // and versions without this check left characters out.
                if tokenizer.may_leave_out() {
                    hasher.update(b"of each character");
                }
                // Earlier versions used another regex engine.
                if tokenizer.has_patterns() {
                    hasher.update(b"patterns of Oniguruma");
                }
                hasher.update(json).finalize()
            }
        }
    }

    /// Returns the content of its `tokenizer.json`; `None` for bytes.
    #[must_use]
    pub fn json(&self) -> Option<Arc<[u8]>> {
        match self {
            Self::Bytes => None,
            Self::Json { json, .. } => Some(Arc::clone(json)),
        }
    }

    /// Returns the path of its file; `bytes` without one.
    #[must_use]
    pub fn path(&self) -> &Path {
        match self {
            Self::Bytes => Path::new(DataConfig::BYTES),
            Self::Json { path, .. } => path,
        }
    }

    /// Encodes a text as [`Self::encode_whole`], and returns for each token the bytes of the text that it stands for, as the `tokenizers` library reports
    /// them.
    ///
    /// # Errors
    /// As there.
    pub(super) fn encode_with_places(&self, text: &str) -> Result<Vec<(u32, Range<usize>)>, String> {
        self.check_whole(text)?;
        match self {
            Self::Bytes => Ok(text.bytes().enumerate().map(|(at, byte)| (byte.into(), at..at + 1)).collect()),
            Self::Json { tokenizer, .. } => tokenizer.encode_with_places(text),
        }
    }

    /// Encodes a text, without special tokens around it.
    ///
    /// # Errors
    /// The error of the `tokenizers` library.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, String> {
        match self {
            Self::Bytes => Ok(text.bytes().map(u32::from).collect()),
            Self::Json { tokenizer, .. } => tokenizer.encode(text),
        }
    }

    /// The same, but fails if any character would be left out.
    ///
    /// # Errors
    /// Characters without a token, or the error of the `tokenizers` library.
    pub fn encode_whole(&self, text: &str) -> Result<Vec<u32>, String> {
        self.check_whole(text)?;
        self.encode(text)
    }

    /// The same for a text that continues `before`: returns the tokens added after those of `before`. The text may end with the separator, which always
    /// has its tokens: see [`Self::is_taken`].
    ///
    /// # Errors
    /// Those of [`Self::encode_whole`], and a boundary where the last tokens of `before` would change.
    pub(super) fn encode_behind(
        &self,
        before: &str,
        text: &str,
        separator: &str,
    ) -> Result<Vec<u32>, String> {
        let whole = [before, text].concat();
        self.check_whole(&whole)?;
        let tokens = self.added_behind(before, text)?;
        // A token that takes blanks is among these, or among those before.
        let may_be_taken = !before.is_empty() || tokens.iter().any(|token| self.strips_behind(*token));
        match text.strip_suffix(separator) {
            Some(body) if may_be_taken && self.is_taken(&whole, separator)? => {
                let body = self.added_behind(before, body)?;
                Ok([body, self.separator_tokens(separator)?].concat())
            }
            _ => Ok(tokens),
        }
    }

    /// Returns the tokens that a text adds after those of `before`, and refuses a text that changes some of these.
    fn added_behind(&self, before: &str, text: &str) -> Result<Vec<u32>, String> {
        self.added(before, text)?.ok_or_else(|| {
            let start: String = text.chars().take(SHOWN_CHARACTERS).collect();
            format!(
                "the tokens of what stands before {start:?} depend on more than {} of what follows, so that the text cannot be tokenised in parts: make a record of each document (JSON lines)",
                indicatif::BinaryBytes(bounds::AROUND_BYTES as u64)
            )
        })
    }

    /// Returns the tokens that a text adds after those of `before`; `None`: it changes some of these.
    pub(super) fn added(&self, before: &str, text: &str) -> Result<Option<Vec<u32>>, String> {
        if before.is_empty() {
            return self.encode(text).map(Some);
        }
        let (known, mut tokens) = (self.encode(before)?, self.encode(&[before, text].concat())?);
        Ok(tokens.starts_with(&known).then(|| tokens.split_off(known.len())))
    }

    /// Returns its unknown token; `None`: it has a token for everything, or refuses the rest.
    pub(super) fn unknown(&self) -> Option<&UnknownToken> {
        match self {
            Self::Bytes => None,
            Self::Json { tokenizer, .. } => tokenizer.unknown(),
        }
    }

    /// Whether characters within a word have other tokens than at its ends.
    fn depends_on_place(&self) -> bool {
        matches!(self, Self::Json { tokenizer, .. } if tokenizer.depends_on_place())
    }

    /// Refuses a text with characters that no token contains.
    fn check_whole(&self, text: &str) -> Result<(), String> {
        let Self::Json { tokenizer, .. } = self else { return Ok(()) };
        let left_out = tokenizer.left_out(text, LEFT_OUT_MAX)?;
        if left_out.is_empty() {
            return Ok(());
        }
        let named =
            left_out.iter().map(|character| format!("{character:?} (U+{:04X})", u32::from(*character)));
        let named: Vec<String> = named.collect();
        Err(format!(
            "the tokenizer has no token for {}, and neither an unknown token nor bytes in its place, so its library would drop it silently: give it `unk_token` or `byte_fallback`, or train it on texts that have all characters",
            named.join(", ")
        ))
    }

    /// Decodes tokens to text; invalid UTF-8 becomes replacement characters.
    ///
    /// # Errors
    /// The error of the `tokenizers` library.
    pub fn decode(&self, tokens: &[u32]) -> Result<String, String> {
        match self {
            Self::Bytes => {
                let bytes: Vec<u8> =
                    tokens.iter().map(|&token| u8::try_from(token).unwrap_or(b'?')).collect();
                Ok(String::from_utf8_lossy(&bytes).into_owned())
            }
            Self::Json { tokenizer, .. } => tokenizer.decode(tokens),
        }
    }
}

/// Characters of a text shown in a message.
const SHOWN_CHARACTERS: usize = 40;

/// Characters without a token named in a message.
const LEFT_OUT_MAX: usize = 5;

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(feature = "tokenizers")]
    const WORDS: &str = r#"{"version":"1.0","added_tokens":[],"normalizer":null,"post_processor":null,"decoder":null,
        "truncation":null,"padding":null,"pre_tokenizer":{"type":"Whitespace"},
        "model":{"type":"WordLevel","vocab":{"[unk]":0,"one":1,"two":7},"unk_token":"[unk]"}}"#;

    #[test]
    fn bytes_survive_there_and_back() {
        let tokens = Tokenizer::Bytes.encode("añ\n").unwrap();
        assert_eq!(tokens, [97, 0xc3, 0xb1, 10]);
        assert_eq!(Tokenizer::Bytes.decode(&tokens).unwrap(), "añ\n");
        assert_eq!(Tokenizer::Bytes.vocabulary(), 256);
    }

    /// Each setting in Hugging Face's form after its use, together and alone.
    #[cfg(feature = "tokenizers")]
    #[test]
    fn settings_of_a_file_s_last_use_change_no_token_and_are_named() {
        let truncation = r#"{"direction":"Right","max_length":2,"strategy":"LongestFirst","stride":0}"#;
        let padding = r#"{"strategy":{"Fixed":9},"direction":"Left","pad_to_multiple_of":null,"pad_id":0,"pad_type_id":0,"pad_token":"[unk]"}"#;
        let merges = r#"{"type":"BPE","dropout":null,"unk_token":null,"continuing_subword_prefix":null,"end_of_word_suffix":null,
            "fuse_unk":false,"byte_fallback":false,"vocab":{"o":0,"n":1,"e":2,"on":3,"one":4},"merges":["o n","on e"]}"#;
        let bpe =
            WORDS.replace(&WORDS[WORDS.find(r#"{"type":"WordLevel""#).unwrap()..WORDS.len() - 1], merges);
        let read = |json: String| Tokenizer::of_json(json.into_bytes(), Path::new("tokenizer.json")).unwrap();
        for (whole, text) in [(WORDS, "two one one three one"), (bpe.as_str(), "one one one one one")] {
            let plain = read(whole.to_owned());
            assert!(plain.settings().is_empty());
            let (cut, padded) = (("\"truncation\":null", truncation), ("\"padding\":null", padding));
            let dropped = ("\"dropout\":null", "0.5");
            for settings in
                [vec![cut], vec![padded], vec![dropped], vec![cut, padded], vec![cut, padded, dropped]]
            {
                let write = |json: String, (key, value): &(&str, &str)| {
                    json.replace(key, &key.replace("null", value))
                };
                let json = settings.iter().fold(whole.to_owned(), write);
                if json == whole {
                    continue;
                }
                let tokenizer = read(json);
                assert_eq!(tokenizer.encode(text).unwrap(), plain.encode(text).unwrap(), "{settings:?}");
                let count = settings.len() - usize::from(settings.contains(&dropped) && whole == WORDS);
                assert_eq!(tokenizer.settings().len(), count, "{:?}", tokenizer.settings());
                assert_ne!(tokenizer.hash(), plain.hash());
            }
        }
        let cut = read(WORDS.replace("\"truncation\":null", &format!("\"truncation\":{truncation}")));
        assert_eq!(cut.settings(), ["truncation to 2 tokens"]);
    }

    /// With each kind of fallback for a character, and without any.
    #[cfg(feature = "tokenizers")]
    #[test]
    fn a_character_that_the_library_would_leave_out_is_refused() {
        let end = r#"{"id":9,"content":"<|end|>","single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":true}"#;
        let letters = r#"{"type":"BPE","dropout":null,"unk_token":null,"continuing_subword_prefix":null,"end_of_word_suffix":null,"fuse_unk":false,
            "byte_fallback":false,"ignore_merges":false,"vocab":{"o":0,"n":1,"e":2,"on":3,"one":4},"merges":["o n","on e"]}"#;
        let model = &WORDS[WORDS.find(r#"{"type":"WordLevel""#).unwrap()..WORDS.len() - 1];
        let json = WORDS
            .replace(model, letters)
            .replace("\"added_tokens\":[]", &format!("\"added_tokens\":[{end}]"));
        let read =
            |json: &str| Tokenizer::of_json(json.as_bytes().to_vec(), Path::new("tokenizer.json")).unwrap();
        let plain = read(&json);
        assert_eq!(plain.encode("one né").unwrap(), [4, 1]);
        for text in ["", "one\n on", "one<|end|>e"] {
            assert_eq!(plain.encode_whole(text), plain.encode(text), "{text:?}");
        }
        let message = plain.encode_whole("one né, é").unwrap_err();
        assert!(message.contains("no token for 'é' (U+00E9), ',' (U+002C), and"), "{message}");
        let message = plain.encode_whole("xyzuvwx").unwrap_err();
        assert!(message.contains("'u' (U+0075), 'v' (U+0076), and"), "{message}");
        let message = plain.check_separator("|").unwrap_err().to_string();
        assert!(message.contains("data.separator = \"|\": the tokenizer has no token for '|'"), "{message}");

        let bytes = json.replace("\"byte_fallback\":false", "\"byte_fallback\":true");
        let some_bytes = bytes.replace("\"vocab\":{", "\"vocab\":{\"<0xC3>\":5,\"<0xA9>\":6,");
        let all: String = (0..=255).map(|byte| format!("\"<0x{byte:02X}>\":{},", 10 + byte)).collect();
        let all_bytes = bytes.replace("\"vocab\":{", &format!("\"vocab\":{{{all}"));
        let whole = json.replace("\"ignore_merges\":false", "\"ignore_merges\":true");
        let whole = whole.replace("\"vocab\":{", "\"vocab\":{\"né\":5,");
        let suffix = json.replace("\"end_of_word_suffix\":null", "\"end_of_word_suffix\":\"é\"");
        for (json, good, bad) in [
            (&bytes, "one", "é"),
            (&some_bytes, "né", "nü"),
            (&whole, "né", "én"),
            (&suffix, "", "one"),
            (&json.replace("\"unk_token\":null", "\"unk_token\":\"o\""), "né ü", ""),
            (&all_bytes, "né ü", ""),
            (&WORDS.to_owned(), "né ü", ""),
        ] {
            let tokenizer = read(json);
            assert_eq!(tokenizer.encode_whole(good), tokenizer.encode(good), "{json}");
            assert_eq!(tokenizer.encode_whole(bad).is_err(), !bad.is_empty(), "{json}");
        }
    }

    #[cfg(feature = "tokenizers")]
    #[test]
    fn a_tokenizer_file_decides_tokens_and_vocabulary() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokenizer.json");
        std::fs::write(&path, WORDS).unwrap();
        let tokenizer = Tokenizer::load(path.to_str().unwrap()).unwrap();
        assert_eq!(tokenizer.encode("two one three").unwrap(), [7, 1, 0]);
        assert_eq!(tokenizer.vocabulary(), 8);
        assert_eq!(tokenizer.json().unwrap()[..], *WORDS.as_bytes());

        std::fs::write(&path, WORDS.replace("7}", "4294967295}")).unwrap();
        let message = Tokenizer::load(path.to_str().unwrap()).unwrap_err().to_string();
        assert!(message.contains("one more than that"), "{message}");

        std::fs::write(&path, "{}").unwrap();
        let message = Tokenizer::load(path.to_str().unwrap()).unwrap_err().to_string();
        assert!(message.contains("is no tokenizer") && message.contains("Hugging Face"), "{message}");
    }
}
