//! Reported peculiarities of accepted sources.

use std::collections::BTreeMap;
use std::fmt;

use indicatif::HumanCount;
use serde::{Deserialize, Serialize};

use crate::counted::counted;

/// Characters of an example.
const EXAMPLE_CHARACTERS_MAX: usize = 200;
/// Names that a kind counts: a bound of memory where records have ever new ones.
const NAMES_MAX: usize = 64;
/// Names in a message.
const NAMES_SHOWN_MAX: usize = 10;
/// Characters of a name.
const NAME_CHARACTERS_MAX: usize = 40;

/// A kind of report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Note {
    /// A line of a plain text ends with CR alone.
    LoneReturns,
    /// A character of a plain text is NUL.
    Nuls,
    /// A text contains the separator.
    Separators,
    /// A first line counts as a record, but looks like column names.
    HeadTaken,
    /// A row of a tab-separated table spans several lines.
    LongRows,
    /// An image has more than eight bits in a channel.
    DeepImages,
    /// An image has an EXIF orientation other than upright.
    TurnedImages,
    /// A text had an escape before a letter or a digit.
    Escapes,
    /// An archive lacks its end mark.
    NoEnd,
    /// A file of an archive has a name without a key, and belongs to no sample.
    NoKey,
    /// A pair of texts lacks the special tokens that the tokenizer's file puts around a text.
    BarePairs,
    /// A completion begins within a token of its prompt.
    JoinedPairs,
    /// Nothing of a completion is trained on but its end.
    LostCompletions,
    /// A pair of texts does not use the chat template that is named.
    UnusedTemplate,
    /// A record has a column that is not read.
    UnreadColumns,
    /// A message has a key that its chat template does not read.
    UnreadKeys,
    /// A message has a key that its chat template asks for, and whose use is unknown.
    UntriedKeys,
    /// A message has reasoning that its chat template does not print.
    OmittedReasoning,
    /// A record has a variable that its chat template does not read.
    UnreadVariables,
    /// A message has a content that its chat template does not print as it is.
    OmittedTexts,
    /// A chat template writes what looks like a control token, and the tokenizer has none of this name.
    LackingTokens,
    /// A text that is trained on ends with the answer, and no token behind it.
    EndlessAnswers,
    /// Arguments of a call of tools are JSON in a text, and taken as an object.
    ParsedArguments,
    /// Arguments of a call of tools are a text that is no JSON object.
    TextArguments,
    /// A text spells a control token of the tokenizer.
    ControlTokens,
    /// A text spells a control token of other tokenizers.
    OtherControlTokens,
}

/// Count of each kind, with its first place, or with names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Notes(BTreeMap<Note, Noted>);

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Noted {
    count: u64,
    /// Empty without a place to name.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    first: String,
    /// Count of each name, up to [`NAMES_MAX`] names.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    names: BTreeMap<String, u64>,
}

impl Notes {
    /// Adds `count` of a kind; `first`: the place of the first.
    pub(super) fn note(&mut self, note: Note, count: u64, first: impl FnOnce() -> String) {
        if count > 0 {
            let noted = self.0.entry(note).or_default();
            if noted.count == 0 {
                noted.first = first().chars().take(EXAMPLE_CHARACTERS_MAX).collect();
            }
            noted.count += count;
        }
    }

    /// Adds other notes.
    pub fn add(&mut self, other: &Self) {
        for (note, Noted { count, first, names }) in &other.0 {
            self.note(*note, *count, || first.clone());
            names.iter().for_each(|(name, count)| self.count_name(*note, name, *count));
        }
    }

    /// Adds one of a kind with a name.
    pub(super) fn name(&mut self, note: Note, name: &str) {
        self.names(note, name, 1);
    }

    /// Adds `count` of a kind with a name.
    pub(super) fn names(&mut self, note: Note, name: &str, count: u64) {
        if count == 0 {
            return;
        }
        let end = name.char_indices().nth(NAME_CHARACTERS_MAX).map_or(name.len(), |(end, _)| end);
        self.note(note, count, String::new);
        self.count_name(note, &name[..end], count);
    }

    fn count_name(&mut self, note: Note, name: &str, count: u64) {
        let names = &mut self.0.entry(note).or_default().names;
        if let Some(own) = names.get_mut(name) {
            *own += count;
        } else if names.len() < NAMES_MAX {
            names.insert(name.to_owned(), count);
        }
    }

    /// Returns those on columns that are not read, and the others, which may matter more.
    #[must_use]
    pub fn columns_and_others(mut self) -> [Self; 2] {
        let columns = self.0.remove_entry(&Note::UnreadColumns).into_iter().collect();
        [Self(columns), self]
    }

    /// Whether nothing is noted.
    #[must_use]
    pub fn are_none(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the count of a kind.
    #[cfg(test)]
    pub(super) fn count(&self, note: Note) -> u64 {
        self.0.get(&note).map_or(0, |noted| noted.count)
    }
}

/// Columns of a table that are not read, with the number of its rows.
#[derive(Debug, Default)]
pub(super) struct UnreadColumns {
    names: Vec<String>,
    rows: u64,
}

impl UnreadColumns {
    #[cfg(feature = "parquet")]
    pub(super) fn of(names: Vec<String>) -> Self {
        Self { names, rows: 0 }
    }

    /// Counts a row.
    pub(super) fn see_row(&mut self) {
        self.rows += 1;
    }

    /// Adds the rows since the last call to notes, for each column.
    pub(super) fn note(&mut self, notes: &mut Notes) {
        let rows = std::mem::take(&mut self.rows);
        self.names.iter().for_each(|name| notes.names(Note::UnreadColumns, name, rows));
    }
}

/// `2 images have more than eight bits in a channel (the first: a.png): …; …`
impl fmt::Display for Notes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (note, noted)) in self.0.iter().enumerate() {
            let before = if index == 0 { "" } else { "; " };
            write!(f, "{before}{}", Told(*note, noted))?;
        }
        Ok(())
    }
}

struct Told<'a>(Note, &'a Noted);

impl fmt::Display for Told<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(note, noted @ Noted { count, first, .. }) = self;
        let verb = |one: &'static str, many: &'static str| if *count == 1 { one } else { many };
        match note {
            Note::LoneReturns => write!(
                f,
                "{} {} with CR alone, which stays a character: `tr '\\r' '\\n' < IN > OUT` makes line feeds of them, where no line ends with CR LF",
                counted(*count, "line"),
                verb("ends", "end")
            ),
            Note::Nuls => write!(
                f,
                "{} {} NUL, as in UTF-16 without a byte order mark, and {}: `tr -d '\\0' < IN > OUT` takes them out",
                counted(*count, "character"),
                verb("is", "are"),
                verb("stays", "stay")
            ),
            Note::Separators => write!(
                f,
                "{} {} the separator within (the first: {first}), where a text seems to end: take it out, or name another data.separator",
                counted(*count, "text"),
                verb("has", "have")
            ),
            Note::HeadTaken if *count == 1 => write!(
                f,
                "line 1 is taken as a record, since `column` is a number, and looks like the names of columns ({first}): where it is a head, name the column"
            ),
            Note::HeadTaken => write!(
                f,
                "the first lines of {} files are taken as records, since `column` is a number, and look like the names of columns (the first: {first}): where they are heads, name the column",
                HumanCount(*count)
            ),
            Note::LongRows => write!(
                f,
                "{} of a table with tabs {} over several lines (the first: {first}): where quotes are text as any other, say quote = \"\"",
                counted(*count, "row"),
                verb("goes", "go")
            ),
            Note::DeepImages => write!(
                f,
                "{} {} more than eight bits in a channel (the first: {first}): values are scaled to eight, so that 65,535 is white; where white is less than that, scale them before (Pillow cuts grey ones off at 255)",
                counted(*count, "image"),
                verb("has", "have")
            ),
            Note::TurnedImages => write!(
                f,
                "{} {} an EXIF orientation, which is not applied, as in Pillow (the first: {first}): where it matters, turn them before (`mogrify -auto-orient`)",
                counted(*count, "image"),
                verb("has", "have")
            ),
            Note::Escapes => write!(
                f,
                "{} {} an escape before a letter or a digit (the first: {first}): the escape is dropped, and the character stays; where they mean something else (`\\n` of PostgreSQL is a line feed), write CSV with quotes",
                counted(*count, "text"),
                verb("has", "have")
            ),
            Note::NoEnd => write!(
                f,
                "{} {} no mark of the end, and all files in {} are whole ({first}): where one is not complete, fetch it again",
                counted(*count, "archive"),
                verb("has", "have"),
                verb("it", "them")
            ),
            Note::NoKey => write!(
                f,
                "{} of archives {} passed over, as by webdataset, which finds no key in {} (the first: {first}): where {} of samples, give {} a name before the first point",
                counted(*count, "file"),
                verb("is", "are"),
                verb("its name", "their names"),
                verb("it is", "they are"),
                verb("it", "them")
            ),
            Note::BarePairs => write!(
                f,
                "{} of texts {} none of the special tokens that the tokenizer's file puts around a text: where the model wants one in front, begin the prompts with it",
                counted(*count, "pair"),
                verb("gets", "get")
            ),
            Note::JoinedPairs => write!(
                f,
                "{} {} within a token of the prompt, which alone has other tokens in use: let prompts end where a token does, as before a blank",
                counted(*count, "completion"),
                verb("begins", "begin")
            ),
            Note::LostCompletions => write!(
                f,
                "of {} nothing is trained on but the end, since nothing stands before the first token of a pair: write more into the prompt, or begin it with a control token",
                counted(*count, "completion")
            ),
            Note::UnusedTemplate => write!(
                f,
                "the chat template that is named is not used for {}: write {} as lists of messages where {} to have it",
                counted(*count, "pair") + " of texts",
                verb("it", "them"),
                verb("it is", "they are")
            ),
            Note::UnreadColumns => write!(f, "columns that are not read: {}", Names(noted, "record")),
            Note::UnreadKeys => {
                write!(f, "message keys that the chat template does not read: {}", Names(noted, "message"))
            }
            Note::UntriedKeys => write!(
                f,
                "message keys that the chat template asks for, and may not print, since there are too many to try: {}",
                Names(noted, "message")
            ),
            Note::OmittedReasoning => {
                write!(f, "reasoning that the chat template leaves out: {}", Names(noted, "message"))
            }
            Note::UnreadVariables => write!(
                f,
                "variables (chat_template_kwargs) that the chat template does not read: {}",
                Names(noted, "conversation")
            ),
            Note::OmittedTexts => write!(
                f,
                "contents that the chat template leaves out or changes, by role: {}",
                Names(noted, "message")
            ),
            Note::LackingTokens => write!(
                f,
                "control tokens of the chat template that the tokenizer does not have, and encodes in pieces: {}",
                Names(noted, "conversation")
            ),
            Note::EndlessAnswers => write!(
                f,
                "{} {} with the answer, and no end token behind it is trained on, so that the model does not learn to stop: let the chat template write one there",
                counted(*count, "conversation"),
                verb("ends", "end")
            ),
            Note::ParsedArguments => write!(
                f,
                "arguments of {} are JSON in a text, and taken as objects, since the chat template does not print the text as it is",
                counted(*count, "tool call")
            ),
            Note::TextArguments => write!(
                f,
                "arguments of {} are {} no JSON object, and stay so",
                counted(*count, "tool call"),
                verb("a text that is", "texts that are")
            ),
            Note::ControlTokens => write!(
                f,
                "texts that spell control tokens of the tokenizer, which they become: {}",
                Names(noted, "text")
            ),
            Note::OtherControlTokens => write!(
                f,
                "texts that spell control tokens of other tokenizers, which this one encodes in pieces: {}",
                Names(noted, "text")
            ),
        }
    }
}

/// ``` `id` (1,200 records), `source` (3 records) and others ```: the most frequent names, each with its count of these.
struct Names<'a>(&'a Noted, &'static str);

impl fmt::Display for Names<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(Noted { count: all, names, .. }, noun) = self;
        let mut names: Vec<(&String, u64)> = names.iter().map(|(name, count)| (name, *count)).collect();
        names.sort_by_key(|(_, count)| u64::MAX - count);
        let is_whole =
            names.len() <= NAMES_SHOWN_MAX && names.iter().map(|(_, count)| count).sum::<u64>() == *all;
        names.truncate(NAMES_SHOWN_MAX);
        let shown =
            |(name, count): &(&String, u64)| format!("`{}` ({})", name.escape_debug(), counted(*count, noun));
        f.write_str(&names.iter().map(shown).collect::<Vec<_>>().join(", "))?;
        if is_whole { Ok(()) } else { f.write_str(" and others") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_has_counts_and_the_first_place_and_is_read_as_it_was_written() {
        let kinds = [
            (Note::LoneReturns, "1 line ends with CR", "3 lines end with CR"),
            (
                Note::Separators,
                "1 text has the separator within (the first: a.tsv, line 2)",
                "3 texts have the",
            ),
            (
                Note::HeadTaken,
                "line 1 is taken as a record, since `column` is a number, and looks like",
                "the first lines of 3 files are taken as",
            ),
            (Note::LongRows, "1 row of a table with tabs goes over", "3 rows of a table with tabs go over"),
            (Note::DeepImages, "1 image has more than eight", "3 images have more than eight"),
            (Note::TurnedImages, "1 image has an EXIF", "3 images have an EXIF"),
            (Note::Escapes, "1 text has an escape before", "3 texts have an escape before"),
            (
                Note::NoEnd,
                "1 archive has no mark of the end, and all files in it are",
                "3 archives have no mark",
            ),
            (
                Note::NoKey,
                "1 file of archives is passed over, as by webdataset, which finds no key in its name",
                "3 files of archives are passed",
            ),
            (Note::BarePairs, "1 pair of texts gets none of the special", "3 pairs of texts get none of the"),
            (
                Note::JoinedPairs,
                "1 completion begins within a token of the prompt",
                "3 completions begin within a token of the prompt",
            ),
            (
                Note::LostCompletions,
                "of 1 completion nothing is trained on but the end",
                "of 3 completions nothing is trained on but",
            ),
            (
                Note::UnusedTemplate,
                "the chat template that is named is not used for 1 pair of texts: write it as",
                "the chat template that is named is not used for 3 pairs of texts: write them as",
            ),
            (Note::EndlessAnswers, "1 conversation ends with the answer", "3 conversations end with the"),
            (
                Note::ParsedArguments,
                "arguments of 1 tool call are JSON",
                "arguments of 3 tool calls are JSON",
            ),
            (
                Note::TextArguments,
                "arguments of 1 tool call are a text",
                "arguments of 3 tool calls are texts",
            ),
        ];
        let mut all = Notes::default();
        for (note, one, many) in kinds {
            let mut notes = Notes::default();
            notes.note(note, 0, || "nowhere".to_owned());
            assert!(notes.are_none());
            notes.note(note, 1, || "a.tsv, line 2".to_owned());
            assert!(notes.to_string().starts_with(one), "{notes}");
            notes.note(note, 2, || "b.tsv".to_owned());
            let told = notes.to_string();
            assert!(told.starts_with(many) && !told.contains("b.tsv"), "{told}");
            all.add(&notes);
            all.add(&notes);
            assert_eq!(all.count(note), 6);
        }
        let within = ["white; ", "stays; "].map(|words| all.to_string().matches(words).count());
        assert_eq!(all.to_string().matches("; ").count(), 15 + within.iter().sum::<usize>());
        let written = serde_json::to_string(&all).unwrap();
        assert_eq!(serde_json::from_str::<Notes>(&written).unwrap(), all);
        let mut named = Notes::default();
        (0..80).for_each(|at| named.name(Note::UnreadKeys, &format!("k{at:02}")));
        for name in ["id", "k70", "k09", "id"] {
            named.name(Note::UnreadColumns, name);
        }
        let mut twice = named.clone();
        twice.add(&named);
        twice.name(Note::UnreadColumns, &"é\n".repeat(99));
        let told = twice.to_string();
        let start =
            "columns that are not read: `id` (4 records), `k09` (2 records), `k70` (2 records), `é\\né";
        assert!(told.starts_with(start) && told.matches('é').count() == NAME_CHARACTERS_MAX / 2, "{told}");
        let end = " (1 record); message keys that the chat template does not read: `k00` (2 messages), ";
        assert!(told.contains(end) && told.ends_with("`k09` (2 messages) and others"), "{told}");
        assert_eq!(twice.0[&Note::UnreadKeys].names.len(), NAMES_MAX);
        let written = serde_json::to_string(&twice).unwrap();
        assert_eq!(serde_json::from_str::<Notes>(&written).unwrap(), twice);
        let mut long = Notes::default();
        long.note(Note::NoEnd, 1, || "é".repeat(999));
        assert_eq!(long.to_string().matches('é').count(), EXAMPLE_CHARACTERS_MAX);
    }
}
