//! Throughput and density of the codec on one thread, as JSON lines.
//!
//! `cargo run --release -p longhaul-proto --example bench_codec [-- --quick]`
//!
//! `gb_per_s` counts the fragment's f32 bytes, whatever is sent of them, in the lower quartile of a fragment's times,
//! as the machine may be shared. `entropy_ratio` is the bits of the positions over the floor log2 C(chunk, keep).
#![allow(clippy::print_stdout, reason = "the results are this program's output")]
#![allow(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

use std::time::{Duration, Instant};

use longhaul_proto::codec::{CodecSpec, Decoder, Encoder, Selection, ValueFormat};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Values in a fragment: 1 MiB of f32.
const FRAGMENT_VALUES: usize = 1 << 18;

/// Different fragments, so that neither caches nor branch predictors learn one by heart.
const FRAGMENTS: usize = 8;

const CHUNK: u32 = 4096;
const HEADER_BYTES: usize = 12;

fn main() {
    let is_quick = std::env::args().skip(1).any(|argument| argument == "--quick");
    let duration = Duration::from_millis(if is_quick { 100 } else { 1000 });
    let fragments = normal_fragments();
    for keep in [64, 41, 4] {
        for values in [ValueFormat::TwoBit, ValueFormat::Int8] {
            let name = format!("topk {keep}/{CHUNK} {}", label(values));
            let spec = CodecSpec { selection: Selection::TopK { chunk: CHUNK, keep }, values };
            let frames = measure_speed(&name, spec, &fragments, duration);
            report_density(&name, spec, keep, &frames);
        }
    }
    for keep in [256, 1024] {
        let name = format!("topk {keep}/{CHUNK} 2bit");
        let spec =
            CodecSpec { selection: Selection::TopK { chunk: CHUNK, keep }, values: ValueFormat::TwoBit };
        let frames = measure_speed(&name, spec, &fragments, duration);
        report_density(&name, spec, keep, &frames);
    }
    for values in [ValueFormat::Bf16, ValueFormat::Int8, ValueFormat::Int4] {
        let name = format!("dense {}", label(values));
        measure_speed(&name, CodecSpec { selection: Selection::All, values }, &fragments, duration);
    }
}

/// Times encoding and decoding; returns the frames.
fn measure_speed(name: &str, spec: CodecSpec, fragments: &[Vec<f32>], duration: Duration) -> Vec<Vec<u8>> {
    let mut encoder = Encoder::new(spec).expect("the cases are valid");
    let mut frames = vec![Vec::new(); fragments.len()];
    let encode = quartile_time(duration, |index| {
        frames[index].clear();
        encoder.encode(&fragments[index], &mut frames[index]).expect("the fragments are finite");
    });
    report(&format!("encode {name}"), "gb_per_s", "GB/s", gb_per_s(encode));

    let mut residuals = vec![vec![0.0; FRAGMENT_VALUES]; fragments.len()];
    let mut frame = Vec::new();
    let feedback = quartile_time(duration, |index| {
        frame.clear();
        let (delta, residual) = (&fragments[index], &mut residuals[index]);
        encoder.encode_with_feedback(delta, residual, 0.95, &mut frame).expect("the fragments are finite");
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

fn report_density(name: &str, spec: CodecSpec, keep: u32, frames: &[Vec<u8>]) {
    let frame_bits: usize = frames.iter().map(|frame| 8 * (frame.len() - HEADER_BYTES)).sum();
    let chunks = frames.len() * FRAGMENT_VALUES / CHUNK as usize;
    let kept = (chunks * keep as usize) as f64;
    let value_bits = value_bits(spec.values, chunks, keep);
    let floor: f64 = (0..keep).map(|i| (f64::from(CHUNK - i) / f64::from(keep - i)).log2()).sum();
    report(name, "bits_per_kept_value", "bits", frame_bits as f64 / kept);
    report(name, "entropy_ratio", "ratio", (frame_bits as f64 - value_bits) / (chunks as f64 * floor));
}

/// Bits of the value sections: two levels and whole bytes of codes a chunk, or a scale for each 128 codes of a byte.
fn value_bits(values: ValueFormat, chunks: usize, keep: u32) -> f64 {
    let codes = keep as usize * values.code_bits();
    let of_chunk = if values == ValueFormat::TwoBit { 32 + codes.next_multiple_of(8) } else { codes };
    let scales =
        if values == ValueFormat::TwoBit { 0.0 } else { 16.0 * (chunks * keep as usize) as f64 / 128.0 };
    (chunks * of_chunk) as f64 + scales
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

fn label(values: ValueFormat) -> &'static str {
    if values == ValueFormat::TwoBit { "2bit" } else { values.name() }
}

fn report(case: &str, metric: &str, unit: &str, value: f64) {
    println!(r#"{{"bench":"codec","case":"{case}","metric":"{metric}","value":{value:.4},"unit":"{unit}"}}"#);
}
