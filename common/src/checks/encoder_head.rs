//! Runs train an encoder's head for masked tokens, or that for classes.

use crate::config::{ConfigError, EncoderHead, RunConfig};
use crate::model::Encoder;

impl RunConfig {
    /// Refuses other heads.
    pub(super) fn check_encoder_head(&self) -> Result<(), ConfigError> {
        let head = self.model.encoder.as_ref().and_then(|encoder| encoder.head).unwrap_or_default();
        let refused =
            |value: &str, reason: String| Err(ConfigError::value("model.encoder.head", value, reason));
        match head {
            EncoderHead::Masked => Ok(()),
            EncoderHead::Classes if self.data.classification.is_some() => Ok(()),
            EncoderHead::None => {
                let names = Encoder::of(&self.model).map(|encoder| encoder.masked_tensors()).unwrap_or_default();
                refused("none", format!(
                    "the model has no head for masked tokens, which runs train: its files lack {}; take a model saved as a masked language model (`AutoModelForMaskedLM`)",
                    names.join(", ")
                ))
            }
            EncoderHead::Classes => refused(
                "classes",
                "its head tells classes of texts: add [data.classification], or take a masked language model".to_owned(),
            ),
            EncoderHead::Replaced => refused(
                "replaced",
                "a discriminator is trained beside a generator, and runs train one model: take the generator (`ElectraForMaskedLM`)".to_owned(),
            ),
        }
    }
}
