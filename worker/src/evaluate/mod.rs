//! `worker evaluate`: a model's scores on local files. The design is in `data/docs/tasks.md`.

mod inputs;
mod judge;
mod outcome;
mod progress;

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, bail};
use longhaul_checkpoint::{OpenedModel, end_tokens};
use longhaul_common::model::Head;
use longhaul_data::tasks::Encoder;
use longhaul_data::{HeldOutChat, TextEnds, Tokenizer};
use longhaul_engine::{Generator, choose_device};
use tokio::sync::oneshot;

use self::inputs::Inputs;
pub use self::judge::{Judge, Reading, Stopped};
pub use self::outcome::{Measure, Outcome, Scores};
use crate::cli::EvaluateArgs;
use crate::opened::{beside_tokenizer, tokenizer_of};
use crate::stop::StopSignal;

/// Evaluates a model and prints results.
///
/// # Errors
/// A file is of no known form, a question cannot be scored, the model cannot be opened, or a signal stopped it: finished results are printed before.
pub async fn evaluate(args: EvaluateArgs) -> Result<()> {
    let mut signal = StopSignal::listen()?;
    let stop = Arc::new(AtomicBool::new(false));
    let (teller, mut told) = oneshot::channel();
    let shared = Arc::clone(&stop);
    let work = move || {
        // The receiver is dropped only when the process exits.
        let _ = teller.send(evaluate_until(&args, &shared));
    };
    std::thread::Builder::new().name("evaluation".into()).spawn(work).context("start a thread")?;
    loop {
        tokio::select! {
            result = &mut told => return result.context("the evaluation did not finish")?,
            () = signal.asked() => {
                if stop.swap(true, Ordering::Relaxed) {
                    bail!("stopped");
                }
                tracing::info!("stopping after the questions at hand; once more stops at once");
            }
        }
    }
}

fn evaluate_until(args: &EvaluateArgs, stop: &AtomicBool) -> Result<()> {
    // Wrong files are told before a large model is loaded.
    let device = choose_device(&args.compute.device)?;
    let inputs = Inputs::read(args)?;
    let model = args.model.open()?;
    check_kind(&model)?;
    let tokenizer = tokenizer_of(&model)?;
    let named = TextEnds::beside(beside_tokenizer(&model))?;
    let chat = inputs
        .has_conversations()
        .then(|| {
            HeldOutChat::open(args.chat_template.as_deref(), beside_tokenizer(&model), args.date.as_deref())
        })
        .transpose()?;
    let generator = Generator::new(&model.spec, &model.parameters, device, args.compute.threads())?;
    let ends = end_tokens(&model.companions);
    drop(model);
    let reading = Reading::new(tokenizer, &named, ends, chat, generator.context(), args.tokens as usize);
    let judge = Judge { generator, reading: &reading, shows: true };
    let mut all = Vec::new();
    let is_stopped = || stop.load(Ordering::Relaxed);
    for file in &inputs.texts {
        let outcome = judge.text(file, &is_stopped)?;
        print(&outcome, args.json)?;
        all.push(outcome);
    }
    for file in &inputs.tasks {
        let outcome = judge.task(file, &is_stopped)?;
        print(&outcome, args.json)?;
        all.push(outcome);
    }
    for outcome in Outcome::of_kinds(&all) {
        print(&outcome, args.json)?;
    }
    match all.iter().all(Outcome::is_whole) {
        true => Ok(()),
        false => bail!("stopped by a signal: the results are those of the questions and texts done so far"),
    }
}

impl Reading {
    /// Creates it for a model of `context` tokens. `named` are the tokens that its tokenizer's files name, `ends` those that end its text; answers have `answer_tokens` at most.
    #[must_use]
    pub fn new(
        tokenizer: Tokenizer,
        named: &TextEnds,
        mut ends: Vec<u32>,
        chat: Option<HeldOutChat>,
        context: usize,
        answer_tokens: usize,
    ) -> Self {
        let token = |text: &Option<String>| match tokenizer.encode(text.as_deref()?).as_deref() {
            Ok(&[token]) => Some(token),
            _ => None,
        };
        let (beginning, end) = (token(&named.beginning), token(&named.end));
        let first = beginning.or(end).or_else(|| ends.first().copied());
        ends.extend(end);
        let encoder = Encoder::new(tokenizer, first, context);
        Self { encoder, chat, ends, answer_tokens }
    }
}

/// Refuses a model that continues no text.
fn check_kind(model: &OpenedModel) -> Result<()> {
    let spec = &model.spec;
    let what = match (spec.kind.is_of_images(), &spec.encoder) {
        (true, _) => "classifies images",
        (false, Some(encoder)) if matches!(encoder.head, Head::Classes(_)) => "classifies texts",
        (false, Some(_)) => "is an encoder",
        (false, None) => return Ok(()),
    };
    bail!(
        "{} {what}, and perplexity and tasks are of models that continue text: see the validation loss of its run",
        model.path.display()
    )
}

fn print(outcome: &Outcome, as_json: bool) -> Result<()> {
    let line = if as_json { outcome.json() } else { outcome.to_string() };
    writeln!(io::stdout().lock(), "{line}").context("print a result")
}
