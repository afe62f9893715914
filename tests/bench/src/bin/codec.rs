//! Throughput and density of the codec on one thread, as JSON lines.
//!
//! `cargo run --release -p longhaul-bench --bin bench-codec [-- --quick]`
//!
//! `gb_per_s` counts the fragment's f32 bytes, whatever is sent of them, in the lower quartile of a fragment's times,
//! as the machine may be shared. `entropy_ratio` is the bits of the positions over the floor log2 C(chunk, keep).
#![allow(clippy::print_stdout, reason = "the results are this program's output")]
#![allow(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

use std::time::{Duration, Instant};

use longhaul_bench::figures::{is_given, print};
use longhaul_proto::codec::{
    CodecSpec, Dct, Decoder, Encoder, RandomK, Rounding, Selection, Stage, TILE_VALUES, Threshold, TopK,
    ValueFormat,
};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Values in a fragment: 1 MiB of f32.
const FRAGMENT_VALUES: usize = 1 << 18;

/// Different fragments, so that neither caches nor branch predictors learn one by heart.
const FRAGMENTS: usize = 8;

const CHUNK: u32 = 4096;

/// Of a frame without stage, threshold and entropy coding.
const HEADER_BYTES: usize = 14;

const DCT: Stage = Stage::Dct(Dct { tiles: (FRAGMENT_VALUES / TILE_VALUES) as u32 });
const RANDOM_TENTH: Stage = Stage::RandomK(RandomK { chunk: CHUNK, keep: 410 });

fn main() {
    let is_quick = is_given("--quick");
    let duration = Duration::from_millis(if is_quick { 100 } else { 1000 });
    let fragments = normal_fragments();
    for (keep, values) in [(64, ValueFormat::TwoBit), (64, ValueFormat::Int8), (41, ValueFormat::TwoBit)]
        .into_iter()
        .chain([(41, ValueFormat::Int8), (4, ValueFormat::TwoBit), (4, ValueFormat::Int8)])
        .chain([256, 1024].map(|keep| (keep, ValueFormat::TwoBit)))
    {
        let name = format!("topk {keep}/{CHUNK} {values}");
        // Without entropy coding of the values: what is not values is positions.
        let spec = CodecSpec { entropy: false, ..CodecSpec::new(top_k(keep), values) };
        let frames = measure_speed(&name, spec, &fragments, duration);
        report_density(&name, spec, keep, &frames);
    }
    for values in [ValueFormat::Bf16, ValueFormat::Int8, ValueFormat::Int4, ValueFormat::Nf4] {
        let spec = CodecSpec { entropy: false, ..CodecSpec::new(Selection::All, values) };
        measure_speed(&format!("dense {values}"), spec, &fragments, duration);
    }
    for (name, spec) in chains() {
        let frames = measure_speed(name, spec, &fragments, duration);
        report_size(name, spec, &fragments, &frames);
    }
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

/// Times encoding and decoding; returns the frames.
fn measure_speed(name: &str, spec: CodecSpec, fragments: &[Vec<f32>], duration: Duration) -> Vec<Vec<u8>> {
    let mut encoder = Encoder::new(spec).expect("the cases are valid");
    let mut frames = vec![Vec::new(); fragments.len()];
    let encode = quartile_time(duration, |index| {
        frames[index].clear();
        encoder
            .encode(index as u64, &fragments[index], &mut frames[index])
            .expect("the fragments are finite");
    });
    report(&format!("encode {name}"), "gb_per_s", "GB/s", gb_per_s(encode));

    let mut residuals = vec![vec![0.0; FRAGMENT_VALUES]; fragments.len()];
    let mut frame = Vec::new();
    let feedback = quartile_time(duration, |index| {
        frame.clear();
        let (delta, residual) = (&fragments[index], &mut residuals[index]);
        encoder
            .encode_with_feedback(index as u64, delta, residual, 0.95, &mut frame)
            .expect("the fragments are finite");
    });
    report(&format!("encode with feedback {name}"), "gb_per_s", "GB/s", gb_per_s(feedback));

    let mut decoder = Decoder::new();
    let mut sum = vec![0.0; FRAGMENT_VALUES];
    let decode = quartile_time(duration, |index| {
        let frame = &frames[index];
        decoder.decode_add(frame, FRAGMENT_VALUES, 0.5, &mut sum).expect("the frames were just encoded");
    });
    report(&format!("decode {name}"), "gb_per_s", "GB/s", gb_per_s(decode));
    frames
}

/// Bits of the whole frames, for each value that they hold and for each value of the fragments.
fn report_size(name: &str, spec: CodecSpec, fragments: &[Vec<f32>], frames: &[Vec<u8>]) {
    let mut encoder = Encoder::new(spec).expect("the cases are valid");
    let kept: usize = (fragments.iter().enumerate())
        .map(|(index, fragment)| {
            encoder.encode(index as u64, fragment, &mut Vec::new()).expect("the fragments are finite");
            match (encoder.sent_positions(), spec.selection) {
                (Some(positions), _) => positions.len(),
                // Transformed: the coefficients that are sent.
                (None, Selection::TopK(TopK { chunk, keep })) => {
                    fragment.len() / chunk as usize * keep as usize
                }
                (None, _) => fragment.len(),
            }
        })
        .sum();
    let bits: usize = frames.iter().map(|frame| 8 * frame.len()).sum();
    report(name, "bits_per_kept_value", "bits", bits as f64 / kept as f64);
    report(name, "bits_per_value", "bits", bits as f64 / (frames.len() * FRAGMENT_VALUES) as f64);
}

/// How close the positions come to their floor.
fn report_density(name: &str, spec: CodecSpec, keep: u32, frames: &[Vec<u8>]) {
    let frame_bits: usize = frames.iter().map(|frame| 8 * (frame.len() - HEADER_BYTES)).sum();
    let chunks = frames.len() * FRAGMENT_VALUES / CHUNK as usize;
    let kept = (chunks * keep as usize) as f64;
    let value_bits = kept * spec.bits_per_kept_value();
    let floor: f64 = (0..keep).map(|i| (f64::from(CHUNK - i) / f64::from(keep - i)).log2()).sum();
    report(name, "bits_per_kept_value", "bits", frame_bits as f64 / kept);
    report(name, "entropy_ratio", "ratio", (frame_bits as f64 - value_bits) / (chunks as f64 * floor));
}

/// The lower quartile of the time of one call, over whole passes through the fragments that fill the duration.
fn quartile_time(duration: Duration, mut call: impl FnMut(usize)) -> Duration {
    let start = Instant::now();
    let mut times = Vec::new();
    while start.elapsed() < duration {
        for index in 0..FRAGMENTS {
            let call_start = Instant::now();
            call(index);
            times.push(call_start.elapsed());
        }
    }
    let quartile = times.len() / 4;
    *times.select_nth_unstable(quartile).1
}

fn gb_per_s(fragment: Duration) -> f64 {
    (FRAGMENT_VALUES * size_of::<f32>()) as f64 / fragment.as_secs_f64() / 1e9
}

/// Nearly normal values: sums of four uniform ones.
fn normal_fragments() -> Vec<Vec<f32>> {
    let mut rng = ChaCha8Rng::seed_from_u64(0);
    let mut normal = || (0..4).map(|_| rng.random_range(-1.0_f32..1.0)).sum::<f32>() * 1e-3;
    (0..FRAGMENTS).map(|_| (0..FRAGMENT_VALUES).map(|_| normal()).collect()).collect()
}

fn report(case: &str, metric: &str, unit: &str, value: f64) {
    print("codec", case, metric, (value * 1e4).round() / 1e4, unit);
}
