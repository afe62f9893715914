//! What people are told of a plan.

use longhaul_common::pipeline::PipelineSchedule;

use super::{Choice, Plan, Prediction};

/// A sentence on what decides.
#[must_use]
pub fn why(choice: &Choice) -> String {
    let (plan, prediction) = &choice.best;
    let cut = match plan.pipeline.ranks {
        1 if choice.tensor > 1 => together(choice),
        1 => "Each device holds the whole model, so none waits for another within a step".to_owned(),
        ranks => format!(
            "The model is cut in {ranks}{}, whose pipeline is idle for {:.0} % of its time{}",
            shared(choice),
            100.0 * prediction.bubble,
            divided(choice)
        ),
    };
    let exchange = match prediction.sync_s {
        _ if prediction.links.is_empty() => "nothing crosses between sites".to_owned(),
        0.0 => "between sites goes only what the pipeline hands on".to_owned(),
        sync_s if prediction.step_s <= prediction.compute_s * 1.001 => {
            format!(
                "its exchange ({sync_s:.3} s a step) goes on beside computing ({:.3} s)",
                prediction.compute_s
            )
        }
        sync_s => {
            format!("a step computes for {:.3} s and exchanges for {sync_s:.3} s", prediction.compute_s)
        }
    };
    let next = choice.runners_up.first().map_or_else(String::new, |(plan, next)| {
        format!(
            "; the next best, {}, takes {:.0} % longer",
            shape(plan),
            100.0 * (next.step_s / prediction.step_s - 1.0).max(0.0)
        )
    });
    format!("{cut}; {exchange}{next}.")
}

/// By whom each part is shared, if by more than one.
fn shared(choice: &Choice) -> String {
    if choice.tensor == 1 {
        return String::new();
    }
    format!(
        ", of which each part is shared by a tensor group of {} workers of one site (their sums take {:.3} s of a step)",
        choice.tensor, choice.best.1.sums_s
    )
}

/// Why layers are shared.
fn together(choice: &Choice) -> String {
    let Prediction { step_s, sums_s, .. } = choice.best.1;
    let otherwise = match choice.rival {
        Some((_, rival_s)) => {
            format!(
                "with whole layers a step would take {:.0} % longer",
                100.0 * (rival_s / step_s - 1.0).max(0.0)
            )
        }
        None => "as written, or as no plan fits with whole layers".to_owned(),
    };
    format!(
        "Each layer is shared by a tensor group of {} workers of one site, whose sums take {sums_s:.3} s of a step; {otherwise}",
        choice.tensor
    )
}

/// A choice in a few signs: replicas × workers of each.
#[must_use]
pub fn outline(choice: &Choice) -> String {
    let plan = &choice.best.0;
    if choice.tensor == 1 {
        return shape(plan);
    }
    let again = if plan.recompute { ", again" } else { "" };
    format!("{} × {}, layer by layer{again}", plan.replicas.len(), choice.tensor)
}

/// Why backward passes are in two parts, where they are.
fn divided(choice: &Choice) -> String {
    let (plan, prediction) = &choice.best;
    if plan.pipeline.schedule != PipelineSchedule::ZeroBubble {
        return String::new();
    }
    let gain = choice.undivided.as_ref().map_or_else(String::new, |(_, other)| {
        format!(
            ": undivided, it would be idle for {:.0} %, and a step take {:.0} % longer",
            100.0 * other.bubble,
            100.0 * (other.step_s / prediction.step_s - 1.0).max(0.0)
        )
    });
    format!(", as who waits computes gradients of weights meanwhile (zero-bubble){gain}")
}

/// A plan in a few signs: replicas × ranks.
#[must_use]
pub fn shape(plan: &Plan) -> String {
    let chunks =
        if plan.pipeline.chunks > 1 { format!(" × {} chunks", plan.pipeline.chunks) } else { String::new() };
    let in_two = if plan.pipeline.schedule == PipelineSchedule::ZeroBubble { ", in two" } else { "" };
    let again = if plan.recompute { ", again" } else { "" };
    format!("{} × {}{chunks}{in_two}{again}", plan.replicas.len(), plan.pipeline.ranks)
}
