//! Descriptions of plans.

use longhaul_common::pipeline::PipelineSchedule;

use super::{Choice, Plan, Rival};

/// A sentence on the deciding reason.
#[must_use]
pub fn why(choice: &Choice) -> String {
    let (plan, prediction) = &choice.best;
    let cut = match plan.pipeline.ranks {
        1 if choice.tensor > 1 => together(choice),
        1 => "Each device holds the whole model, so none waits for another within a step".to_owned(),
        ranks => format!(
            "The model is cut in {ranks}{}, whose pipeline is idle for {:.0} % of its time{}{}",
            shared(choice),
            100.0 * prediction.bubble,
            divided(choice),
            if choice.tensor > 1 { format!("; {}", with_whole_layers(choice)) } else { String::new() }
        ),
    };
    let exchange = match prediction.sync_s {
        _ if prediction.links.is_empty() => "nothing crosses between sites".to_owned(),
        0.0 => "only the pipeline's traffic crosses between sites".to_owned(),
        sync_s if prediction.step_s <= (prediction.compute_s + prediction.coding_s) * 1.001 => {
            let coding = match prediction.coding_s {
                0.0 => String::new(),
                coding_s => format!(", and {coding_s:.3} s for coding on the same cores"),
            };
            format!(
                "its exchange ({sync_s:.3} s a step) overlaps with computation ({:.3} s{coding})",
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

/// Describes the sharing of each part, if several workers share it.
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
    format!(
        "Each layer is shared by a tensor group of {} workers of one site, whose sums take {:.3} s of a step; {}",
        choice.tensor,
        choice.best.1.sums_s,
        with_whole_layers(choice)
    )
}

/// Describes the best plan without groups, as a comparison.
fn with_whole_layers(choice: &Choice) -> String {
    let Some(Rival { stages, step_s, .. }) = choice.rival else {
        return "as configured, or because no plan fits with whole layers".to_owned();
    };
    let cut = if stages > 1 { format!(", cut in {stages},") } else { String::new() };
    let longer = 100.0 * (step_s / choice.best.1.step_s - 1.0).max(0.0);
    format!("with whole layers{cut} a step would take {longer:.0} % longer")
}

/// A choice in a few signs: replicas × workers of each.
#[must_use]
pub fn outline(choice: &Choice) -> String {
    outline_of(&choice.best.0, choice.tensor)
}

/// A short notation of a plan: replicas × workers of each; with groups as devices, their size.
pub(super) fn outline_of(plan: &Plan, members: u32) -> String {
    let ranks = plan.pipeline.ranks;
    match (members, ranks) {
        (1, _) => shape(plan),
        (_, 1) => format!("{} × {members}, layer by layer{}", plan.replicas.len(), ways(plan)),
        _ => format!(
            "{} × {} in {ranks} parts of {members}{}, layer by layer",
            plan.replicas.len(),
            ranks * members,
            ways(plan)
        ),
    }
}

/// Why backward passes are in two parts, where they are.
fn divided(choice: &Choice) -> String {
    let (plan, prediction) = &choice.best;
    if plan.pipeline.schedule != PipelineSchedule::ZeroBubble {
        return String::new();
    }
    let gain = choice.undivided.as_ref().map_or_else(String::new, |(_, other)| {
        format!(
            ": with undivided backward passes, it would be idle for {:.0} % and a step would take {:.0} % longer",
            100.0 * other.bubble,
            100.0 * (other.step_s / prediction.step_s - 1.0).max(0.0)
        )
    });
    format!(", as idle ranks compute weight gradients meanwhile (zero-bubble){gain}")
}

/// A plan in a few signs: replicas × ranks.
#[must_use]
pub fn shape(plan: &Plan) -> String {
    format!("{} × {}{}", plan.replicas.len(), plan.pipeline.ranks, ways(plan))
}

/// Describes the ranks' unusual ways of computing.
fn ways(plan: &Plan) -> String {
    let chunks =
        if plan.pipeline.chunks > 1 { format!(" × {} chunks", plan.pipeline.chunks) } else { String::new() };
    let in_two = if plan.pipeline.schedule == PipelineSchedule::ZeroBubble { ", in two" } else { "" };
    let again = if plan.recompute { ", again" } else { "" };
    format!("{chunks}{in_two}{again}")
}
