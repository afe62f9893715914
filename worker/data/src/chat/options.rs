//! Remedies of commands that have options in place of a run's configuration.

use crate::DataError;

/// Keys, and the options of `worker sample` and `worker evaluate` that do the same.
const OPTIONS: [(&str, &str); 2] =
    [("data.conversations.chat_template", "--chat-template"), ("data.conversations.date", "--date")];

/// Returns a reason with options in place of keys.
pub(super) fn by_options(reason: &str) -> String {
    OPTIONS.into_iter().fold(reason.to_owned(), |reason, (key, option)| reason.replace(key, option))
}

/// Returns an error with options in place of keys.
pub(super) fn error_by_options(error: DataError) -> DataError {
    match error {
        DataError::ChatTemplate { place, reason } => {
            DataError::ChatTemplate { place, reason: by_options(&reason) }
        }
        error => error,
    }
}
