//! Solved questions before each question.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::file::{Question, TaskFile};
use super::{Item, TaskError};

/// Between solved questions.
const DELIMITER: &str = "\n\n";

/// Solved questions, by the description of the questions that they stand before: one more than `count`, if there are as many, and none twice.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Examples {
    by_description: BTreeMap<String, Arc<[Item]>>,
    pub(super) count: usize,
}

impl Examples {
    /// Returns the examples of a question: none of them is that question.
    fn of(&self, question: &Question) -> impl Iterator<Item = &Item> {
        let all = self.by_description.get(&question.description).into_iter().flat_map(|all| &**all);
        all.filter(|example| **example != question.item).take(self.count)
    }
}

impl TaskFile {
    /// Puts solved questions before each question: the first `count` others in `files` of its kind and, if these have subjects, of its subject.
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
            let mut chosen: Vec<Item> = Vec::new();
            for Question { item, .. } in own {
                if chosen.len() > count {
                    break;
                }
                if !chosen.contains(item) {
                    chosen.push(item.clone());
                }
            }
            by_description.insert(description.clone(), chosen.into());
        }
        self.examples = Examples { by_description, count };
        let short = self.questions.iter().find_map(|question| {
            let found = self.examples.of(question).count();
            (found < count).then_some((question, found))
        });
        if let Some((question, found)) = short {
            let subject = question.description.trim().to_owned();
            let (path, kind) = (self.path, self.kind);
            return Err(TaskError::Examples { path, kind, subject, found, wanted: count });
        }
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
        let solved = self.examples.of(question).map(|example| example.solved() + DELIMITER);
        question.description.clone() + &solved.collect::<String>()
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
