//! Questions whose answers are generated: prompts of lm-evaluation-harness (`lm_eval/tasks/gsm8k`).

use super::Answer;
use super::fields::text;
use crate::records::whole_rows::Row;

/// The mark before the result in answers of GSM8K.
pub(super) const FINAL: &str = "#### ";
/// Texts that end an answer of GSM8K.
const GSM8K_STOPS: &[&str] = &["Question:", "</s>", "<|im_end|>"];
/// The harness's end of answers in general.
const STOPS: &[&str] = &["\n\n"];

pub(super) fn gsm8k(row: &Row) -> Result<Answer, String> {
    let expected = text(row, "answer")?;
    if !expected.contains(FINAL) {
        return Err(format!("its `answer` has no `{FINAL}` before a result"));
    }
    let prompt = format!("Question: {}\nAnswer:", text(row, "question")?);
    Ok(Answer { prompt, expected: expected.to_owned(), stops: GSM8K_STOPS })
}

pub(super) fn exact_match(row: &Row) -> Result<Answer, String> {
    let (prompt, expected) = match row.contains_key("prompt") {
        true => (text(row, "prompt")?.to_owned(), text(row, "completion")?),
        false => (format!("Question: {}\nAnswer:", text(row, "question")?), text(row, "answer")?),
    };
    if prompt.is_empty() || expected.trim().is_empty() {
        return Err("its prompt or its answer is empty".to_owned());
    }
    let stops = if expected.trim().contains(STOPS[0]) { &[] } else { STOPS };
    Ok(Answer { prompt, expected: expected.to_owned(), stops })
}
