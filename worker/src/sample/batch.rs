//! Many prompts from a file, several at once.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read as _};
use std::mem;
use std::path::Path;

use anyhow::{Context, Error, Result, bail, ensure};
use longhaul_data::{Detokenizer, Dialogue};
use serde_json::{Map, Value};

use super::{Speaker, read_prompt, show};

/// Most bytes of a prompt.
const PROMPT_MAX: u64 = 16 << 20;

/// Keys of an answer, which no line of the file may have.
const ANSWER: [&str; 2] = ["text", "finish_reason"];

/// A prompt of the file.
#[derive(Debug)]
struct Prompt {
    line: u64,
    text: String,
    /// Other keys of its line, which its answer repeats.
    others: Map<String, Value>,
}

/// The lines of a file of prompts.
struct Prompts {
    input: Box<dyn BufRead>,
    is_json: bool,
    line: u64,
}

impl Speaker {
    /// Continues each prompt of a file, `batch` at once, and prints a line of JSON for each, in order, with the other keys of its line; with a dialogue, answers each as its next message.
    ///
    /// # Errors
    /// Before any is continued: a prompt cannot be read, or holds nothing that the tokenizer knows, by its line; or there is none.
    pub(super) fn continue_file(&self, file: &Path, batch: usize, dialogue: Option<&Dialogue>) -> Result<()> {
        let read = |prompt: Result<Prompt>| {
            let prompt = prompt?;
            let tokens = self.tokens_of(&prompt.text, dialogue);
            let place = || format!("line {} of --prompts", prompt.line);
            let tokens = tokens.with_context(place)?;
            Ok((prompt, tokens))
        };
        let (mut prompts, tokens): (Vec<_>, Vec<_>) =
            Prompts::open(file)?.map(read).collect::<Result<Vec<_>>>()?.into_iter().unzip();
        ensure!(!prompts.is_empty(), "--prompts {} has no prompt", file.display());
        for (prompts, tokens) in prompts.chunks_mut(batch).zip(tokens.chunks(batch)) {
            for (prompt, (text, finish_reason)) in prompts.iter_mut().zip(self.speak_all(tokens)?) {
                if !show(&format!("{}\n", prompt.answered(text, finish_reason)))? {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    fn tokens_of(&self, prompt: &str, dialogue: Option<&Dialogue>) -> Result<Vec<u32>> {
        match dialogue {
            Some(dialogue) => self.asked(&mut dialogue.clone(), prompt),
            None => read_prompt(&self.tokenizer, prompt),
        }
    }

    /// Returns the text after each prompt, and the reason for its end.
    fn speak_all(&self, prompts: &[Vec<u32>]) -> Result<Vec<(String, &'static str)>> {
        prompts.iter().for_each(|prompt| self.warn_if_long(prompt));
        let mut continuations = self.generator.continuations(prompts, self.sampling)?;
        let mut texts = vec![(Vec::new(), None); prompts.len()];
        while texts.iter().any(|(_, reason)| reason.is_none()) {
            for ((tokens, reason), drawn) in texts.iter_mut().zip(continuations.draw_next()?) {
                let (Some(token), None) = (drawn, &reason) else { continue };
                if self.stops.contains(&token) {
                    *reason = Some("stop");
                } else {
                    tokens.push(token);
                    *reason = (tokens.len() >= self.tokens).then_some("length");
                }
            }
        }
        let text = |(prompt, (tokens, reason)): (&Vec<u32>, (Vec<u32>, Option<_>))| {
            Ok((self.text(prompt, &tokens)?, reason.unwrap_or_default()))
        };
        prompts.iter().zip(texts).map(text).collect::<Result<_, String>>().map_err(Error::msg)
    }

    fn text(&self, prompt: &[u32], tokens: &[u32]) -> Result<String, String> {
        let mut detokenizer = Detokenizer::after(&self.tokenizer, prompt);
        let mut text = String::new();
        for token in tokens {
            text.push_str(&detokenizer.push(*token)?);
        }
        Ok(text + &detokenizer.finish()?)
    }
}

impl Prompt {
    /// Returns its line with an answer. Its other keys are taken.
    fn answered(&mut self, text: String, finish_reason: &str) -> Value {
        let mut answer = mem::take(&mut self.others);
        answer.insert("prompt".to_owned(), mem::take(&mut self.text).into());
        for (key, value) in ANSWER.into_iter().zip([text.as_str(), finish_reason]) {
            answer.insert(key.to_owned(), value.into());
        }
        Value::Object(answer)
    }
}

impl Prompts {
    fn open(file: &Path) -> Result<Self> {
        let is_json = file.extension().is_some_and(|extension| extension == "jsonl");
        let input: Box<dyn BufRead> = match file.to_str() {
            Some("-") => Box::new(io::stdin().lock()),
            _ => {
                let opened =
                    File::open(file).with_context(|| format!("open --prompts {}", file.display()))?;
                Box::new(BufReader::new(opened))
            }
        };
        Ok(Self { input, is_json, line: 0 })
    }

    /// Reads the next line that is not blank; `None` at the end.
    fn read(&mut self) -> Result<Option<Prompt>> {
        loop {
            let mut line = Vec::new();
            let read = self.input.by_ref().take(PROMPT_MAX + 1).read_until(b'\n', &mut line)?;
            if read == 0 {
                return Ok(None);
            }
            self.line += 1;
            ensure!(line.len() as u64 <= PROMPT_MAX, "it is longer than {PROMPT_MAX} bytes");
            let text = String::from_utf8(line).context("it is not UTF-8")?;
            let text = text.trim_end_matches(['\r', '\n']);
            let text = if self.line == 1 { text.trim_start_matches('\u{feff}') } else { text };
            if !text.trim().is_empty() {
                let (text, others) =
                    if self.is_json { prompt_of(text)? } else { (text.to_owned(), Map::new()) };
                return Ok(Some(Prompt { line: self.line, text, others }));
            }
        }
    }
}

impl Iterator for Prompts {
    type Item = Result<Prompt>;

    fn next(&mut self) -> Option<Self::Item> {
        let read = self.read().transpose();
        read.map(|read| read.with_context(|| format!("line {} of --prompts", self.line)))
    }
}

/// Returns the prompt in a line of JSON, and the line's other keys.
fn prompt_of(line: &str) -> Result<(String, Map<String, Value>)> {
    let (text, others) = match serde_json::from_str(line).context("it is no JSON")? {
        Value::String(text) => (text, Map::new()),
        Value::Object(mut row) => match row.remove("prompt") {
            Some(Value::String(text)) => (text, row),
            Some(other) => bail!("its `prompt` is {other}: give a string"),
            None => bail!("it has no `prompt`, but {}", row.keys().cloned().collect::<Vec<_>>().join(", ")),
        },
        other => bail!("{other} is neither a string nor an object with `prompt`"),
    };
    ensure!(!text.trim().is_empty(), "its prompt is empty");
    if let Some(taken) = ANSWER.into_iter().find(|key| others.contains_key(*key)) {
        bail!("its `{taken}` would be overwritten by the answer's: name it otherwise");
    }
    Ok((text, others))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(is_json: bool, text: &str) -> Vec<Result<(u64, String), String>> {
        let input = Box::new(io::Cursor::new(text.to_owned().into_bytes()));
        let prompts = Prompts { input, is_json, line: 0 };
        let plain = |read: Result<Prompt>| match read {
            Ok(prompt) => Ok((prompt.line, prompt.text)),
            Err(error) => Err(format!("{error:#}")),
        };
        prompts.map(plain).collect()
    }

    fn found(line: u64, text: &str) -> Result<(u64, String), String> {
        Ok((line, text.to_owned()))
    }

    #[test]
    fn each_line_is_a_prompt_but_blank_ones() {
        let text = "\u{feff}one\r\n\n two \n   \nthree";
        assert_eq!(read(false, text), [found(1, "one"), found(3, " two "), found(5, "three")]);
        assert_eq!(read(false, ""), []);
    }

    #[test]
    fn lines_of_json_are_strings_or_objects_and_others_are_named() {
        let text = "\"a\\nb\"\n{\"id\": 1, \"prompt\": \"c\"}\n{\"id\": 1}\n{\"prompt\": 3}\n[]\n{\n\" \"\n{\"prompt\": \"d\", \"text\": 1}\n";
        let all = read(true, text);
        assert_eq!(all[..2], [found(1, "a\nb"), found(2, "c")]);
        let errors: Vec<String> = all.into_iter().filter_map(Result::err).collect();
        let says = [
            "line 3 of --prompts: it has no `prompt`, but id",
            "line 4 of --prompts: its `prompt` is 3: give a string",
            "line 5 of --prompts: [] is neither",
            "line 6 of --prompts: it is no JSON",
            "line 7 of --prompts: its prompt is empty",
            "line 8 of --prompts: its `text` would be overwritten",
        ];
        assert_eq!(errors.len(), says.len());
        assert!(errors.iter().zip(says).all(|(error, says)| error.starts_with(says)), "{errors:?}");
    }

    #[test]
    fn an_answer_repeats_the_other_keys_of_its_line() {
        let line = r#"{"id": [7], "prompt": "a", "origin": {"page": "b"}}"#;
        let (text, others) = prompt_of(line).unwrap();
        let answer = Prompt { line: 1, text, others }.answered("c".to_owned(), "stop");
        let expected = serde_json::json!({
            "id": [7], "prompt": "a", "origin": {"page": "b"}, "text": "c", "finish_reason": "stop"
        });
        assert_eq!(answer, expected);
    }
}
