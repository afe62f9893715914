//! Texts with the special tokens that a tokenizer puts around them.

use super::Tokenizer;

/// The tokens of a text or a pair.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Framed {
    /// Each token, and whether it is of the second text (`token_type_ids` of 1).
    pub(crate) tokens: Vec<(u32, bool)>,
    /// Whether some were cut off.
    pub(crate) is_cut: bool,
}

impl Tokenizer {
    /// Encodes a text or a pair as transformers' tokenizers do when called with `truncation=True` and `max_length=length`: with special tokens, and the longer text
    /// cut first.
    ///
    /// # Errors
    /// The tokenizer adds no tokens, or has none for a character; `length` has no room for a text; or the error of the `tokenizers` library.
    pub(crate) fn frame(&self, text: &str, pair: Option<&str>, length: usize) -> Result<Framed, String> {
        self.check_whole(text)?;
        pair.map_or(Ok(()), |pair| self.check_whole(pair))?;
        let framed = match self {
            Self::Bytes => return Err("bytes have no special tokens around a text".to_owned()),
            Self::Json { tokenizer, .. } => tokenizer.frame(text, pair, length)?,
        };
        match framed.tokens.is_empty() {
            true => Err("it has no tokens, and the tokenizer puts none around it".to_owned()),
            false => Ok(framed),
        }
    }
}

#[cfg(all(test, feature = "tokenizers"))]
mod tests {
    use std::path::Path;

    use super::*;

    const BERT: &str = r#"{"version":"1.0","normalizer":null,"decoder":null,"truncation":null,"padding":null,
        "added_tokens":[{"id":1,"content":"[CLS]","single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":true},
                        {"id":2,"content":"[SEP]","single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":true}],
        "pre_tokenizer":{"type":"Whitespace"},
        "post_processor":{"type":"TemplateProcessing",
            "single":[{"SpecialToken":{"id":"[CLS]","type_id":0}},{"Sequence":{"id":"A","type_id":0}},{"SpecialToken":{"id":"[SEP]","type_id":0}}],
            "pair":[{"SpecialToken":{"id":"[CLS]","type_id":0}},{"Sequence":{"id":"A","type_id":0}},{"SpecialToken":{"id":"[SEP]","type_id":0}},
                    {"Sequence":{"id":"B","type_id":1}},{"SpecialToken":{"id":"[SEP]","type_id":1}}],
            "special_tokens":{"[CLS]":{"id":"[CLS]","ids":[1],"tokens":["[CLS]"]},"[SEP]":{"id":"[SEP]","ids":[2],"tokens":["[SEP]"]}}},
        "model":{"type":"WordLevel","vocab":{"[UNK]":0,"[CLS]":1,"[SEP]":2,"a":3,"b":4,"c":5,"d":6},"unk_token":"[UNK]"}}"#;

    #[test]
    fn special_tokens_stand_around_texts_and_the_longer_one_is_cut() {
        let read =
            |json: &str| Tokenizer::of_json(json.as_bytes().to_vec(), Path::new("tokenizer.json")).unwrap();
        let tokenizer = read(BERT);
        // As `BertTokenizerFast` makes of these, with `max_length` and `truncation=True`.
        for (text, pair, length, tokens, second, is_cut) in [
            ("a b x", None, 8, vec![1, 3, 4, 0, 2], 0, false),
            ("", None, 8, vec![1, 2], 0, false),
            ("a b c d", None, 4, vec![1, 3, 4, 2], 0, true),
            ("a", Some("b c"), 8, vec![1, 3, 2, 4, 5, 2], 3, false),
            ("a", Some("b c d a"), 6, vec![1, 3, 2, 4, 5, 2], 3, true),
            ("a b c d", Some("a b c"), 7, vec![1, 3, 4, 2, 3, 4, 2], 3, true),
        ] {
            let framed = tokenizer.frame(text, pair, length).unwrap();
            let numbers: Vec<u32> = framed.tokens.iter().map(|(token, _)| *token).collect();
            assert_eq!((numbers, framed.is_cut), (tokens, is_cut), "{text}, {pair:?}");
            let types: Vec<bool> = framed.tokens.iter().map(|(_, is_second)| *is_second).collect();
            let first = types.len() - second;
            assert!(types[..first].iter().all(|of| !of) && types[first..].iter().all(|of| *of), "{types:?}");
        }
        let message = tokenizer.frame("a", Some("b"), 3).unwrap_err();
        assert!(message.contains("3 tokens have no room"), "{message}");
        let start = BERT.find("\"post_processor\"").unwrap();
        let bare = format!("{}{}", &BERT[..start], &BERT[BERT.find("\"model\"").unwrap()..]);
        assert!(read(&bare).frame("", None, 8).unwrap_err().contains("it has no tokens"));
    }
}
