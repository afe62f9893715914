//! A conversation with a model, and the prompt for its next answer.

use std::path::Path;

use super::date::Date;
use super::extras::Extras;
use super::found::find;
use super::message::{ASSISTANT, Message, SYSTEM};
use super::options::{by_options, error_by_options};
use super::template::ChatTemplate;
use crate::DataError;

/// A conversation that goes on.
#[derive(Clone, Debug)]
pub struct Dialogue {
    template: ChatTemplate,
    messages: Vec<Message>,
    end: Option<String>,
}

impl Dialogue {
    /// Begins with the template in the file `given`, or else beside the tokenizer in `folder`. `date` (`YYYY-MM-DD`) is that of `strftime_now`. `None`:
    /// there is no template.
    ///
    /// # Errors
    /// The template cannot be read or compiled, or the date is none.
    pub fn open(
        given: Option<&Path>,
        folder: Option<&Path>,
        date: Option<&str>,
    ) -> Result<Option<Self>, DataError> {
        let date = date.map(Date::read).transpose()?;
        let found = find(given, folder).map_err(error_by_options)?;
        let end = found.end();
        Ok(found.template(date).map_err(error_by_options)?.map(|template| Self {
            template,
            messages: Vec::new(),
            end,
        }))
    }

    /// Returns the text of the token that ends an answer, the tokenizer's `eos_token`.
    #[must_use]
    pub fn end(&self) -> Option<&str> {
        self.end.as_deref()
    }

    /// Adds the system's message.
    ///
    /// # Errors
    /// It has characters that mark generated text.
    pub fn set_system(&mut self, text: &str) -> Result<(), String> {
        self.push(SYSTEM, text)
    }

    /// Adds a message of the user, and returns the text after which the model answers.
    ///
    /// # Errors
    /// The template refuses the conversation.
    pub fn ask(&mut self, text: &str) -> Result<String, String> {
        self.push("user", text)?;
        let rendered = self.template.render(&self.messages, &Extras::default(), true);
        Ok(rendered.map_err(|reason| by_options(&reason))?.text)
    }

    /// Adds the model's answer.
    ///
    /// # Errors
    /// It has characters that mark generated text.
    pub fn answered(&mut self, text: &str) -> Result<(), String> {
        self.push(ASSISTANT, text)
    }

    fn push(&mut self, role: &str, text: &str) -> Result<(), String> {
        self.messages.push(Message::plain(role, text.to_owned())?);
        Ok(())
    }
}
