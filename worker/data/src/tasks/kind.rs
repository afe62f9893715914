//! The kind of a task, as its columns tell it.

use longhaul_common::config::TaskKind;
use serde_json::Value;

use super::generated::FINAL;
use crate::records::whole_rows::Row;

/// Recognises the kind of a row by its columns; `None`: it is of none.
pub(super) fn kind_of(row: &Row) -> Option<TaskKind> {
    let has = |names: &[&str]| names.iter().all(|name| row.contains_key(*name));
    let is_final = || row.get("answer").and_then(Value::as_str).is_some_and(|answer| answer.contains(FINAL));
    let options = has(&["choices"]) || has(&["A", "B", "C", "D"]);
    Some(match () {
        () if has(&["question", "answerKey"]) => TaskKind::Arc,
        () if has(&["endings", "label"]) => TaskKind::HellaSwag,
        () if has(&["goal", "sol1", "sol2"]) => TaskKind::Piqa,
        () if has(&["sentence", "option1", "option2"]) => TaskKind::WinoGrande,
        () if has(&["question", "answer"]) && options => TaskKind::Mmlu,
        () if has(&["question", "answer"]) && is_final() => TaskKind::Gsm8k,
        () if has(&["prompt", "completion"]) || has(&["question", "answer"]) => TaskKind::ExactMatch,
        () => return None,
    })
}
