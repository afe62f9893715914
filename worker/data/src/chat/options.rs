//! Remedies of commands that have options in place of a run's configuration.

use crate::DataError;
use crate::error::READ_TEMPLATE;

/// Keys, and the options of `worker sample` and `worker evaluate` that do the same.
const OPTIONS: [(&str, &str); 2] =
    [("data.conversations.chat_template", "--chat-template"), ("data.conversations.date", "--date")];

/// The end of a remedy that no option offers.
const OF_RUNS_ALONE: &str = ", or say data.conversations.train_on = \"all\"";

/// Returns a reason with options in place of keys.
pub(super) fn by_options(reason: &str) -> String {
    let reason = reason.replace(OF_RUNS_ALONE, "");
    OPTIONS.into_iter().fold(reason, |reason, (key, option)| reason.replace(key, option))
}

/// Returns an error with options in place of keys.
pub(super) fn error_by_options(error: DataError) -> DataError {
    match error {
        DataError::ChatTemplate { place, reason } => {
            DataError::ChatTemplate { place, reason: by_options(&reason) }
        }
        DataError::Io { operation: READ_TEMPLATE, path, source } => DataError::ChatTemplate {
            place: path.display().to_string(),
            reason: format!("it cannot be read: {source}"),
        },
        error => error,
    }
}
