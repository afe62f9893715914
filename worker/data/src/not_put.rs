//! Special tokens that a tokenizer's file puts around each text, and the preparation does not.

use longhaul_common::config::{DataConfig, DataSource};

use super::Tokenizer;
use super::chat::Chat;
use super::counted::counted;

/// Returns a notice of such tokens; `None`: there are none, or a chat template puts its own.
#[must_use]
pub fn not_put(config: &DataConfig, tokenizer: &Tokenizer) -> Option<String> {
    let sources = config.training();
    let has = |is_one: fn(&DataSource) -> bool| sources.iter().chain(&config.validation).any(is_one);
    let is_of_text = config.classification.is_none() && has(|source| !source.format().is_of_tokens());
    // The preparation refuses a template that cannot be read.
    let chat = |source| Chat::of(source, config, tokenizer).ok().flatten();
    let has_template = sources.iter().filter_map(chat).any(|chat| chat.has_template());
    if tokenizer.tokens_around() == 0 || !is_of_text || has_template {
        return None;
    }
    let around = counted(tokenizer.tokens_around() as u64, "special token");
    // Pairs of texts end with another token, unless it is written.
    let is_separated = config.conversations.is_none() || config.separator.is_some();
    let instead = match is_separated && has(DataSource::has_separators) {
        true => ": data.separator stands behind each",
        false => "",
    };
    Some(format!("the tokenizer's file puts {around} around each text, which are not put there{instead}"))
}

#[cfg(all(test, feature = "tokenizers"))]
mod tests {
    use std::path::Path;

    use longhaul_common::config::read_toml;

    use super::*;

    #[test]
    fn tokens_that_are_not_put_are_told_but_for_those_of_a_template() {
        let tokenizer = |processor: &str| {
            let json = format!(
                r#"{{"version":"1.0","truncation":null,"padding":null,"added_tokens":[],"normalizer":null,"decoder":null,
                "pre_tokenizer":{{"type":"Whitespace"}},"post_processor":{processor},
                "model":{{"type":"WordLevel","vocab":{{"<s>":0,"a":1}},"unk_token":"a"}}}}"#
            );
            Tokenizer::of_json(json.into_bytes(), Path::new("none/tokenizer.json")).unwrap()
        };
        let before = tokenizer(
            r#"{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<s>","type_id":0}},{"Sequence":{"id":"A","type_id":0}}],"pair":[{"Sequence":{"id":"A","type_id":0}},{"Sequence":{"id":"B","type_id":1}}],"special_tokens":{"<s>":{"id":"<s>","ids":[0],"tokens":["<s>"]}}}"#,
        );
        let folder = tempfile::tempdir().unwrap();
        let template = folder.path().join("chat.jinja");
        std::fs::write(&template, "{{ messages[0].content }}").unwrap();
        let told = "the tokenizer's file puts 1 special token around each text, which are not put there";
        let separated = format!("{told}: data.separator stands behind each");
        let classes = "classification = { labels = [\"a\", \"b\"] }";
        for (lines, expected) in [
            ("", Some(separated.as_str())),
            (&format!("conversations = {{ chat_template = {template:?} }}"), None),
            ("conversations = {}", Some(told)),
            ("conversations = {}\nseparator = \"a\"", Some(separated.as_str())),
            (classes, None),
        ] {
            let lines = format!("sequence_length = 8\nsources = [{{ path = \"a.jsonl\" }}]\n{lines}");
            let config: DataConfig = read_toml(&lines).unwrap();
            assert_eq!(not_put(&config, &before).as_deref(), expected, "{lines}");
            assert_eq!(not_put(&config, &tokenizer("null")), None, "{lines}");
        }
    }
}
