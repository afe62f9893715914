//! Inputs to refuse, and bytes from a broken or hostile peer.

use longhaul_proto::codec::{
    CodecSpec, Dct, DecodeError, Decoder, EncodeError, Encoder, Selection, Stage, Threshold, TopK, Update,
    ValueFormat,
};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::{RANDOM_K, SEED, chains, encode, gradient_like, specs};

const TOP_K: CodecSpec = CodecSpec::new(Selection::TopK(TopK { chunk: 256, keep: 5 }), ValueFormat::Int8);

#[test]
fn an_input_that_is_not_finite_is_refused_and_nothing_changes() {
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut encoder = Encoder::new(TOP_K).unwrap();
        let mut delta = gradient_like(1, 5000);
        (delta[4321], delta[4900]) = (bad, bad);
        let (mut residual, mut out) = (vec![0.5; 5000], vec![7]);
        let expected = Err(EncodeError::NonFinite { index: 4321 });
        assert_eq!(encoder.encode(SEED, &delta, &mut out), expected);
        assert_eq!(encoder.encode_with_feedback(SEED, &delta, &mut residual, 1.0, &mut out), expected);
        assert_eq!((residual, out), (vec![0.5; 5000], vec![7]));
    }
    let (mut residual, mut out) = ([f32::MAX; 2], vec![]);
    let overflow =
        Encoder::new(TOP_K).unwrap().encode_with_feedback(SEED, &[0.0, 1e38], &mut residual, 1.0, &mut out);
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
    let residual = Encoder::new(TOP_K).unwrap().encode_with_feedback(SEED, &[0.0], &mut [], 1.0, &mut vec![]);
    assert_eq!(residual, Err(EncodeError::ResidualLength { delta: 1, residual: 0 }));
}

#[test]
fn a_fragment_that_the_stage_cannot_have_is_refused() {
    let stage = Some(Stage::Dct(Dct { tiles: 2 }));
    let mut encoder = Encoder::new(CodecSpec { stage, ..TOP_K }).unwrap();
    let (mut out, mut residual) = (vec![7], vec![0.5; 8192]);
    assert_eq!(encoder.encode(SEED, &[0.0; 8191], &mut out), Err(EncodeError::Stage { len: 8191 }));
    // Its coefficients could be infinite.
    let mut large = gradient_like(1, 8192);
    large[5000] = 1e38;
    let expected = Err(EncodeError::NonFinite { index: 5000 });
    assert_eq!(encoder.encode(SEED, &large, &mut out), expected);
    assert_eq!(encoder.encode_with_feedback(SEED, &large, &mut residual, 1.0, &mut out), expected);
    assert_eq!((out, residual), (vec![7], vec![0.5; 8192]));
}

/// Bytes of the header without the stage's parameters.
const HEADER_BYTES: usize = 14;

/// Returns the decoder's error for the frame with one byte replaced.
fn refusal(frame: &[u8], len: usize, offset: usize, byte: u8) -> DecodeError {
    let mut frame = frame.to_vec();
    frame[offset] = byte;
    Decoder::new().decode(&frame, len).expect_err("the byte matters")
}

#[test]
fn each_field_of_the_header_is_checked() {
    let frame = encode(TOP_K, &gradient_like(2, 1000));
    let refusal = |offset, byte| refusal(&frame, 1000, offset, byte);
    assert_eq!(refusal(0, 2), DecodeError::Version(2));
    assert_eq!(refusal(0, 4), DecodeError::Version(4));
    assert_eq!(refusal(1, 4), DecodeError::Selection(4));
    assert_eq!(refusal(1, 0), DecodeError::Chunk { chunk_log2: 8, keep: 5 });
    assert_eq!(refusal(2, 9), DecodeError::ValueFormat(9));
    assert_eq!(refusal(3, 17), DecodeError::Chunk { chunk_log2: 17, keep: 5 });
    assert_eq!(refusal(3, 200), DecodeError::Chunk { chunk_log2: 200, keep: 5 });
    assert_eq!(refusal(6, 255), DecodeError::Length { found: 1000 + (255 << 16), expected: 1000 });
    assert_eq!(refusal(8, 0), DecodeError::Chunk { chunk_log2: 8, keep: 0 });
    assert!(matches!(refusal(9, 1), DecodeError::Chunk { keep: 261, .. }));
    assert_eq!(refusal(12, 3), DecodeError::Stage(3));
    assert_eq!(refusal(13, 2), DecodeError::Coding(2));
    let truncated = |need, have| Err(DecodeError::Truncated { need, have });
    assert_eq!(Decoder::new().decode(&frame[..13], 1000), truncated(14, 13));
    assert!(matches!(
        Decoder::new().decode(&frame[..20], 1000),
        Err(DecodeError::Truncated { have: 20, .. })
    ));
}

#[test]
fn a_frame_of_an_older_version_is_refused_however_short_it_is() {
    // No value in version 1, whose header had twelve bytes.
    let frame = [1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let refusal = Decoder::new().decode(&frame, 0).unwrap_err();
    assert_eq!(refusal, DecodeError::Version(1));
    assert_eq!(refusal.to_string(), "unsupported frame version 1; only version 3 is supported");
}

#[test]
fn a_stage_s_parameters_are_checked() {
    let input = gradient_like(2, 2 * 4096 + 5);
    let dct = CodecSpec { stage: Some(Stage::Dct(Dct { tiles: 2 })), ..TOP_K };
    let frame = encode(dct, &input);
    let refusal_of = |offset, byte| refusal(&frame, input.len(), offset, byte);
    assert_eq!(refusal_of(HEADER_BYTES, 3), DecodeError::Stage(2), "one tile more than the fragment has");
    assert_eq!(refusal_of(HEADER_BYTES + 3, 1), DecodeError::Stage(2), "more than any fragment has");
    let mut decoder = Decoder::new();
    assert_eq!(decoder.decode(&frame[..HEADER_BYTES + 3], input.len()), Err(DecodeError::Stage(2)));

    let frame = encode(CodecSpec { stage: Some(RANDOM_K), ..TOP_K }, &input);
    let refusal_of = |offset, byte| refusal(&frame, input.len(), offset, byte);
    assert_eq!(refusal_of(HEADER_BYTES, 17), DecodeError::Stage(1));
    assert_eq!(refusal_of(HEADER_BYTES, 255), DecodeError::Stage(1));
    assert_eq!(refusal_of(HEADER_BYTES + 1, 0), DecodeError::Stage(1), "none kept");
    assert_eq!(refusal_of(HEADER_BYTES + 3, 1), DecodeError::Stage(1), "more kept than there are");
    assert_eq!(decoder.decode(&frame[..HEADER_BYTES + 12], input.len()), Err(DecodeError::Stage(1)));
}

#[test]
fn any_seed_in_a_frame_gives_an_update() {
    let input = gradient_like(2, 5000);
    let frame = encode(CodecSpec { stage: Some(RANDOM_K), ..TOP_K }, &input);
    for byte in 0..=255 {
        let mut frame = frame.clone();
        frame[HEADER_BYTES + 5..HEADER_BYTES + 13].fill(byte);
        let mut decoder = Decoder::new();
        let Ok(Update::Sparse { positions, .. }) = decoder.decode(&frame, 5000) else {
            panic!("seed {byte}")
        };
        assert!(positions.is_sorted_by(|a, b| a < b) && positions.last().is_some_and(|&last| last < 5000));
    }
}

#[test]
fn a_threshold_s_count_is_checked_before_memory_is_taken() {
    let spec = CodecSpec::new(Selection::Threshold(Threshold { chunk: 64, keep: 4 }), ValueFormat::F32);
    let frame = encode(spec, &gradient_like(2, 6400));
    for count in [521, u32::MAX] {
        let mut frame = frame.clone();
        frame[HEADER_BYTES..HEADER_BYTES + 4].copy_from_slice(&count.to_le_bytes());
        assert_eq!(Decoder::new().decode(&frame, 6400), Err(DecodeError::Count { count, seen: 6400 }));
    }
    let kept = u32::from(frame[HEADER_BYTES]) + 256 * u32::from(frame[HEADER_BYTES + 1]);
    for count in [0, kept - 1, kept + 1] {
        let mut frame = frame.clone();
        frame[HEADER_BYTES..HEADER_BYTES + 4].copy_from_slice(&count.to_le_bytes());
        assert!(Decoder::new().decode(&frame, 6400).is_err(), "{count} in place of {kept}");
    }
}

#[test]
fn an_entropy_coded_section_is_checked() {
    let spec = CodecSpec::new(Selection::All, ValueFormat::Int4);
    let frame = encode(spec, &gradient_like(2, 1280));
    assert_eq!(frame[13], 1, "the codes are far from equally likely");
    // The section's length, ten scales, sixteen weights, the stream.
    let weights = HEADER_BYTES + 4 + 20..HEADER_BYTES + 4 + 36;
    let mut without_table = frame.clone();
    without_table[weights.clone()].fill(0);
    let mut decoder = Decoder::new();
    assert_eq!(decoder.decode(&without_table, 1280), Err(DecodeError::CodeTable));
    without_table[weights.start] = 1;
    assert_eq!(decoder.decode(&without_table, 1280), Err(DecodeError::CodeTable));
    let last = frame.len() - 1;
    assert_eq!(refusal(&frame, 1280, last, frame[last] ^ 1), DecodeError::CodeStream);
    assert_eq!(refusal(&frame, 1280, weights.start + 8, 3), DecodeError::CodeStream);
    let cut = |bytes: usize| {
        let mut frame = frame[..frame.len() - bytes].to_vec();
        let section = (frame.len() - HEADER_BYTES - 4) as u32;
        frame[HEADER_BYTES..HEADER_BYTES + 4].copy_from_slice(&section.to_le_bytes());
        Decoder::new().decode(&frame, 1280).unwrap_err()
    };
    for bytes in [1, 4, frame.len() - HEADER_BYTES - 4 - 30, frame.len() - HEADER_BYTES - 4] {
        assert_eq!(cut(bytes), DecodeError::CodeStream, "{bytes} bytes cut");
    }
    assert!(matches!(decoder.decode(&frame[..HEADER_BYTES + 2], 1280), Err(DecodeError::Truncated { .. })));
    let plain = encode(CodecSpec::new(Selection::All, ValueFormat::F32), &[1.0; 8]);
    assert_eq!(refusal(&plain, 8, 13, 1), DecodeError::Coding(1), "numbers of 32 bits have no codes");
}

#[test]
fn coefficients_whose_values_would_be_infinite_are_refused() {
    let stage = Some(Stage::Dct(Dct { tiles: 1 }));
    let spec = CodecSpec { stage, ..CodecSpec::new(Selection::All, ValueFormat::F32) };
    let mut frame = encode(spec, &[0.0; 4096]);
    let values = frame.len() - 4 * 4096;
    frame[values..].as_chunks_mut::<4>().0.fill(f32::MAX.to_le_bytes());
    let mut sum = vec![1.0; 4096];
    let refusal = Decoder::new().decode_add(&frame, 4096, 1.0, &mut sum);
    assert!(matches!(refusal, Err(DecodeError::Overflow { .. })), "{refusal:?}");
    assert_eq!(sum, [1.0; 4096]);
}

#[test]
fn no_proper_prefix_and_no_extension_of_a_frame_decodes() {
    for (spec, len) in specs().map(|spec| (spec, 300)).chain(chains(1).step_by(7).map(|spec| (spec, 4200))) {
        let mut frame = encode(spec, &gradient_like(3, len));
        let mut decoder = Decoder::new();
        for end in (0..frame.len()).step_by(frame.len().div_ceil(500)).chain([frame.len() - 1]) {
            assert!(decoder.decode(&frame[..end], len).is_err(), "{spec:?} cut at {end} of {}", frame.len());
        }
        frame.push(0);
        assert!(decoder.decode(&frame, len).is_err(), "{spec:?}");
    }
}

#[test]
fn numbers_that_are_not_finite_are_refused() {
    for spec in specs() {
        let packed = CodecSpec { entropy: false, ..spec };
        let mut frame = encode(packed, &gradient_like(4, 300));
        let count_bytes = if matches!(spec.selection, Selection::Threshold(_)) { 4 } else { 0 };
        frame[HEADER_BYTES + count_bytes..].fill(0xff);
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

/// Length of fuzzed fragments: one tile, and chunks of all sizes with a partial one at the end.
const FUZZED_LEN: usize = 4200;

/// Decodes arbitrary bytes; the result must be finite and in order.
fn survive(decoder: &mut Decoder, frame: &[u8], sum: &mut [f32]) {
    if let Ok(update) = decoder.decode(frame, FUZZED_LEN) {
        assert_eq!(update.len(), FUZZED_LEN);
        sum.fill(0.0);
        update.add_scaled_to(1.0, sum);
        assert!(sum.iter().all(|value| value.is_finite()));
    }
}

/// A header whose fields are each right with probability one half.
/// Of the frame format.
const VERSION: u8 = 3;

fn random_header(rng: &mut ChaCha8Rng) -> Vec<u8> {
    let mut header = vec![VERSION, rng.random_range(0..4), rng.random_range(0..10), rng.random_range(0..18)];
    header.extend((FUZZED_LEN as u32).to_le_bytes());
    header.extend(rng.random_range(0..80_u32).to_le_bytes());
    let (stage, coding) = (rng.random_range(0..4), rng.random_range(0..3));
    header.extend([stage, coding]);
    match stage {
        1 => {
            header.push(rng.random_range(0..18));
            header.extend(rng.random_range(0..80_u32).to_le_bytes());
            header.extend(rng.random::<u64>().to_le_bytes());
        }
        2 => header.extend(rng.random_range(0..3_u32).to_le_bytes()),
        _ => {}
    }
    if header[1] == 2 {
        header.extend(rng.random_range(0..200_u32).to_le_bytes());
    }
    if coding == 1 {
        header.extend(rng.random_range(0..400_u32).to_le_bytes());
    }
    header
}

#[test]
fn random_bytes_behind_any_header_do_no_harm() {
    let mut rng = ChaCha8Rng::seed_from_u64(9);
    let (mut decoder, mut sum) = (Decoder::new(), vec![0.0; FUZZED_LEN]);
    for _ in 0..100_000 {
        let mut frame = random_header(&mut rng);
        let mut rest = vec![0; rng.random_range(0..400)];
        rng.fill(rest.as_mut_slice());
        frame.extend(rest);
        let refused = decoder.decode(&frame, FUZZED_LEN).err();
        assert!(!matches!(refused, Some(DecodeError::Version(_))), "only what follows is random");
        survive(&mut decoder, &frame, &mut sum);
    }
}

#[test]
fn damaged_frames_do_no_harm() {
    let mut rng = ChaCha8Rng::seed_from_u64(10);
    let frames: Vec<_> = chains(1).map(|spec| encode(spec, &gradient_like(11, FUZZED_LEN))).collect();
    let (mut decoder, mut sum) = (Decoder::new(), vec![0.0; FUZZED_LEN]);
    for round in 0..100_000 {
        let mut frame = frames[round % frames.len()].clone();
        for _ in 0..rng.random_range(1..4) {
            // One in four within the header.
            let bytes = if rng.random_ratio(1, 4) { frame.len().min(40) } else { frame.len() };
            let bit = rng.random_range(0..8 * bytes);
            frame[bit / 8] ^= 1 << (bit % 8);
        }
        survive(&mut decoder, &frame, &mut sum);
    }
}
