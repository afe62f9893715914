//! Tokenizer files other than `tokenizer.json`, and the commands that make it.

use std::path::Path;

use serde_json::{Map, Value};

/// Lines of a text examined to identify it.
const LINES: usize = 64;
pub(super) const WHOLE: &str = "tokenizer.json";

/// Returns the message for a folder: the file in it to name, or the command that makes one.
pub(super) fn folder(path: &Path) -> String {
    format!("it is a folder: {}", remedy(path))
}

/// Describes a file that is no tokenizer, with a remedy; `None`: unknown.
pub(super) fn other(bytes: &[u8], path: &Path) -> Option<String> {
    let kind = match serde_json::from_slice(bytes) {
        Ok(Value::Object(object)) => of_json(&object)?,
        Ok(_) => return None,
        Err(_) if is_sentence_piece(bytes) => "a model of SentencePiece",
        Err(_) => of_lines(str::from_utf8(bytes).ok()?)?,
    };
    let mut folder = path.parent().unwrap_or(path);
    if folder.as_os_str().is_empty() {
        folder = Path::new(".");
    }
    // Otherwise the remedy would name this very file.
    let helps = if path.ends_with(WHOLE) { command(folder) } else { remedy(folder) };
    Some(format!("it is {kind}: {helps}"))
}

fn remedy(folder: &Path) -> String {
    let whole = folder.join(WHOLE);
    if whole.is_file() { format!("name {} in data.tokenizer", whole.display()) } else { command(folder) }
}

pub(super) fn command(folder: &Path) -> String {
    format!(
        "`python -c \"from transformers import AutoTokenizer as T; T.from_pretrained('{}').save_pretrained('OUT')\"` writes OUT/{WHOLE}, where all files of the tokenizer are in that folder",
        folder.display()
    )
}

fn of_json(object: &Map<String, Value>) -> Option<&'static str> {
    let has = |names: &[&str]| names.iter().any(|name| object.contains_key(*name));
    match () {
        // A tokenizer that the library refuses.
        () if object.get("model").is_some_and(Value::is_object) => None,
        () if has(&["tokenizer_class", "added_tokens_decoder", "model_max_length"]) => {
            Some("the settings of a tokenizer alone (tokenizer_config.json)")
        }
        () if has(&["model_type", "architectures"]) => Some("the description of a model (config.json)"),
        () if object.is_empty() => None,
        () if object.values().all(Value::is_u64) => Some("a vocabulary alone (vocab.json)"),
        () if object.keys().all(|name| name.ends_with("_token") || name.ends_with("_tokens")) => {
            Some("a list of special tokens (special_tokens_map.json)")
        }
        () => None,
    }
}

fn of_lines(text: &str) -> Option<&'static str> {
    let lines = || text.lines().take(LINES);
    let pairs = || lines().filter(|line| !line.is_empty() && !line.starts_with("#version"));
    let is_pair = |line: &str| line.split(' ').filter(|part| !part.is_empty()).count() == 2;
    let is_ranked = |line: &str| {
        let is_base64 = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/' | b'=');
        line.split_once(' ').is_some_and(|(token, rank)| {
            !token.is_empty()
                && token.len().is_multiple_of(4)
                && token.bytes().all(is_base64)
                && rank.parse::<u32>().is_ok()
        })
    };
    match () {
        () if pairs().next().is_none() => None,
        () if pairs().all(is_ranked) => Some("a vocabulary of tiktoken"),
        () if text.starts_with("#version") || pairs().all(is_pair) => {
            Some("a list of merges alone (merges.txt)")
        }
        () if lines().any(|line| matches!(line, "[UNK]" | "[PAD]" | "[CLS]")) => {
            Some("a vocabulary alone (vocab.txt)")
        }
        () => None,
    }
}

/// Whether it begins with consecutive pieces, the first short: a text, and its score in four bytes.
fn is_sentence_piece(bytes: &[u8]) -> bool {
    let [0x0a, length, 0x0a, text, rest @ ..] = bytes else { return false };
    let (length, text) = (usize::from(*length), usize::from(*text));
    length >= text + 2 && rest.get(text) == Some(&0x15)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PIECES: &[u8] = b"\x0a\x0e\x0a\x05<unk>\x15\0\0\0\0\x18\x02\x0a\x0a\x0a\x03<s>\x15\0\0\0\0\x18\x03";

    #[test]
    fn each_file_of_a_tokenizer_is_told_with_what_has_all_of_it() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().display();
        let command = format!("AutoTokenizer as T; T.from_pretrained('{place}').save_pretrained('OUT')\"`");
        for (name, content, words) in [
            (
                "tokenizer_config.json",
                &br#"{"tokenizer_class": "GPT2Tokenizer", "bos_token": "a"}"#[..],
                "the settings of a tokenizer",
            ),
            ("vocab.json", br#"{"a": 0, "model": 1, "version": 2}"#, "a vocabulary alone (vocab.json)"),
            ("merges.txt", "#version: 0.2\nĠ t\nĠ a\n".as_bytes(), "a list of merges alone"),
            ("merges.txt", "Ġ t\nh e\n".as_bytes(), "a list of merges alone"),
            ("vocab.txt", b"[PAD]\n[unused0]\n[UNK]\nthe\n", "a vocabulary alone (vocab.txt)"),
            ("tokenizer.model", PIECES, "a model of SentencePiece"),
            ("tokenizer.model", b"IQ== 0\nIg== 1\nIw== 2\n", "a vocabulary of tiktoken"),
            ("config.json", br#"{"model_type": "llama", "vocab_size": 5}"#, "the description of a model"),
            (
                "special_tokens_map.json",
                br#"{"bos_token": "<s>", "eos_token": {}}"#,
                "a list of special tokens",
            ),
        ] {
            let path = folder.path().join(name);
            let told = other(content, &path).unwrap();
            assert!(told.starts_with(&format!("it is {words}")) && told.contains(&command), "{told}");
            std::fs::write(folder.path().join(WHOLE), "{}").unwrap();
            let told = other(content, &path).unwrap();
            assert!(told.ends_with(&format!(": name {place}/{WHOLE} in data.tokenizer")), "{told}");
            // A file of that name is not named again.
            assert!(other(content, &folder.path().join(WHOLE)).unwrap().contains(&command), "{name}");
            std::fs::remove_file(folder.path().join(WHOLE)).unwrap();
        }
        assert!(other(PIECES, Path::new("a.model")).unwrap().contains("from_pretrained('.')"));
    }

    #[test]
    fn what_is_not_known_is_left_to_the_library() {
        for content in [
            &b"{}"[..],
            b"[]",
            b"",
            b"\n\n",
            br#"{"model": {"type": "Some"}, "version": "1.0"}"#,
            br#"{"text": "one"}"#,
            b"some text\nof three words a line\n",
            b"\x0a\x0e\x0a\x05<unk>\x16",
            b"\xff\xfe",
        ] {
            assert_eq!(other(content, Path::new("a")), None, "{content:?}");
        }
    }
}
