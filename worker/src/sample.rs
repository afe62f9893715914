//! `worker sample`: text from a trained model.

mod batch;

use std::io::{self, BufRead, Write};

use anyhow::{Context, Error, Result, bail, ensure};
use longhaul_data::{Detokenizer, Dialogue, Tokenizer};

use crate::cli::SampleArgs;
use crate::opened::{beside_tokenizer, tokenizer_of};
use longhaul_checkpoint::{OpenedModel, end_tokens};
use longhaul_engine::{Generator, Sampling, choose_device};

/// Continues each prompt with a checkpoint's model, or answers each message, and streams the text to standard output.
///
/// # Errors
/// The checkpoint is missing or damaged; the tokenizer does not fit the model, or knows nothing of the prompt; or there is no chat template.
pub fn sample(args: &SampleArgs) -> Result<()> {
    let device = choose_device(&args.compute.device)?;
    let no_word = "--prompt is empty: give the model a word to begin with";
    ensure!(args.prompt.iter().all(|prompt| !prompt.is_empty()), no_word);
    let model = args.model.open()?;
    let tokenizer = tokenizer_of(&model)?;
    let dialogue = if args.chat { Some(dialogue_of(args, &model)?) } else { None };
    let sampling = Sampling {
        temperature: args.temperature,
        top_k: (args.top_k > 0).then_some(args.top_k as usize),
        top_p: args.top_p,
        repetition_penalty: args.repetition_penalty,
        seed: args.seed,
    };
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
    let generator = Generator::new(&model.spec, &model.parameters, device, args.compute.threads())?;
    let speaker = Speaker { generator, tokenizer, sampling, stops, tokens: args.tokens as usize };
    match (&args.prompts, dialogue) {
        (Some(file), dialogue) => speaker.continue_file(file, args.batch as usize, dialogue.as_ref()),
        (None, Some(dialogue)) => speaker.chat(dialogue, &args.prompt),
        (None, None) => speaker.continue_all(&args.prompt),
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
            let tokens =
                read_prompt(&self.tokenizer, prompt).with_context(|| format!("read --prompt {prompt:?}"))?;
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
            let tokens = self.asked(&mut dialogue, &message)?;
            let Some(answer) = self.speak(&tokens)? else { return Ok(()) };
            dialogue.answered(&answer).map_err(Error::msg)?;
        }
        Ok(())
    }

    /// Adds a message of the user, and returns the chat's tokens.
    fn asked(&self, dialogue: &mut Dialogue, message: &str) -> Result<Vec<u32>> {
        let prompt = dialogue.ask(message).map_err(Error::msg)?;
        self.tokenizer.encode(&prompt).map_err(Error::msg).context("read the chat's text")
    }

    fn warn_if_long(&self, prompt: &[u32]) {
        let context = self.generator.context();
        if prompt.len() > context {
            tracing::warn!("the model sees the last {context} of {} tokens", prompt.len());
        }
    }

    /// Prints what follows the tokens, and returns it; `None`: nobody reads any more.
    fn speak(&self, prompt: &[u32]) -> Result<Option<String>> {
        self.warn_if_long(prompt);
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
    let dialogue =
        Dialogue::open(args.chat_template.as_deref(), beside_tokenizer(model), args.date.as_deref())?;
    let mut dialogue = dialogue.with_context(|| {
        format!("{} has no chat template: name a file with --chat-template", model.path.display())
    })?;
    if let Some(system) = &args.system {
        dialogue.set_system(system).map_err(Error::msg)?;
    }
    Ok(dialogue)
}

/// Encodes a prompt; warns of parts that the model does not see.
fn read_prompt(tokenizer: &Tokenizer, prompt: &str) -> Result<Vec<u32>> {
    let tokens = tokenizer.encode(prompt).map_err(Error::msg)?;
    ensure!(!tokens.is_empty(), "it holds nothing that the model's tokenizer knows");
    let read = tokenizer.decode(&tokens).map_err(Error::msg)?;
    // Tokenizers may change white space.
    if !read.split_whitespace().flat_map(str::chars).eq(prompt.split_whitespace().flat_map(str::chars)) {
        tracing::warn!("the model's tokenizer does not know all of {prompt:?}: the model reads {read:?}");
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
