//! Audits of conservation: sent plus kept equals the input. No other check notices a wrong frame or residual. So each uploader decodes some of its own
//! frames, as receivers do, and compares.

use longhaul_common::id::{FragmentId, Round};
use longhaul_proto::codec::Decoder;
use longhaul_proto::control::message::{AUDIT_MAX, Audit, RoundReport};

/// One of this many frames is audited.
const FRAMES: u64 = 8;

/// Reports whether the frame with this seed is audited; drawn, because fragments take turns regularly.
pub fn is_due(seed: u64) -> bool {
    seed.is_multiple_of(FRAMES)
}

/// Inputs of a frame, and its remainder.
#[derive(Clone, Copy, Debug)]
pub struct Books<'a> {
    /// Residual before, to be multiplied by
    pub before: &'a [f32],
    /// this decay factor;
    pub decay: f32,
    /// addition;
    pub added: &'a [f32],
    /// residual after.
    pub left: &'a [f32],
}

/// max |sent + left − (before·decay + added)| / max |before·decay + added|, in f64; infinite if a value is not finite or the frame is invalid.
pub fn difference(books: Books<'_>, frame: &[u8], decoder: &mut Decoder) -> f32 {
    let Books { before, decay, added, left } = books;
    let mut sum = left.to_vec();
    if decoder.decode_add(frame, left.len(), 1.0, &mut sum).is_err() {
        return f32::INFINITY;
    }
    let (mut worst, mut largest) = (0.0f64, 0.0f64);
    for ((before, added), sum) in before.iter().zip(added).zip(sum) {
        let there_was = f64::from(*before) * f64::from(decay) + f64::from(*added);
        let difference = (f64::from(sum) - there_was).abs();
        if !difference.is_finite() {
            return f32::INFINITY;
        }
        (worst, largest) = (worst.max(difference), largest.max(there_was.abs()));
    }
    // Smaller f32 values lose digits.
    (worst / largest.max(f64::from(f32::MIN_POSITIVE))) as f32
}

/// Findings since the last report.
#[derive(Debug, Default)]
pub struct Findings(Audit);

impl Findings {
    /// Notes the result for one fragment, and logs a difference that is too large.
    pub fn note(&mut self, round: Round, fragment: FragmentId, difference: f32) {
        if difference > AUDIT_MAX {
            tracing::error!(
                %round, %fragment, difference,
                "sent and kept values do not add up to the input: this machine's hardware is faulty, or this program has a bug"
            );
        }
        self.0.fragments = self.0.fragments.saturating_add(1);
        self.0.worst = self.0.worst.max(difference);
    }

    /// Moves the findings into a report.
    pub fn hand_over(&mut self, report: &mut RoundReport) {
        report.audit = std::mem::take(&mut self.0);
    }
}

#[cfg(test)]
mod tests {
    use longhaul_common::id::RunId;
    use longhaul_proto::codec::chain::seed_of;
    use longhaul_proto::codec::{CodecSpec, Encoder, Selection, ValueFormat};

    use super::*;

    fn books_of(left: &[f32]) -> Books<'_> {
        Books { before: &[1.0, -2.0, 3.0, 0.0], decay: 0.5, added: &[0.5, 0.25, -4.0, 0.125], left }
    }

    /// The lossless frame of 1, −0.75, −2.5, 0.125.
    fn exact() -> Vec<u8> {
        let mut frame = Vec::new();
        let mut encoder = Encoder::new(CodecSpec::new(Selection::All, ValueFormat::F32)).unwrap();
        encoder.encode(7, &[1.0, -0.75, -2.5, 0.125], &mut frame).unwrap();
        frame
    }

    fn found(left: &[f32]) -> f32 {
        difference(books_of(left), &exact(), &mut Decoder::default())
    }

    #[test]
    fn what_is_missing_is_told_as_a_share_of_the_largest_value() {
        assert_eq!(found(&[0.0; 4]), 0.0);
        assert_eq!(found(&[0.0, 0.0, 0.0, 1.25]), 0.5, "kept, and sent as well");
        assert_eq!(found(&[-0.25, 0.0, 0.0, 0.0]), 0.1, "neither");
        assert_eq!(found(&[0.0, f32::NAN, 0.0, 0.0]), f32::INFINITY);
        let no_frame = difference(books_of(&[0.0; 4]), &[1, 2, 3], &mut Decoder::default());
        assert_eq!(no_frame, f32::INFINITY);
    }

    #[test]
    fn whichever_fragments_have_their_turn_an_eighth_of_the_frames_is_looked_at() {
        for groups in [1, 2, 5, 8] {
            let turns = (0..4000).flat_map(|round| (0..8).map(move |fragment| (round, fragment)));
            let frames: Vec<_> =
                turns.filter(|(round, fragment)| round % groups == fragment % groups).collect();
            let due = |&&(round, fragment): &&(u64, u64)| {
                is_due(seed_of(RunId([3; 16]), Round(round), FragmentId(fragment as u32)))
            };
            let share = frames.iter().filter(due).count() as f64 / frames.len() as f64;
            assert!((share - 0.125).abs() < 0.015, "{groups} groups: {share}");
        }
    }
}
