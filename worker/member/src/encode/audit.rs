//! Whether what is sent and what is kept add up to what there was. Error feedback rests on it, and neither a frame nor a residual that is wrong would be noticed by anybody else: a
//! model learns from less, or from something else. So each uploader decodes some of its own frames, as their receivers do, and compares.

use longhaul_common::id::{FragmentId, Round};
use longhaul_proto::codec::Decoder;
use longhaul_proto::control::message::{AUDIT_MAX, Audit, RoundReport};

/// One of so many frames is looked at.
const FRAMES: u64 = 8;

/// Whether the frame with this seed is looked at: drawn, as which fragments have their turn in a round is regular.
pub fn is_due(seed: u64) -> bool {
    seed.is_multiple_of(FRAMES)
}

/// What went into a frame, and what is left of it.
#[derive(Clone, Copy, Debug)]
pub struct Books<'a> {
    /// What was left before, times what is kept of it from one exchange to the next,
    pub before: &'a [f32],
    /// this factor;
    pub decay: f32,
    /// what was added;
    pub added: &'a [f32],
    /// and what is left.
    pub left: &'a [f32],
}

/// max |sent + left − (before·decay + added)| / max |before·decay + added|, in f64; infinite where one of them is no number, or the frame is none.
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
    // Below that, f32 has fewer digits, and then none.
    (worst / largest.max(f64::from(f32::MIN_POSITIVE))) as f32
}

/// What was found since the last report.
#[derive(Debug, Default)]
pub struct Findings(Audit);

impl Findings {
    /// Notes what came of one fragment, and writes it to the log where it does not add up.
    pub fn note(&mut self, round: Round, fragment: FragmentId, difference: f32) {
        if difference > AUDIT_MAX {
            tracing::error!(
                %round, %fragment, difference,
                "what was sent and what is kept do not add up to what there was: this machine computes wrong, or this program does"
            );
        }
        self.0.fragments = self.0.fragments.saturating_add(1);
        self.0.worst = self.0.worst.max(difference);
    }

    /// Puts it into a report.
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

    /// The frame of 1, −0.75, −2.5, 0.125 without a loss.
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
