//! `worker evaluate`: a model's scores on local files. The design is in `data/docs/tasks.md`.

mod classifier;
mod inputs;
mod judge;
mod outcome;
mod progress;

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, bail};
use longhaul_checkpoint::{DescribedModel, OpenedModel, end_tokens};
use longhaul_common::model::Head;
use longhaul_data::tasks::Encoder;
use longhaul_data::{HeldOutChat, TextEnds, Tokenizer};
use longhaul_engine::{Generator, choose_device};
use tch::Device;
use tokio::sync::oneshot;

use self::classifier::Classifier;
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
    let described = args.model.describe()?;
    check_kind(&described, args)?;
    let inputs = Inputs::read(args, &described)?;
    let model = args.model.open()?;
    let is_stopped = || stop.load(Ordering::Relaxed);
    let all = match described.spec.classes() {
        Some(_) => classify(args, &inputs, model, device, &is_stopped)?,
        None => continue_texts(args, &inputs, model, device, &is_stopped)?,
    };
    match all.iter().all(Outcome::is_whole) {
        true => Ok(()),
        false => bail!("stopped by a signal: the results are those of the questions and texts done so far"),
    }
}

/// Judges labelled files and prints results.
fn classify(
    args: &EvaluateArgs,
    inputs: &Inputs,
    model: OpenedModel,
    device: Device,
    stopped: Stopped<'_>,
) -> Result<Vec<Outcome>> {
    let classifier = Classifier::new(&model, tokenizer_of(&model)?, device, args.compute.threads())?;
    drop(model);
    let judge = |file| {
        let outcome = classifier.judge(file, stopped)?;
        print(&outcome, args.json)?;
        Ok(outcome)
    };
    inputs.labelled.iter().map(judge).collect()
}

/// Scores texts and questions and prints results.
fn continue_texts(
    args: &EvaluateArgs,
    inputs: &Inputs,
    model: OpenedModel,
    device: Device,
    stopped: Stopped<'_>,
) -> Result<Vec<Outcome>> {
    let tokenizer = tokenizer_of(&model)?;
    let named = TextEnds::beside(beside_tokenizer(&model))?;
    let chat = inputs
        .has_conversations()
        .then(|| {
            let (template, date) = (args.chat_template.as_deref(), args.date.as_deref());
            HeldOutChat::open(template, beside_tokenizer(&model), date, &tokenizer)
        })
        .transpose()?;
    let generator = Generator::new(&model.spec, &model.parameters, device, args.compute.threads())?;
    let ends = end_tokens(&model.companions);
    drop(model);
    let reading = Reading::new(tokenizer, &named, ends, chat, generator.context(), args.tokens as usize);
    let judge = Judge { generator, reading: &reading, shows: true };
    let mut all = Vec::new();
    for file in &inputs.texts {
        let outcome = judge.text(file, stopped)?;
        print(&outcome, args.json)?;
        all.push(outcome);
    }
    for file in &inputs.tasks {
        let outcome = judge.task(file, stopped)?;
        print(&outcome, args.json)?;
        all.push(outcome);
    }
    for outcome in Outcome::of_kinds(&all) {
        print(&outcome, args.json)?;
    }
    Ok(all)
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

/// Refuses files that a model of this kind has no score for.
fn check_kind(model: &DescribedModel, args: &EvaluateArgs) -> Result<()> {
    let are_labelled = !args.labelled.is_empty();
    let are_others = !args.text.is_empty() || !args.task.is_empty();
    let head = model.spec.encoder.as_ref().map(|encoder| &encoder.head);
    let reason = match head {
        None if are_labelled => {
            "continues text and has no head for classes, as --labelled needs: ask it with --task, or train an encoder with [data.classification]"
        }
        Some(Head::Classes(1)) => {
            "has a head of one output, a regression, and --labelled is for heads of two classes at least: take such a model"
        }
        Some(Head::Classes(_)) if are_others => {
            "classifies texts, and --text and --task are for models that continue text: give labelled texts with --labelled"
        }
        Some(Head::Masked | Head::Replaced | Head::None) => {
            "is an encoder without a head for classes, which neither continues text nor classifies it: see the validation loss of its run, or train such a head with [data.classification]"
        }
        None | Some(Head::Classes(_)) => return Ok(()),
    };
    bail!("{} {reason}", model.path.display())
}

fn print(outcome: &Outcome, as_json: bool) -> Result<()> {
    let line = if as_json { outcome.json() } else { outcome.to_string() };
    writeln!(io::stdout().lock(), "{line}").context("print a result")
}
