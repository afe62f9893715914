//! Special tokens that a tokenizer's file puts around each text, and the preparation does not.

use longhaul_common::config::{DataConfig, DataSource};

use super::Tokenizer;
use super::counted::counted;

/// Returns a notice of such tokens; `None`: there are none, or texts have them. A chat template puts its own; pairs of texts are counted.
#[must_use]
pub fn not_put(config: &DataConfig, tokenizer: &Tokenizer) -> Option<String> {
    let sources = config.training();
    let has = |is_one: fn(&DataSource) -> bool| sources.iter().chain(&config.validation).any(is_one);
    let is_of_records = config.conversations.is_some() || config.classification.is_some();
    let is_of_text = !is_of_records && has(|source| !source.format().is_of_tokens());
    if tokenizer.tokens_around() == 0 || !is_of_text {
        return None;
    }
    let around = counted(tokenizer.tokens_around() as u64, "special token");
    let instead = if has(DataSource::has_separators) { ": data.separator stands behind each" } else { "" };
    Some(format!("the tokenizer's file puts {around} around each text, which are not put there{instead}"))
}

#[cfg(all(test, feature = "tokenizers"))]
mod tests {
    use std::path::Path;

    use longhaul_common::config::read_toml;

    use super::*;

    #[test]
    fn tokens_that_are_not_put_are_told_but_for_conversations_and_classes() {
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
        let told = "the tokenizer's file puts 1 special token around each text, which are not put there: data.separator stands behind each";
        for (lines, expected) in [
            ("", Some(told)),
            ("conversations = {}\nseparator = \"a\"", None),
            ("classification = { labels = [\"a\", \"b\"] }", None),
        ] {
            let lines = format!("sequence_length = 8\nsources = [{{ path = \"a.jsonl\" }}]\n{lines}");
            let config: DataConfig = read_toml(&lines).unwrap();
            assert_eq!(not_put(&config, &before).as_deref(), expected, "{lines}");
            assert_eq!(not_put(&config, &tokenizer("null")), None, "{lines}");
        }
    }
}
