//! Solved questions before each question.

use std::collections::BTreeMap;

use super::file::{Question, TaskFile};
use super::{Item, TaskError};

/// Between solved questions.
const DELIMITER: &str = "\n\n";

/// Solved questions, by the description of the questions that they stand before.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Examples {
    by_description: BTreeMap<String, String>,
    pub(super) count: usize,
}

impl Examples {
    /// Returns the text before a question.
    pub(super) fn before(&self, question: &Question) -> &str {
        self.by_description.get(&question.description).map_or("", String::as_str)
    }
}

impl TaskFile {
    /// Puts solved questions before each question: the first `count` in `files` of its kind and, if these have subjects, of its subject.
    ///
    /// # Errors
    /// There are fewer.
    pub fn with_examples(mut self, files: &[Self], count: usize) -> Result<Self, TaskError> {
        let of_kind = files.iter().filter(|file| file.kind == self.kind).flat_map(|file| &file.questions);
        let solved: Vec<&Question> = of_kind.collect();
        let have_subjects = solved.iter().any(|question| !question.description.is_empty());
        let mut by_description = BTreeMap::new();
        for Question { description, .. } in &self.questions {
            if by_description.contains_key(description) {
                continue;
            }
            let own = solved.iter().filter(|other| !have_subjects || other.description == *description);
            let chosen: Vec<String> =
                own.take(count).map(|question| question.item.solved() + DELIMITER).collect();
            if chosen.len() < count {
                let subject = description.trim().to_owned();
                let (path, found) = (self.path, chosen.len());
                return Err(TaskError::Examples { path, kind: self.kind, subject, found, wanted: count });
            }
            by_description.insert(description.clone(), chosen.concat());
        }
        self.examples = Examples { by_description, count };
        Ok(self)
    }

    /// Returns the number of solved questions before each question.
    #[must_use]
    pub fn shots(&self) -> usize {
        self.examples.count
    }

    /// Returns the text before a question's own: the description of its subject, and solved questions.
    #[must_use]
    pub fn before(&self, question: &Question) -> String {
        [question.description.as_str(), self.examples.before(question)].concat()
    }
}

impl Item {
    /// Returns it with its right answer.
    fn solved(&self) -> String {
        match self {
            Self::Choice(choice) => {
                let pair = &choice.pairs[choice.right];
                [pair.context.as_str(), &pair.continuation].concat()
            }
            Self::Answer(answer) if answer.prompt.ends_with(char::is_whitespace) => {
                [answer.prompt.as_str(), &answer.expected].concat()
            }
            Self::Answer(answer) => format!("{} {}", answer.prompt, answer.expected),
        }
    }
}
