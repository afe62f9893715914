//! A whole run in words.

use longhaul_plan::{PhaseKind, PhaseTime, WholeRun};

/// The run, and a line for each of its phases where there are several.
pub(super) fn in_words(whole: &WholeRun) -> Vec<String> {
    let steps: u64 = whole.phases.iter().map(|phase| phase.steps).sum();
    let mut lines = vec![
        String::new(),
        format!(
            "The whole run of {steps} steps would take {}, {:.0} % of local speed; validation and checkpoints come on top.",
            time(whole.seconds),
            100.0 * whole.share_of_local_speed
        ),
    ];
    if whole.phases.len() > 1 {
        lines.extend(whole.phases.iter().map(phase_in_words));
    }
    lines
}

fn phase_in_words(phase: &PhaseTime) -> String {
    let name = match phase.kind {
        PhaseKind::Warmup => "warm-up",
        PhaseKind::Early => "early part",
        PhaseKind::Steady => "steady pace",
    };
    format!("  {name:<12}{:>8} steps of {}: {}", phase.steps, time(phase.step_s), time(phase.seconds()))
}

/// With a unit that suits it.
pub(super) fn time(seconds: f64) -> String {
    match seconds {
        s if s < 1.0 => format!("{:.1} ms", 1e3 * s),
        s if s < 120.0 => format!("{s:.2} s"),
        s if s < 7200.0 => format!("{:.1} min", s / 60.0),
        s => format!("{:.1} h", s / 3600.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_warmup_has_a_line_of_its_own() {
        let phase = |kind, steps, step_s| PhaseTime { kind, steps, step_s, sync_s: 0.0, coding_s: 0.0 };
        let mut whole = WholeRun {
            seconds: 470.0,
            local_s: 300.0,
            share_of_local_speed: 300.0 / 470.0,
            phases: vec![phase(PhaseKind::Warmup, 100, 2.0), phase(PhaseKind::Steady, 900, 0.3)],
        };
        let told = in_words(&whole).join("\n");
        assert!(told.contains("run of 1000 steps would take 7.8 min, 64 % of local speed"), "{told}");
        assert!(told.contains("  warm-up          100 steps of 2.00 s: 3.3 min"), "{told}");
        assert!(told.contains("  steady pace      900 steps of 300.0 ms: 4.5 min"), "{told}");
        whole.phases.truncate(1);
        assert_eq!(in_words(&whole).len(), 2, "one phase is the run");
    }
}
