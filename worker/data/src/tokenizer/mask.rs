//! The mask token, and the special tokens beside it.

use longhaul_common::config::MaskToken;

use super::Tokenizer;
use super::separator::listed;
use crate::DataError;

/// Names of mask tokens: of BERT and ELECTRA, and of RoBERTa.
const USUAL: [&str; 2] = ["[MASK]", "<mask>"];

impl Tokenizer {
    /// Returns the number of the mask token, by default that of a usual name.
    ///
    /// # Errors
    /// The tokenizer has no such token.
    pub(crate) fn mask_token(&self, wanted: Option<&MaskToken>) -> Result<u32, DataError> {
        let refused = |reason: String| {
            let token = wanted
                .map_or_else(|| "data.masking".to_owned(), |token| format!("data.masking.token = {token}"));
            DataError::MaskToken { token, reason }
        };
        let Self::Json { tokenizer: described, .. } = self else {
            return match wanted {
                // The configuration has compared it with the model's vocabulary.
                Some(MaskToken::Number(number)) => Ok(*number),
                _ => Err(refused(
                    "with tokenizer = \"bytes\" there is no mask token: set data.tokenizer to a tokenizer.json that has [MASK] or <mask>".to_owned(),
                )),
            };
        };
        let known = || format!("its special tokens are {}", listed(&described.special()));
        match wanted {
            Some(MaskToken::Number(number)) if *number < self.vocabulary() => Ok(*number),
            Some(MaskToken::Number(_)) => {
                let reason = format!("the tokenizer has {} tokens: name one of them", self.vocabulary());
                Err(refused(reason))
            }
            Some(MaskToken::Text(text)) => described.number(text).ok_or_else(|| {
                refused(format!("the tokenizer has no such token; {}", known()))
            }),
            None => USUAL.iter().find_map(|name| described.number(name)).ok_or_else(|| {
                refused(format!(
                    "the tokenizer {} has neither [MASK] nor <mask>, and {}: add one (`tokenizer.add_special_tokens({{'mask_token': '[MASK]'}})` in transformers, and save_pretrained), or name its own with data.masking.token",
                    self.path().display(),
                    known()
                ))
            }),
        }
    }

    /// Returns the numbers of its special tokens, in order.
    pub(crate) fn special_tokens(&self) -> Vec<u32> {
        match self {
            Self::Bytes => Vec::new(),
            Self::Json { tokenizer, .. } => tokenizer.special_numbers(),
        }
    }
}
