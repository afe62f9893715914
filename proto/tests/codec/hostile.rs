//! Inputs that must be refused, and bytes from a peer that is broken or hostile.

use longhaul_proto::codec::{CodecSpec, DecodeError, Decoder, EncodeError, Encoder, Selection, ValueFormat};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::{encode, gradient_like, specs};

const TOP_K: CodecSpec =
    CodecSpec { selection: Selection::TopK { chunk: 256, keep: 5 }, values: ValueFormat::Int8 };

#[test]
fn an_input_that_is_not_finite_is_refused_and_nothing_changes() {
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut encoder = Encoder::new(TOP_K).unwrap();
        let mut delta = gradient_like(1, 5000);
        (delta[4321], delta[4900]) = (bad, bad);
        let (mut residual, mut out) = (vec![0.5; 5000], vec![7]);
        let expected = Err(EncodeError::NonFinite { index: 4321 });
        assert_eq!(encoder.encode(&delta, &mut out), expected);
        assert_eq!(encoder.encode_with_feedback(&delta, &mut residual, 1.0, &mut out), expected);
        assert_eq!((residual, out), (vec![0.5; 5000], vec![7]));
    }
    let (mut residual, mut out) = ([f32::MAX; 2], vec![]);
    let overflow =
        Encoder::new(TOP_K).unwrap().encode_with_feedback(&[0.0, 1e38], &mut residual, 1.0, &mut out);
    assert_eq!(overflow, Err(EncodeError::NonFinite { index: 1 }));
}

#[test]
fn lengths_that_do_not_match_are_refused() {
    let frame = encode(TOP_K, &gradient_like(2, 1000));
    let mut decoder = Decoder::new();
    let length = |expected| DecodeError::Length { found: 1000, expected };
    assert_eq!(decoder.decode(&frame, 999), Err(length(999)));
    let accumulator = DecodeError::AccumulatorLength { accumulator: 999, expected: 1000 };
    assert_eq!(decoder.decode_add(&frame, 1000, 1.0, &mut [0.0; 999]), Err(accumulator));
    let residual = Encoder::new(TOP_K).unwrap().encode_with_feedback(&[0.0], &mut [], 1.0, &mut vec![]);
    assert_eq!(residual, Err(EncodeError::ResidualLength { delta: 1, residual: 0 }));
}

#[test]
fn each_field_of_the_header_is_checked() {
    let frame = encode(TOP_K, &gradient_like(2, 1000));
    let refusal = |offset: usize, byte: u8| {
        let mut frame = frame.clone();
        frame[offset] = byte;
        Decoder::new().decode(&frame, 1000).unwrap_err()
    };
    assert_eq!(refusal(0, 2), DecodeError::Version(2));
    assert_eq!(refusal(1, 2), DecodeError::Selection(2));
    assert_eq!(refusal(1, 0), DecodeError::Chunk { chunk_log2: 8, keep: 5 });
    assert_eq!(refusal(2, 8), DecodeError::ValueFormat(8));
    assert_eq!(refusal(3, 17), DecodeError::Chunk { chunk_log2: 17, keep: 5 });
    assert_eq!(refusal(3, 200), DecodeError::Chunk { chunk_log2: 200, keep: 5 });
    assert_eq!(refusal(6, 255), DecodeError::Length { found: 1000 + (255 << 16), expected: 1000 });
    assert_eq!(refusal(8, 0), DecodeError::Chunk { chunk_log2: 8, keep: 0 });
    assert!(matches!(refusal(9, 1), DecodeError::Chunk { keep: 261, .. }));
    assert_eq!(Decoder::new().decode(&frame[..11], 1000), Err(DecodeError::Truncated { need: 12, have: 11 }));
    assert!(matches!(
        Decoder::new().decode(&frame[..20], 1000),
        Err(DecodeError::Truncated { have: 20, .. })
    ));
}

#[test]
fn no_proper_prefix_and_no_extension_of_a_frame_decodes() {
    for spec in specs() {
        let mut frame = encode(spec, &gradient_like(3, 300));
        let mut decoder = Decoder::new();
        for end in 0..frame.len() {
            assert!(decoder.decode(&frame[..end], 300).is_err(), "{spec:?} cut at {end} of {}", frame.len());
        }
        frame.push(0);
        assert!(decoder.decode(&frame, 300).is_err(), "{spec:?}");
    }
}

#[test]
fn numbers_that_are_not_finite_are_refused() {
    for spec in specs() {
        let mut frame = encode(spec, &gradient_like(4, 300));
        frame[12..].fill(0xff);
        assert_eq!(Decoder::new().decode(&frame, 300), Err(DecodeError::NonFinite { block: 0 }), "{spec:?}");
    }
}

#[test]
fn an_accumulator_stays_as_it_was_when_its_frame_is_refused() {
    let mut rng = ChaCha8Rng::seed_from_u64(8);
    for spec in specs() {
        let frame = encode(spec, &gradient_like(8, 1000));
        for _ in 0..200 {
            let mut damaged = frame.clone();
            let bit = rng.random_range(0..8 * damaged.len());
            damaged[bit / 8] ^= 1 << (bit % 8);
            let mut sum = vec![1.0; 1000];
            match Decoder::new().decode_add(&damaged, 1000, 1.0, &mut sum) {
                Ok(()) => assert!(sum.iter().all(|value| value.is_finite())),
                Err(_) => assert!(sum.iter().all(|&value| value == 1.0)),
            }
        }
    }
}

/// The length of the fragments that are fuzzed: two chunks and a part of a third.
const FUZZED_LEN: usize = 600;

/// Decodes arbitrary bytes; what decodes must be finite and in order.
fn survive(decoder: &mut Decoder, frame: &[u8], sum: &mut [f32]) {
    if let Ok(update) = decoder.decode(frame, FUZZED_LEN) {
        assert_eq!(update.len(), FUZZED_LEN);
        sum.fill(0.0);
        update.add_scaled_to(1.0, sum);
        assert!(sum.iter().all(|value| value.is_finite()));
    }
}

#[test]
fn random_bytes_behind_any_header_do_no_harm() {
    let mut rng = ChaCha8Rng::seed_from_u64(9);
    let (mut decoder, mut sum) = (Decoder::new(), vec![0.0; FUZZED_LEN]);
    for _ in 0..100_000 {
        let mut frame = vec![0; rng.random_range(0..400)];
        rng.fill(frame.as_mut_slice());
        if let Some(header) = frame.first_chunk_mut::<12>() {
            let [l0, l1, ..] = (FUZZED_LEN as u32).to_le_bytes();
            let (tag, values, chunk_log2) =
                (rng.random_range(0..3), rng.random_range(0..9), rng.random_range(0..18));
            *header = [1, tag, values, chunk_log2, l0, l1, 0, 0, rng.random_range(0..80), 0, 0, 0];
        }
        survive(&mut decoder, &frame, &mut sum);
    }
}

#[test]
fn damaged_frames_do_no_harm() {
    let mut rng = ChaCha8Rng::seed_from_u64(10);
    let frames: Vec<_> = specs().map(|spec| encode(spec, &gradient_like(11, FUZZED_LEN))).collect();
    let (mut decoder, mut sum) = (Decoder::new(), vec![0.0; FUZZED_LEN]);
    for round in 0..200_000 {
        let mut frame = frames[round % frames.len()].clone();
        for _ in 0..rng.random_range(1..4) {
            let bit = rng.random_range(0..8 * frame.len());
            frame[bit / 8] ^= 1 << (bit % 8);
        }
        survive(&mut decoder, &frame, &mut sum);
    }
}
