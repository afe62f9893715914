//! Throughput and density of the codec on one thread.
//!
//! `gb_per_s` counts the fragment's f32 bytes, whatever share of them is sent, in the lower quartile of a
//! fragment's times, as the machine may be shared. `entropy_ratio` is the bits of the positions over the
//! floor log2 C(chunk, keep).

use std::time::Duration;

use anyhow::Result;
use longhaul_common::config::{ResultForm, SyncConfig, SyncPreset};
use longhaul_common::id::{FragmentId, Generation, Round, WorkerId};
use longhaul_proto::codec::chain::{downlink, uplink};
use longhaul_proto::codec::{
    CodecSpec, Dct, Decoder, Encoder, RandomK, Rounding, Selection, Stage, TILE_VALUES, Threshold, TopK,
    ValueFormat,
};
use longhaul_proto::frame::{Frame, FrameKind, FrameMeta};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::kit::args::Quick;
use crate::kit::clock::now;
use crate::kit::recorder::Recorder;

/// Values in a fragment: 1 MiB of f32.
const FRAGMENT_VALUES: usize = 1 << 18;

/// Different fragments, so that neither caches nor branch predictors adapt to one.
const FRAGMENTS: usize = 8;

/// Those of a model of eleven million parameters: 44 MB.
const MODEL_FRAGMENTS: usize = 42;

const CHUNK: u32 = 4096;

/// Bytes of a frame's header without stage, threshold and entropy coding.
const HEADER_BYTES: usize = 14;

const DCT: Stage = Stage::Dct(Dct { tiles: (FRAGMENT_VALUES / TILE_VALUES) as u32 });
const RANDOM_TENTH: Stage = Stage::RandomK(RandomK { chunk: CHUNK, keep: 410 });

/// Encoding and decoding of updates
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    quick: Quick,
}

/// Measures every case.
pub fn run(args: &Args) -> Result<()> {
    let bench = Bench {
        recorder: Recorder::new("codec").rounded_to(4),
        duration: Duration::from_millis(args.quick.choose(100, 1000)),
        fragments: normal_fragments(),
    };
    for (keep, values) in [(64, ValueFormat::TwoBit), (64, ValueFormat::Int8), (41, ValueFormat::TwoBit)]
        .into_iter()
        .chain([(41, ValueFormat::Int8), (4, ValueFormat::TwoBit), (4, ValueFormat::Int8)])
        .chain([256, 1024].map(|keep| (keep, ValueFormat::TwoBit)))
    {
        let name = format!("topk {keep}/{CHUNK} {values}");
        // Without entropy coding, the bytes besides values are positions.
        let spec = CodecSpec { entropy: false, ..CodecSpec::new(top_k(keep), values) };
        let frames = bench.measure_speed(&name, spec)?;
        bench.report_density(&name, spec, keep, &frames);
    }
    for values in
        [ValueFormat::Bf16, ValueFormat::Int8, ValueFormat::Int4, ValueFormat::Nf4, ValueFormat::TwoBit]
    {
        let spec = CodecSpec { entropy: false, ..CodecSpec::new(Selection::All, values) };
        bench.measure_speed(&format!("dense {values}"), spec)?;
    }
    for (name, spec) in chains() {
        let frames = bench.measure_speed(name, spec)?;
        bench.report_size(name, spec, &frames)?;
    }
    for (name, spec) in of_presets() {
        bench.measure_speed(&name, spec)?;
    }
    bench.measure_beside()
}

/// Common state of all cases.
struct Bench {
    recorder: Recorder,
    duration: Duration,
    fragments: Vec<Vec<f32>>,
}

fn top_k(keep: u32) -> Selection {
    Selection::TopK(TopK { chunk: CHUNK, keep })
}

/// Chains with leading stages, thresholds, stochastic rounding and entropy coding.
fn chains() -> impl Iterator<Item = (&'static str, CodecSpec)> {
    let dense = |values| CodecSpec::new(Selection::All, values);
    let threshold =
        |keep, values| CodecSpec::new(Selection::Threshold(Threshold { chunk: CHUNK, keep }), values);
    let staged =
        |stage, selection, values| CodecSpec { stage: Some(stage), ..CodecSpec::new(selection, values) };
    let stochastic = |spec| CodecSpec { rounding: Rounding::Stochastic, ..spec };
    let sparse = |values| CodecSpec::new(top_k(64), values);
    [
        ("dense int4 entropy", dense(ValueFormat::Int4)),
        ("dense e3m0 entropy", dense(ValueFormat::E3M0)),
        ("dense nf4 entropy", dense(ValueFormat::Nf4)),
        ("dense int8 entropy", dense(ValueFormat::Int8)),
        ("dense int4 stochastic entropy", stochastic(dense(ValueFormat::Int4))),
        ("topk 64/4096 int4 entropy", sparse(ValueFormat::Int4)),
        ("topk 64/4096 e3m0 entropy", sparse(ValueFormat::E3M0)),
        ("topk 64/4096 int8 entropy", sparse(ValueFormat::Int8)),
        ("topk 64/4096 int4 stochastic entropy", stochastic(sparse(ValueFormat::Int4))),
        ("dgc threshold 41/4096 f32", threshold(41, ValueFormat::F32)),
        ("dgc threshold 41/4096 2bit", threshold(41, ValueFormat::TwoBit)),
        ("dgc threshold 4/4096 2bit", threshold(4, ValueFormat::TwoBit)),
        ("randomk 410/4096 f32", staged(RANDOM_TENTH, Selection::All, ValueFormat::F32)),
        ("cocktail randomk 410/4096 topk 819/4096 int4", staged(RANDOM_TENTH, top_k(819), ValueFormat::Int4)),
        ("demo dct topk 32/4096 bf16", staged(DCT, top_k(32), ValueFormat::Bf16)),
        ("demo dct topk 64/4096 2bit", staged(DCT, top_k(64), ValueFormat::TwoBit)),
    ]
    .into_iter()
}

/// What presets send to owners, and what owners publish where that is another chain.
fn of_presets() -> impl Iterator<Item = (String, CodecSpec)> {
    let both = |preset| {
        let config = SyncConfig::of(preset);
        let name = |way: &str| format!("{} {way}", serde_json::json!(preset).as_str().unwrap_or_default());
        let up = (name("to the owner"), uplink(&config, (FRAGMENT_VALUES / TILE_VALUES) as u32));
        let down = (config.result != ResultForm::Bundle).then(|| (name("from the owner"), downlink(&config)));
        std::iter::once(up).chain(down)
    };
    SyncPreset::ALL.into_iter().flat_map(both)
}

impl Bench {
    /// Times encoding and decoding; returns the frames.
    fn measure_speed(&self, name: &str, spec: CodecSpec) -> Result<Vec<Vec<u8>>> {
        let mut encoder = Encoder::new(spec)?;
        let mut frames = vec![Vec::new(); self.fragments.len()];
        let encode = self.quartile_time(|index| {
            frames[index].clear();
            Ok(encoder.encode(index as u64, &self.fragments[index], &mut frames[index])?)
        })?;
        self.print_speed("encode", name, encode);

        let mut residuals = vec![vec![0.0; FRAGMENT_VALUES]; self.fragments.len()];
        let mut frame = Vec::new();
        let feedback = self.quartile_time(|index| {
            frame.clear();
            let (delta, residual) = (&self.fragments[index], &mut residuals[index]);
            Ok(encoder.encode_with_feedback(index as u64, delta, residual, 0.95, &mut frame)?)
        })?;
        self.print_speed("encode with feedback", name, feedback);

        let mut decoder = Decoder::new();
        let mut sum = vec![0.0; FRAGMENT_VALUES];
        let decode = self.quartile_time(|index| {
            Ok(decoder.decode_add(&frames[index], FRAGMENT_VALUES, 0.5, &mut sum)?)
        })?;
        self.print_speed("decode", name, decode);
        Ok(frames)
    }

    /// What members do with each value besides: passes over vectors that no cache holds, which read one or two and write another, and the hash of a frame.
    fn measure_beside(&self) -> Result<()> {
        let [from, other] = [1.0f32, 2.0].map(|value| vec![value; MODEL_FRAGMENTS * FRAGMENT_VALUES]);
        let mut to = vec![0.0f32; from.len()];
        let part = |index: usize| FRAGMENT_VALUES * index..FRAGMENT_VALUES * (index + 1);
        let mut next = (0..MODEL_FRAGMENTS).cycle();
        let copy = self.quartile_time(|_| {
            let part = part(next.next().unwrap_or_default());
            to[part.clone()].copy_from_slice(&from[part]);
            Ok(())
        })?;
        self.print_speed("copy", "a fragment of a model", copy);
        let subtract = self.quartile_time(|_| {
            let part = part(next.next().unwrap_or_default());
            let both = from[part.clone()].iter().zip(&other[part.clone()]);
            to[part].iter_mut().zip(both).for_each(|(to, (from, other))| *to = from - other);
            Ok(())
        })?;
        self.print_speed("subtract", "a fragment of a model", subtract);
        let body = bytes::Bytes::from(vec![0x5a; FRAGMENT_VALUES * size_of::<f32>()]);
        let meta = FrameMeta {
            kind: FrameKind::Contribution,
            generation: Generation(0),
            round: Round(0),
            fragment: FragmentId(0),
            sender: WorkerId(0),
            weight: 1,
            part: 0,
        };
        let hash = self.quartile_time(|_| {
            std::hint::black_box(Frame::new(meta, body.clone())?);
            Ok(())
        })?;
        self.print_speed("hash", "a frame", hash);
        Ok(())
    }

    fn print_speed(&self, what: &str, name: &str, fragment: Duration) {
        let gb_per_s = (FRAGMENT_VALUES * size_of::<f32>()) as f64 / fragment.as_secs_f64() / 1e9;
        self.recorder.print(&format!("{what} {name}"), "gb_per_s", gb_per_s, "GB/s");
    }

    /// Reports the bits of the whole frames, per value in them and per value of the fragments.
    fn report_size(&self, name: &str, spec: CodecSpec, frames: &[Vec<u8>]) -> Result<()> {
        let mut encoder = Encoder::new(spec)?;
        let mut kept = 0;
        for (index, fragment) in self.fragments.iter().enumerate() {
            encoder.encode(index as u64, fragment, &mut Vec::new())?;
            kept += match (encoder.sent_positions(), spec.selection) {
                (Some(positions), _) => positions.len(),
                // Transformed: the coefficients sent.
                (None, Selection::TopK(TopK { chunk, keep })) => {
                    fragment.len() / chunk as usize * keep as usize
                }
                (None, _) => fragment.len(),
            };
        }
        let bits: usize = frames.iter().map(|frame| 8 * frame.len()).sum();
        let values = frames.len() * FRAGMENT_VALUES;
        self.recorder.print(name, "bits_per_kept_value", bits as f64 / kept as f64, "bits");
        self.recorder.print(name, "bits_per_value", bits as f64 / values as f64, "bits");
        Ok(())
    }

    /// Reports the positions relative to their entropy.
    fn report_density(&self, name: &str, spec: CodecSpec, keep: u32, frames: &[Vec<u8>]) {
        let frame_bits: usize = frames.iter().map(|frame| 8 * (frame.len() - HEADER_BYTES)).sum();
        let chunks = frames.len() * FRAGMENT_VALUES / CHUNK as usize;
        let kept = (chunks * keep as usize) as f64;
        let value_bits = kept * spec.bits_per_kept_value();
        let floor: f64 = (0..keep).map(|i| (f64::from(CHUNK - i) / f64::from(keep - i)).log2()).sum();
        let ratio = (frame_bits as f64 - value_bits) / (chunks as f64 * floor);
        self.recorder.print(name, "bits_per_kept_value", frame_bits as f64 / kept, "bits");
        self.recorder.print(name, "entropy_ratio", ratio, "ratio");
    }

    /// Returns the lower quartile of the time of one call, over whole passes through the fragments within the
    /// duration.
    fn quartile_time(&self, mut call: impl FnMut(usize) -> Result<()>) -> Result<Duration> {
        let start = now();
        let mut times = Vec::new();
        while start.elapsed() < self.duration {
            for index in 0..self.fragments.len() {
                let call_start = now();
                call(index)?;
                times.push(call_start.elapsed());
            }
        }
        let quartile = times.len() / 4;
        Ok(*times.select_nth_unstable(quartile).1)
    }
}

/// Nearly normal values: sums of four uniform ones.
fn normal_fragments() -> Vec<Vec<f32>> {
    let mut rng = ChaCha8Rng::seed_from_u64(0);
    let mut normal = || (0..4).map(|_| rng.random_range(-1.0_f32..1.0)).sum::<f32>() * 1e-3;
    (0..FRAGMENTS).map(|_| (0..FRAGMENT_VALUES).map(|_| normal()).collect()).collect()
}
