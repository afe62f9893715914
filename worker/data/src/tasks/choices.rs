//! Questions with several answers: prompts of lm-evaluation-harness (`lm_eval/tasks/{arc,hellaswag,mmlu,piqa,winogrande}`).

use serde_json::Value;

use super::fields::{index, kind_of, shown, text, texts, unlabelled};
use super::{Choice, Pair};
use crate::records::whole_rows::Row;

/// The letters of MMLU's answers.
pub(super) const LETTERS: [&str; 4] = ["A", "B", "C", "D"];

pub(super) fn arc(row: &Row) -> Result<Choice, String> {
    // The original files have `question: {stem, choices: [{text, label}]}`, those of the Hub `question` and `choices: {text: [], label: []}`.
    let (question, options) = match row.get("question") {
        Some(Value::Object(whole)) => (text(whole, "stem")?, whole.get("choices")),
        _ => (text(row, "question")?, row.get("choices")),
    };
    let columns: Row = match options {
        Some(Value::Object(columns)) => columns.clone(),
        Some(Value::Array(all)) => ["text", "label"]
            .into_iter()
            .map(|name| (name.to_owned(), all.iter().map(|one| one[name].clone()).collect::<Vec<_>>().into()))
            .collect(),
        other => {
            return Err(format!(
                "its `choices` is {}, and no object with `text` and `label`",
                kind_of(other)
            ));
        }
    };
    let (answers, labels) = (texts(&columns, "text")?, texts(&columns, "label")?);
    if answers.len() != labels.len() {
        return Err(format!("its `choices` have {} texts and {} labels", answers.len(), labels.len()));
    }
    let key = row.get("answerKey");
    let right =
        labels.iter().position(|label| key.and_then(Value::as_str) == Some(*label)).ok_or_else(|| {
            format!(
                "its `answerKey` is {}, and its labels are {}{}",
                shown(key),
                labels.join(", "),
                unlabelled(key)
            )
        })?;
    Ok(asked(&format!("Question: {question}\nAnswer:"), &answers, right))
}

pub(super) fn hellaswag(row: &Row) -> Result<Choice, String> {
    let context = match row.get("ctx_a") {
        Some(_) => format!("{} {}", text(row, "ctx_a")?, capitalised(text(row, "ctx_b")?)),
        None => text(row, "ctx")?.to_owned(),
    };
    let endings: Vec<String> = texts(row, "endings")?.into_iter().map(without_brackets).collect();
    let right = index(row, "label", 0, endings.len())?;
    let query = without_brackets(&format!("{}: {context}", text(row, "activity_label")?));
    Ok(asked(&query, &endings.iter().map(String::as_str).collect::<Vec<_>>(), right))
}

pub(super) fn mmlu(row: &Row) -> Result<Choice, String> {
    let options = match row.contains_key("choices") {
        true => texts(row, "choices")?,
        false => LETTERS.iter().map(|letter| text(row, letter)).collect::<Result<_, _>>()?,
    };
    if options.len() != LETTERS.len() {
        return Err(format!("it has {} choices, and questions of this kind have 4", options.len()));
    }
    let answer = row.get("answer");
    let letter = answer.and_then(Value::as_str).map(str::trim);
    let right = match LETTERS.iter().position(|own| letter == Some(*own)) {
        Some(right) => right,
        None => index(row, "answer", 0, options.len())
            .map_err(|reason| format!("{reason}, or a letter from A to D"))?,
    };
    let lines: Vec<String> =
        LETTERS.iter().zip(&options).map(|(letter, option)| format!("{letter}. {option}\n")).collect();
    let question = format!("{}\n{}Answer:", text(row, "question")?.trim(), lines.concat());
    Ok(asked(&question, &LETTERS, right))
}

/// Returns the text before all questions of a subject of MMLU.
pub(super) fn about(subject: &str) -> String {
    let subject = subject.replace('_', " ");
    format!("The following are multiple choice questions (with answers) about {subject}.\n\n")
}

pub(super) fn piqa(row: &Row) -> Result<Choice, String> {
    let answers = [text(row, "sol1")?, text(row, "sol2")?];
    let right = index(row, "label", 0, answers.len())?;
    Ok(asked(&format!("Question: {}\nAnswer:", text(row, "goal")?), &answers, right))
}

pub(super) fn winogrande(row: &Row) -> Result<Choice, String> {
    let (before, behind) = text(row, "sentence")?.split_once('_').ok_or("its `sentence` has no blank `_`")?;
    let options = [text(row, "option1")?, text(row, "option2")?];
    let right = index(row, "answer", 1, options.len())?;
    let continuation = format!(" {}", behind.trim());
    let pair = |option| Pair { context: format!("{before}{option}"), continuation: continuation.clone() };
    let characters = options.map(|option| before.chars().count() + option.chars().count()).into();
    Ok(Choice { pairs: options.map(pair).into(), characters, right })
}

/// Returns a question with answers behind a blank.
fn asked(context: &str, answers: &[&str], right: usize) -> Choice {
    let pair = |answer: &&str| Pair { context: context.to_owned(), continuation: format!(" {answer}") };
    let characters = answers.iter().map(|answer| answer.chars().count()).collect();
    Choice { pairs: answers.iter().map(pair).collect(), characters, right }
}

/// Returns a text as Python's `str.capitalize` does: all but the first letter become small.
fn capitalised(text: &str) -> String {
    let mut characters = text.chars();
    let Some(first) = characters.next() else { return String::new() };
    let mut first = first.to_uppercase();
    let capital: String = first.next().into_iter().chain(first.flat_map(char::to_lowercase)).collect();
    capital + &characters.as_str().to_lowercase()
}

/// Takes out the marks of WikiHow's texts: `[title]` ends a sentence, other brackets go with what is in them.
fn without_brackets(text: &str) -> String {
    let text = text.trim().replace(" [title]", ". ");
    let (mut plain, mut rest) = (String::with_capacity(text.len()), text.as_str());
    while let Some(open) = rest.find('[') {
        let line = &rest[open..rest[open..].find('\n').map_or(rest.len(), |end| open + end)];
        let kept = match line.find(']') {
            Some(close) => {
                plain.push_str(&rest[..open]);
                open + close + 1
            }
            None => {
                plain.push_str(&rest[..=open]);
                open + 1
            }
        };
        rest = &rest[kept..];
    }
    (plain + rest).replace("  ", " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_capitalised_as_in_python() {
        for (text, expected) in
            [("", ""), ("a Dog RUNS", "A dog runs"), ("ßa", "Ssa"), ("éÀ", "Éà"), ("1A", "1a")]
        {
            assert_eq!(capitalised(text), expected);
        }
    }

    /// Expected: `re.sub("\\[.*?\\]", "", text)` between the two replacements.
    #[test]
    fn brackets_go_with_what_is_in_them() {
        for (text, expected) in [
            (" How to [title] Cook [step] eggs  well ", "How to. Cook eggs well"),
            ("a [b [c] d] e", "a d] e"),
            ("a [b\nc] d", "a [b\nc] d"),
            ("[x] a [y", " a [y"),
            ("a    b", "a  b"),
        ] {
            assert_eq!(without_brackets(text), expected, "{text:?}");
        }
    }
}
