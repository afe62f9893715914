//! A training step on selected samples.

use anyhow::Result;
use longhaul_engine::{Batch, Engine};
use longhaul_worker::train::selection::{Candidate, Selector};

/// Makes a step like a worker with the whole model; returns the number of selected samples.
pub fn step_on_selected(
    engine: &mut Engine,
    selector: &mut Selector,
    step: u64,
    all: &Batch,
    candidates: &[Candidate],
) -> Result<u64> {
    let wanting = selector.wanting(candidates);
    let unknown = all.selected(&wanting);
    let losses = if unknown.sequences() > 0 { engine.sample_losses(&unknown)? } else { Vec::new() };
    let weights = selector.choose(candidates, &wanting, &losses);
    let outcome = engine.train_step(step, &all.selected(&weights))?;
    let selected = candidates.iter().zip(&weights).filter(|(_, weight)| **weight > 0.0);
    let selected: Vec<Candidate> = selected.map(|(candidate, _)| *candidate).collect();
    selector.learn(&selected, &outcome.losses);
    Ok(selected.len() as u64)
}
