//! `worker sample`: text from a trained model.

use std::io::{self, Write};
use std::num::NonZeroU32;

use anyhow::{Context, Error, Result, ensure};
use longhaul_common::config::DataConfig;
use longhaul_data::{Detokenizer, Tokenizer};

use crate::cli::SampleArgs;
use longhaul_checkpoint::{OpenedModel, open_model};
use longhaul_engine::{Generator, Sampling, choose_device};

/// Continues the prompt with a checkpoint's model and streams the text to standard output.
///
/// # Errors
/// The checkpoint is missing or damaged; the tokenizer does not fit the model, or knows nothing of the prompt.
pub fn sample(args: &SampleArgs) -> Result<()> {
    let device = choose_device(&args.device)?;
    ensure!(!args.prompt.is_empty(), "--prompt is empty: give the model a word to begin with");
    let model = open_model(&args.checkpoint, args.base.as_deref())?.merged(args.base.as_deref())?;
    let tokenizer = tokenizer_of(&model)?;
    let prompt = read_prompt(&tokenizer, &args.prompt)?;
    let sampling = Sampling {
        temperature: args.temperature,
        top_k: (args.top_k > 0).then_some(args.top_k as usize),
        seed: args.seed,
    };
    let threads = args.threads.and_then(|threads| NonZeroU32::new(threads.into()));
    let generator = Generator::new(&model.spec, &model.parameters, device, threads)?;
    let mut detokenizer = Detokenizer::after(&tokenizer, &prompt);
    let mut out = io::stdout().lock();
    if !show(&mut out, &args.prompt)? {
        return Ok(());
    }
    for token in generator.continuation(&prompt, sampling)?.take(args.tokens as usize) {
        if !show(&mut out, &detokenizer.push(token?).map_err(Error::msg)?)? {
            return Ok(());
        }
    }
    show(&mut out, &(detokenizer.finish().map_err(Error::msg)? + "\n"))?;
    Ok(())
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
fn show(out: &mut impl Write, text: &str) -> Result<bool> {
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(error).context("print the sample"),
    }
}
