//! `worker sample`: text from a trained model.

use std::io::{self, BufRead, Write};
use std::num::NonZeroU32;
use std::path::Path;

use anyhow::{Context, Error, Result, bail, ensure};
use longhaul_common::config::DataConfig;
use longhaul_data::{Detokenizer, Dialogue, Tokenizer};

use crate::cli::SampleArgs;
use longhaul_checkpoint::{OpenedModel, Weights, end_tokens, open_weights};
use longhaul_engine::{Generator, Sampling, choose_device};

/// Continues each prompt with a checkpoint's model, or answers each message, and streams the text to standard output.
///
/// # Errors
/// The checkpoint is missing or damaged; the tokenizer does not fit the model, or knows nothing of the prompt; or there is no chat template.
pub fn sample(args: &SampleArgs) -> Result<()> {
    let device = choose_device(&args.device)?;
    let no_word = "--prompt is empty: give the model a word to begin with";
    ensure!(args.prompt.iter().all(|prompt| !prompt.is_empty()), no_word);
    let (base, weights) = (args.base.as_deref(), Weights::averaged_if(args.ema));
    let model = open_weights(&args.checkpoint, base, weights)?.merged(base)?;
    let tokenizer = tokenizer_of(&model)?;
    let dialogue = if args.chat { Some(dialogue_of(args, &model)?) } else { None };
    let sampling = Sampling {
        temperature: args.temperature,
        top_k: (args.top_k > 0).then_some(args.top_k as usize),
        top_p: args.top_p,
        repetition_penalty: args.repetition_penalty,
        seed: args.seed,
    };
    let threads = args.threads.and_then(|threads| NonZeroU32::new(threads.into()));
    let mut stops = end_tokens(&model.companions);
    for text in &args.stop {
        let tokens = tokenizer.encode(text).map_err(Error::msg).context("read --stop")?;
        let &[token] = &*tokens else {
            bail!("--stop {text:?} is {} tokens of the model: give the text of one", tokens.len());
        };
        stops.push(token);
    }
    let end = dialogue.as_ref().and_then(Dialogue::end).map(|end| tokenizer.encode(end));
    if let Some(Ok(tokens)) = end
        && let &[token] = &*tokens
    {
        stops.push(token);
    }
    let generator = Generator::new(&model.spec, &model.parameters, device, threads)?;
    let speaker = Speaker { generator, tokenizer, sampling, stops, tokens: args.tokens as usize };
    match dialogue {
        Some(dialogue) => speaker.chat(dialogue, &args.prompt),
        None => speaker.continue_all(&args.prompt),
    }
}

/// A model that speaks.
struct Speaker {
    generator: Generator,
    tokenizer: Tokenizer,
    sampling: Sampling,
    /// Tokens before which a text ends.
    stops: Vec<u32>,
    /// Most tokens of a text.
    tokens: usize,
}

impl Speaker {
    fn continue_all(&self, prompts: &[String]) -> Result<()> {
        for prompt in prompts {
            let tokens = read_prompt(&self.tokenizer, prompt)?;
            if !show(prompt)? || self.speak(&tokens)?.is_none() {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Answers the messages, or lines of standard input if there are none.
    fn chat(&self, mut dialogue: Dialogue, messages: &[String]) -> Result<()> {
        let lines = io::stdin().lock().lines().map(|line| line.context("read standard input"));
        let given = messages.iter().cloned().map(Ok);
        let all: Box<dyn Iterator<Item = Result<String>>> =
            if messages.is_empty() { Box::new(lines) } else { Box::new(given) };
        for message in all {
            let message = message?;
            if message.trim().is_empty() {
                continue;
            }
            let prompt = dialogue.ask(&message).map_err(Error::msg)?;
            let tokens =
                self.tokenizer.encode(&prompt).map_err(Error::msg).context("read the chat's text")?;
            let Some(answer) = self.speak(&tokens)? else { return Ok(()) };
            dialogue.answered(&answer).map_err(Error::msg)?;
        }
        Ok(())
    }

    /// Prints what follows the tokens, and returns it; `None`: nobody reads any more.
    fn speak(&self, prompt: &[u32]) -> Result<Option<String>> {
        let mut detokenizer = Detokenizer::after(&self.tokenizer, prompt);
        let mut said = String::new();
        let mut say = |text: String| {
            said.push_str(&text);
            show(&text)
        };
        for token in self.generator.continuation(prompt, self.sampling)?.take(self.tokens) {
            let token = token?;
            if self.stops.contains(&token) {
                break;
            }
            if !say(detokenizer.push(token).map_err(Error::msg)?)? {
                return Ok(None);
            }
        }
        let is_read = say(detokenizer.finish().map_err(Error::msg)?)? && show("\n")?;
        Ok(is_read.then_some(said))
    }
}

/// Returns the beginning of a chat with the model.
fn dialogue_of(args: &SampleArgs, model: &OpenedModel) -> Result<Dialogue> {
    let beside = model.tokenizer.as_deref().and_then(Path::parent);
    let dialogue = Dialogue::open(args.chat_template.as_deref(), beside, args.date.as_deref())?;
    let mut dialogue = dialogue.with_context(|| {
        format!("{} has no chat template: name a file with --chat-template", model.path.display())
    })?;
    if let Some(system) = &args.system {
        dialogue.set_system(system).map_err(Error::msg)?;
    }
    Ok(dialogue)
}

/// Loads the tokenizer of a checkpoint.
fn tokenizer_of(model: &OpenedModel) -> Result<Tokenizer> {
    let shown = model.path.display();
    let file = match &model.tokenizer {
        Some(file) => file.to_str().with_context(|| format!("the path of {shown} is not UTF-8"))?,
        None => DataConfig::BYTES,
    };
    let tokenizer = Tokenizer::load(file)?;
    let (known, tokens) = (model.spec.vocabulary, tokenizer.vocabulary());
    ensure!(
        tokens <= known,
        "the model knows {known} tokens, its tokenizer {tokens}: tokenizer.json is missing from {shown}"
    );
    Ok(tokenizer)
}

/// Encodes the prompt; warns of parts that the model does not see.
fn read_prompt(tokenizer: &Tokenizer, prompt: &str) -> Result<Vec<u32>> {
    let tokens = tokenizer.encode(prompt).map_err(Error::msg).context("read --prompt")?;
    ensure!(!tokens.is_empty(), "--prompt {prompt:?} holds nothing that the model's tokenizer knows");
    let read = tokenizer.decode(&tokens).map_err(Error::msg).context("read --prompt")?;
    // Tokenizers may change white space.
    if !read.split_whitespace().flat_map(str::chars).eq(prompt.split_whitespace().flat_map(str::chars)) {
        tracing::warn!("the model's tokenizer does not know all of --prompt: the model reads {read:?}");
    }
    Ok(tokens)
}

/// Prints immediately; returns false once the reader has closed.
fn show(text: &str) -> Result<bool> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(error).context("print the sample"),
    }
}
