//! The separator between records.

use super::Tokenizer;
use crate::DataError;

impl Tokenizer {
    /// Refuses a separator that looks like a special token but would become several tokens of text, and one with characters in no token or in the
    /// unknown one.
    ///
    /// # Errors
    /// It does.
    pub(crate) fn check_separator(&self, separator: &str) -> Result<(), DataError> {
        let refused = |reason| DataError::Separator { separator: separator.to_owned(), reason };
        if ["\\n", "\\t", "\\r", "\\0"].iter().any(|escape| separator.contains(escape)) {
            let reason = "it has a backslash and a letter in place of what they stand for: write it in double quotes, as \"\\n\"";
            return Err(refused(reason.to_owned()));
        }
        let left_out = |reason| refused(format!("{reason}; or take another separator"));
        if !self.depends_on_place() {
            self.check_whole(separator).map_err(left_out)?;
        }
        if !separator.is_empty() && self.encode(separator).is_ok_and(|tokens| tokens.is_empty()) {
            let special = match self {
                Self::Json { tokenizer, .. } => listed(&tokenizer.special()),
                Self::Bytes => String::new(),
            };
            return Err(refused(format!(
                "the tokenizer makes no token of it, so that records would run into each other; name one that it has a token for (its special tokens: {special}), or separator = \"\" if they should"
            )));
        }
        if let Self::Json { tokenizer, .. } = self
            && let Some(token) = tokenizer.strips_before(separator)
        {
            return Err(refused(format!(
                "its token {token} takes the blanks before it (`lstrip` in the tokenizer's file), which texts may end with: take another separator, or set it to false"
            )));
        }
        self.check_behind_text(separator).map_err(refused)?;
        let name = separator.trim();
        let parts = special_parts(name);
        if parts.is_empty() {
            self.check_known(separator).map_err(refused)?;
            return self.check_no_gap(separator).map_err(refused);
        }
        match self {
            Self::Bytes => Err(refused(format!(
                "it looks like a special token, and with tokenizer = \"bytes\" it is {} bytes of text; take \"\\n\", or a tokenizer that has it",
                name.len()
            ))),
            Self::Json { tokenizer, .. } if tokenizer.has_as_tokens(name, &parts).map_err(refused)? => {
                self.check_known(separator).map_err(refused)
            }
            Self::Json { tokenizer, .. } => Err(refused(format!(
                "it looks like a special token, and the tokenizer has none of this name, so that it would be text; its special tokens are {}",
                listed(&tokenizer.special())
            ))),
        }
    }
}

/// Limit of special tokens named in a message.
const NAMED_MAX: usize = 8;

/// Usual names of separator tokens.
const SPECIAL_NAMES: [&str; 21] = [
    "s",
    "bos",
    "eos",
    "pad",
    "unk",
    "sep",
    "cls",
    "mask",
    "eot",
    "eod",
    "eom",
    "endoftext",
    "end_of_text",
    "begin_of_text",
    "start_of_turn",
    "end_of_turn",
    "im_start",
    "im_end",
    "startoftext",
    "end_of_document",
    "document_end",
];

/// Splits `<s>`, `</s>`, `<|endoftext|>`, `[SEP]`, or several of them with white space between; empty: something else.
fn special_parts(name: &str) -> Vec<&str> {
    let first = |name: &str| -> Option<usize> {
        let close = match name.as_bytes().first()? {
            b'<' => '>',
            b'[' => ']',
            _ => return None,
        };
        let end = name.find(close)?;
        let inner = &name[1..end];
        let is_piped = inner.len() > 2 && inner.starts_with('|') && inner.ends_with('|');
        let plain = inner.strip_prefix('/').unwrap_or(inner);
        let is_known = SPECIAL_NAMES.iter().any(|known| {
            plain.eq_ignore_ascii_case(known)
                && (close == '>' || plain.chars().all(|c| c.is_ascii_uppercase() || c == '_'))
        });
        ((is_piped || is_known) && !inner.contains(char::is_whitespace)).then_some(end + 1)
    };
    let (mut parts, mut rest) = (Vec::new(), name.trim());
    while let Some(end) = first(rest) {
        parts.push(&rest[..end]);
        rest = rest[end..].trim_start();
    }
    if rest.is_empty() { parts } else { Vec::new() }
}

pub(super) fn listed(names: &[String]) -> String {
    let more = names.len().saturating_sub(NAMED_MAX);
    let named = names[..names.len() - more].join(", ");
    match (names.is_empty(), more) {
        (true, _) => "none".to_owned(),
        (_, 0) => named,
        _ => format!("{named} and {more} more"),
    }
}

#[cfg(all(test, feature = "tokenizers"))]
mod tests {
    use std::path::Path;

    use super::*;

    const WORDS: &str = r#"{"version":"1.0","added_tokens":[],"normalizer":null,"post_processor":null,"decoder":null,
        "truncation":null,"padding":null,"pre_tokenizer":{"type":"Whitespace"},
        "model":{"type":"WordLevel","vocab":{"[unk]":0,"one":1,"two":7},"unk_token":"[unk]"}}"#;

    #[test]
    fn a_separator_that_looks_like_a_special_token_is_one() {
        let special = r#"{"id":8,"content":"<|end|>","single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":true}"#;
        let json = WORDS.replace("\"added_tokens\":[]", &format!("\"added_tokens\":[{special}]"));
        let words = Tokenizer::of_json(json.into_bytes(), Path::new("tokenizer.json")).unwrap();
        for separator in ["\n", " ", "\t\n"] {
            let message = words.check_separator(separator).unwrap_err().to_string();
            assert!(
                message.contains("makes no token of it") && message.contains("(its special tokens: <|end|>)"),
                "{message}"
            );
            Tokenizer::Bytes.check_separator(separator).unwrap();
        }
        for separator in
            ["", "<", "<>", "|", "< one >", "a < b", "---", "<br>", "[END]", "</p>", "[sep]", "x<s>"]
        {
            // Words outside its vocabulary are another reason.
            let other = words.check_separator(separator).map_err(|error| error.to_string());
            let is_told = |message: String| message.contains("does not know it");
            assert!(other.map_or_else(is_told, |()| separator.is_empty()), "{separator}");
            Tokenizer::Bytes.check_separator(separator).unwrap();
        }
        for separator in ["<|end|>", "<|end|>\n", "<|end|><|end|>"] {
            words.check_separator(separator).unwrap();
            let message = Tokenizer::Bytes.check_separator(separator).unwrap_err().to_string();
            assert!(message.contains("bytes of text"), "{message}");
        }
        for separator in ["</s>", "<s>", "<|endoftext|>", "[SEP]", "<eos>\n", " <end_of_turn>", "<|end|></s>"]
        {
            let message = words.check_separator(separator).unwrap_err().to_string();
            assert!(message.contains("its special tokens are <|end|>"), "{message}");
        }
    }

    #[test]
    fn a_separator_whose_token_takes_the_blanks_before_it_is_refused() {
        for (flag, separator, is_refused) in [
            ("lstrip", "<|end|>", true),
            ("lstrip", " <|end|>\n", true),
            ("lstrip", "<|end|><|end|>", true),
            ("lstrip", "one", false),
            ("rstrip", "<|end|>", false),
            ("single_word", "<|end|>", false),
        ] {
            let special = r#"{"id":8,"content":"<|end|>","single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":true}"#;
            let special = special.replace(&format!("\"{flag}\":false"), &format!("\"{flag}\":true"));
            let json = WORDS.replace("\"added_tokens\":[]", &format!("\"added_tokens\":[{special}]"));
            let words = Tokenizer::of_json(json.into_bytes(), Path::new("tokenizer.json")).unwrap();
            let refused = words.check_separator(separator).map_err(|error| error.to_string());
            let is_so = refused.is_err_and(|message| message.contains("takes the blanks before it"));
            assert_eq!(is_so, is_refused, "{flag}, {separator:?}");
        }
    }

    /// As T5 and XLM-R make them, and as in a byte-level tokenizer.
    #[test]
    fn a_separator_with_the_tokens_of_a_blank_is_refused() {
        let replaced = |pattern: &str, content: &str| serde_json::json!({ "type": "Replace", "pattern": { "Regex": pattern }, "content": content });
        let metaspace = serde_json::json!({ "type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true });
        let bytes = serde_json::json!({ "type": "Sequence", "pretokenizers": [
            { "type": "Split", "pattern": { "Regex": "[ab.]" }, "behavior": "Isolated", "invert": false }] });
        for (normalizer, divider, separator, is_refused) in [
            (replaced("[\n\r\t]", " "), &metaspace, "\n", true),
            (replaced("[\n\r\t]", " "), &metaspace, "\n\n", true),
            (replaced("[\n\r\t]", " "), &metaspace, "\t", true),
            (replaced("\\s+", " "), &metaspace, "\n", true),
            (replaced("\\s+", " "), &metaspace, "\n \n", true),
            (replaced("\\s+", " "), &metaspace, " ", false),
            (replaced("\\s+", " "), &metaspace, "</s>", false),
            (replaced("\\s+", " "), &metaspace, "\n</s>\n", false),
            (replaced("\\s+", " "), &metaspace, "b", false),
            (replaced("\n", "b"), &metaspace, "\n", false),
            (serde_json::Value::Null, &metaspace, "\n", false),
            (serde_json::Value::Null, &metaspace, "▁", true),
            (replaced("\\s+", " "), &bytes, "\n", true),
            (serde_json::Value::Null, &bytes, "\n", false),
            (serde_json::Value::Null, &bytes, "\n\n", false),
        ] {
            let json = serde_json::json!({
                "version": "1.0", "truncation": null, "padding": null, "normalizer": normalizer, "pre_tokenizer": divider,
                "added_tokens": [{ "id": 9, "content": "</s>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true }],
                "post_processor": null, "decoder": null,
                "model": { "type": "Unigram", "unk_id": 0, "byte_fallback": false, "vocab": [
                    ["<unk>", 0.0], ["▁", -1.0], ["a", -1.0], ["b", -1.0], [".", -1.0], ["\n", -1.0], [" ", -1.0], ["▁b", -1.5], ["\t", -1.0]] }
            });
            let json = serde_json::to_vec(&json).unwrap();
            let tokenizer = Tokenizer::of_json(json, Path::new("tokenizer.json")).unwrap();
            let told = tokenizer.check_separator(separator).map_err(|error| error.to_string());
            let is_so = told.as_ref().is_err_and(|told| {
                told.contains("its tokens are those of a blank") && told.contains("(these are </s>)")
            });
            assert_eq!(
                (is_so, told.is_err()),
                (is_refused, is_refused),
                "{separator:?}: {told:?}, {}",
                normalizer
            );
        }
    }

    /// Returns a tokenizer with `</s>`, `<s>` and a token for each byte.
    #[test]
    fn special_tokens_with_anything_between_them_are_each_looked_for() {
        let added = ["<s>", "</s>"].into_iter().zip(256..).map(|(content, id)| {
            serde_json::json!({ "id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true })
        });
        let alphabet: serde_json::Map<_, _> = tokenizers::pre_tokenizers::byte_level::ByteLevel::alphabet()
            .into_iter()
            .zip(0..)
            .map(|(character, id)| (character.to_string(), id.into()))
            .collect();
        let json = serde_json::json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": added.collect::<Vec<_>>(), "normalizer": null,
            "pre_tokenizer": { "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true },
            "post_processor": null, "decoder": null,
            "model": { "type": "BPE", "vocab": alphabet, "merges": [] }
        });
        let json = serde_json::to_vec(&json).unwrap();
        let tokenizer = Tokenizer::of_json(json, Path::new("tokenizer.json")).unwrap();
        for separator in
            ["</s>\n<s>", "</s> <s>\n", "\n</s>\n\n</s>\t<s>", "</s><s>", "x</s>-<s>", "</s>text"]
        {
            tokenizer.check_separator(separator).unwrap();
        }
        for separator in ["</s>\n<eos>", "[SEP]\n<s>", "<s> <pad> </s>", "<unk>"] {
            let message = tokenizer.check_separator(separator).unwrap_err().to_string();
            assert!(message.contains("its special tokens are <s>, </s>"), "{separator:?}: {message}");
        }
    }
}
