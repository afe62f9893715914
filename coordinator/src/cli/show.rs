//! A status as a page.

use anyhow::Context as _;
use longhaul_common::units::Bytes;
use serde_json::Value;

use super::{AskArgs, CliError, Client, print, say};
use longhaul_run::{
    Evaluated, GoneStatus, Health, PrivacyStatus, RefusalStatus, ResidualsLost, ScoreStatus, Status,
};

/// Workers that are not here and are named, for each way of going; `coordinator members` has all.
const GONE_NAMED: usize = 8;

pub(super) fn run(args: &AskArgs) -> Result<(), CliError> {
    const WHAT: &str = "ask for the status";
    let asked = Client::find(&args.at).and_then(|client| client.get("/api/v1/status"));
    let status: Value = match asked {
        Ok(status) => status,
        Err(error) => {
            let Some(run) = error.recorded() else {
                return Err(anyhow::Error::new(error).context(WHAT).into());
            };
            say(&run.heading("the run was"));
            run.status_json().context(WHAT)?
        }
    };
    if args.json {
        print(&format!("{status:#}"));
        return Ok(());
    }
    let status: Status = serde_json::from_value(status).context("read the status")?;
    describe(&status).iter().for_each(|line| print(line));
    Ok(())
}

/// A status as a page for people.
pub(crate) fn describe(status: &Status) -> Vec<String> {
    let or_dash = |value: Option<String>| value.unwrap_or_else(|| "–".to_owned());
    let unit = if status.training.images { "images" } else { "tokens" };
    let accuracy =
        status.training.validation_accuracy.map(|share| format!(", accuracy {:.2} %", 100.0 * share));
    let mut lines = vec![
        format!("run        {} ({}), {}", status.run.name, status.run.id, phase(status)),
        format!(
            "round      {} of {}, step {} of {}",
            status.progress.round, status.progress.rounds, status.progress.step, status.progress.steps
        ),
        format!(
            "loss       {} (validation {}{})",
            or_dash(status.training.loss.map(|loss| format!("{loss:.4}"))),
            or_dash(status.training.validation_loss.map(|loss| format!("{loss:.4}"))),
            accuracy.unwrap_or_default(),
        ),
        format!(
            "speed      {} {unit}/s, {} of local speed, {} left",
            or_dash(status.throughput.tokens_per_s.map(|speed| format!("{speed:.0}"))),
            or_dash(status.throughput.share_of_local_speed.map(|share| format!("{:.1} %", 100.0 * share))),
            or_dash(status.eta_s.map(duration))
        ),
        format!(
            "mean speed {} {unit}/s, {} of local speed, over the whole run",
            or_dash(status.throughput.tokens_per_s_mean.map(|speed| format!("{speed:.0}"))),
            or_dash(
                status.throughput.share_of_local_speed_mean.map(|share| format!("{:.1} %", 100.0 * share))
            ),
        ),
        format!(
            "data       {:.0} ms of waiting, {} of device time",
            status.overhead.data_wait_ms,
            or_dash(status.overhead.data_wait_share.map(|share| format!("{:.2} %", 100.0 * share))),
        ),
        traffic(status),
    ];
    if status.overhead.encode_ms > 0.0 {
        lines.push(format!(
            "encoding   {:.0} ms in total, {} of device time waiting for it",
            status.overhead.encode_ms,
            or_dash(status.overhead.encode_wait_share.map(|share| format!("{:.2} %", 100.0 * share))),
        ));
    }
    if let Some(share) = status.overhead.bubble_share.filter(|share| *share > 0.0) {
        let all = duration(status.overhead.bubble_ms / 1e3);
        lines.push(format!("bubbles    {:.2} % of device time, {all} in total", 100.0 * share));
    }
    if status.overhead.data_wan_bytes + status.overhead.data_lan_bytes > 0 {
        let (wan, lan) = (Bytes(status.overhead.data_wan_bytes), Bytes(status.overhead.data_lan_bytes));
        lines.push(format!("fetched    {wan} of training data from other sites, {lan} within sites"));
    }
    if let Some(plan) = &status.cluster.plan {
        lines.push(format!("plan       {}", plan.strip_prefix("the plan: ").unwrap_or(plan)));
    }
    if let Some(share) = status.throughput.selected_share.filter(|share| *share < 1.0) {
        lines.push(format!("selected   {:.1} % of the samples for backward passes", 100.0 * share));
    }
    if let Some(fork) = &status.run.fork {
        lines.push(format!("fork       of run {fork}"));
    }
    if let Some(best) = &status.training.best {
        lines.push(best_line(status, best));
    }
    lines.extend(scores_line(&status.training.scores));
    if let Some(reason) = &status.run.ended_early {
        lines.push(format!("ended      early: {reason}"));
    }
    if let Some(norm) = status.training.gradient_norm {
        lines.push(format!("gradient   norm {norm:.3} before clipping"));
    }
    if let Some(ratio) = status.training.residual_ratio {
        lines.push(format!("waiting    about {ratio:.1} exchanges in error feedback"));
    }
    if let Some(parity) = &status.cluster.parity {
        let verdict = if parity.equal { "equal on all members" } else { "BROKEN" };
        lines.push(format!("parity     {verdict} after r{}, {}", parity.round, prefix(&parity.hash)));
    }
    if let Some(round) = status.cluster.parity_from {
        lines.push(format!("parity     compared from r{round} on: each worker computes the whole warm-up"));
    }
    lines.extend(status.accounting.refused.iter().map(|refused| {
        let RefusalStatus { site, reason, count, round, by } = refused;
        format!("refused    {count} updates of {site} ({}), the last for r{round} by {by}", reason.name())
    }));
    if status.accounting.refused_unnamed > 0 {
        lines.push(format!("refused    {} more updates", status.accounting.refused_unnamed));
    }
    let ResidualsLost { contributions, results, factors } = status.accounting.residuals_lost;
    if contributions + results + factors > 0 {
        lines.push(format!(
            "lost       residuals with workers that left: of {contributions} contributed and {results} published fragments, and of the factors of {factors}"
        ));
    }
    if let Some(PrivacyStatus { releases, epsilon, epsilon_at_the_end, delta }) = &status.accounting.privacy {
        lines.push(format!(
            "privacy    ε {epsilon:.3} of {epsilon_at_the_end:.3} spent at δ {delta:e}: at most {releases} contributions per site"
        ));
    }
    lines.extend(status.cluster.links.iter().map(|link| {
        let seen = link.seen_s.map_or_else(
            || "measured before planning".to_owned(),
            |seconds| format!("seen {} ago", duration(seconds)),
        );
        let (rate, round_trip_ms) = (Bytes(link.bytes_per_s as u64), 1e3 * link.round_trip_s);
        format!("link       {} → {}: {rate}/s, {round_trip_ms:.1} ms, {seen}", link.from, link.to)
    }));
    lines.extend(gone(&status.cluster.gone));
    lines.extend(status.problems.iter().map(|problem| format!("problem    {problem}")));
    lines.push(String::new());
    let parts = if status.cluster.parts > 1 { format!("{:<7}", "PART") } else { String::new() };
    lines.push(format!(
        "{:<6} {parts}{:<16} {:<10} {:>8} {:>10} {:<13} {:>6}  DEVICE",
        "WORKER", "SITE", "STATE", "STEP", "TOKENS/S", "STATE HASH", "SEEN"
    ));
    for member in &status.cluster.members {
        let part = match (status.cluster.parts, member.place.part) {
            (1, _) => String::new(),
            (parts, Some(part)) => format!("{:<7}", format!("{part}/{parts}")),
            (_, None) => format!("{:<7}", "–"),
        };
        lines.push(format!(
            "{:<6} {part}{:<16} {:<10} {:>8} {:>10} {:<13} {:>5.1}s  {}",
            member.place.id,
            member.place.site,
            word_for(&member.work.state, member.work.health),
            member.work.step,
            or_dash(member.work.tokens_per_s.map(|speed| format!("{speed:.0}"))),
            or_dash(member.work.state_hash.as_deref().map(|hash| prefix(hash).to_owned())),
            member.work.last_seen_s,
            member.place.device
        ));
    }
    lines
}

/// What a worker does, or how where it trains and that is remarkable.
pub(super) fn word_for(state: &str, health: Health) -> &str {
    match health.word() {
        word if !word.is_empty() && state == "training" => word,
        _ => state,
    }
}

pub(super) fn phase(status: &Status) -> String {
    let phase = match status.suspended {
        Some(_) => "stopped for now".to_owned(),
        None => format!("{:?}", status.run.phase).to_lowercase(),
    };
    if status.run.paused { format!("{phase}, paused") } else { phase }
}

/// The newest scores of questions.
fn scores_line(scores: &[ScoreStatus]) -> Option<String> {
    let step = scores.first()?.step;
    let one = |score: &ScoreStatus| format!("{} {} {:.4}", score.task, score.measure, score.value);
    let all = scores.iter().map(one).collect::<Vec<_>>().join(", ");
    Some(format!("scores     {all}, at step {step}"))
}

/// The lowest held-out loss, and whether its checkpoint is kept.
fn best_line(status: &Status, best: &Evaluated) -> String {
    let kept = match &status.training.best_checkpoint {
        Some(kept) if kept == best => format!(", checkpoint before round {}", kept.next_round.0),
        Some(kept) => {
            format!(", its checkpoint is not written; kept is the one before round {}", kept.next_round.0)
        }
        None => String::new(),
    };
    let since = match status.training.evaluations_without_improvement {
        0 => String::new(),
        count => format!(", {count} evaluations without an improvement"),
    };
    format!("best       held-out loss {:.4} at step {}{kept}{since}", best.loss, best.step)
}

/// Who is not here any more, by how they went: those who left in order last, as nobody need look at them.
fn gone(gone: &[GoneStatus]) -> Option<String> {
    let told = |word: &&str| {
        let workers: Vec<&str> =
            gone.iter().filter(|gone| gone.word() == *word).map(|gone| gone.id.as_str()).collect();
        let more = if workers.len() > GONE_NAMED { ", …" } else { "" };
        let named = workers[..workers.len().min(GONE_NAMED)].join(", ");
        (!workers.is_empty()).then(|| format!("{} {word} ({named}{more})", workers.len()))
    };
    let told: Vec<String> = ["gone", "kicked", "left"].iter().filter_map(told).collect();
    (!told.is_empty()).then(|| format!("not here   {}", told.join(", ")))
}

/// What has crossed the WAN. A run of one copy of the model exchanges no updates, so there is nothing to compare with.
fn traffic(status: &Status) -> String {
    let sent = format!("WAN        {} sent", Bytes(status.traffic.wan_bytes));
    match status.traffic.bytes_ratio {
        Some(ratio) => {
            format!(
                "{sent}, dense f32 would have sent {} ({ratio:.0} times less)",
                Bytes(status.traffic.dense_bytes)
            )
        }
        None => sent,
    }
}

/// Enough of a hash to compare by eye.
fn prefix(hash: &str) -> &str {
    hash.get(..12).unwrap_or(hash)
}

pub(super) fn duration(seconds: f64) -> String {
    let seconds = seconds as u64;
    match (seconds / 3600, seconds % 3600 / 60, seconds % 60) {
        (0, 0, s) => format!("{s} s"),
        (0, m, s) => format!("{m} min {s} s"),
        (h, m, _) => format!("{h} h {m} min"),
    }
}

#[cfg(test)]
mod tests {
    use longhaul_proto::control::message::{RoundReport, ToCoordinator};
    use longhaul_run::testing::{Story, report};

    use super::*;

    #[test]
    fn who_left_in_order_is_told_from_who_was_lost() {
        let of = |id: u32, revoked: bool, left: bool| GoneStatus {
            id: format!("w{id}"),
            site: "lab".to_owned(),
            device: "box cpu".to_owned(),
            revoked,
            left,
            step: None,
            last_seen_s: None,
            why: None,
        };
        assert_eq!(gone(&[]), None);
        let few = [of(1, false, true), of(2, false, false), of(3, true, false), of(4, false, true)];
        assert_eq!(gone(&few).as_deref(), Some("not here   1 gone (w2), 1 kicked (w3), 2 left (w1, w4)"));
        let many: Vec<GoneStatus> = (0..10).map(|id| of(id, false, false)).collect();
        assert_eq!(gone(&many).as_deref(), Some("not here   10 gone (w0, w1, w2, w3, w4, w5, w6, w7, …)"));
    }

    #[test]
    fn residuals_and_gradient_norms_are_shown_once_members_report_them() {
        let mut story = Story::training();
        for (worker, residual_ratio, norm) in [(1, 0.5, 3.0), (2, 3.5, 4.0)] {
            let (residual_ratio, gradient_norm) = (Some(residual_ratio), Some(norm));
            let report = RoundReport { residual_ratio, gradient_norm, ..report(0, 9) };
            story.say(worker, ToCoordinator::RoundApplied(report));
        }
        let page = describe(&story.run.status(0));
        assert!(page.iter().any(|line| line.contains("about 3.5 exchanges in error feedback")), "{page:#?}");
        assert!(page.iter().any(|line| line == "gradient   norm 3.536 before clipping"), "{page:#?}");
    }
}
