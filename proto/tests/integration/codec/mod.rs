//! The codec through its public interface: wire format, numerical properties, hostile input.

mod golden;
mod hostile;
mod properties;
mod reference;
mod rounding;

use longhaul_proto::codec::{
    CodecSpec, Dct, Decoder, EncodeError, Encoder, RandomK, Rounding, Selection, Stage, Threshold, TopK,
    Update, ValueFormat,
};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Seed of encodings that do not depend on it.
const SEED: u64 = 0x0123_4567_89ab_cdef;

fn encode(spec: CodecSpec, input: &[f32]) -> Vec<u8> {
    encode_with_seed(spec, SEED, input)
}

fn encode_with_seed(spec: CodecSpec, seed: u64, input: &[f32]) -> Vec<u8> {
    let mut frame = Vec::new();
    let mut encoder = Encoder::new(spec).expect("the tests' specifications are valid");
    encoder.encode(seed, input, &mut frame).expect("the tests' inputs are finite");
    frame
}

fn decode_dense(frame: &[u8], len: usize) -> Vec<f32> {
    let mut dense = vec![0.0; len];
    Decoder::new().decode(frame, len).expect("the frame is good").add_scaled_to(1.0, &mut dense);
    dense
}

/// The levels of `nf4` at scale 1, from the paper (arXiv 2305.14314, appendix E).
const NF4_LEVELS: [f64; 16] = [
    -1.0,
    -0.696_192_800_998_687_7,
    -0.525_073_051_452_636_7,
    -0.394_917_488_098_144_53,
    -0.284_441_381_692_886_35,
    -0.184_773_430_228_233_34,
    -0.091_050_036_251_544_95,
    0.0,
    0.079_580_299_556_255_34,
    0.160_930_201_411_247_25,
    0.246_112_301_945_686_34,
    0.337_915_241_718_292_24,
    0.440_709_829_330_444_34,
    0.562_617_003_917_694_1,
    0.722_956_836_223_602_3,
    1.0,
];

/// Values whose magnitudes spread over many powers of two, like those of gradients.
fn gradient_like(seed: u64, len: usize) -> Vec<f32> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    (0..len).map(|_| rng.random_range(-1.0_f32..1.0).powi(5) * 0.1).collect()
}

fn selections() -> [Selection; 7] {
    [
        Selection::All,
        Selection::TopK(TopK { chunk: 4096, keep: 64 }),
        Selection::TopK(TopK { chunk: 256, keep: 3 }),
        Selection::TopK(TopK { chunk: 64, keep: 9 }),
        Selection::TopK(TopK { chunk: 64, keep: 64 }),
        Selection::Threshold(Threshold { chunk: 4096, keep: 41 }),
        Selection::Threshold(Threshold { chunk: 16, keep: 5 }),
    ]
}

/// Selections and formats without a leading stage, rounded to nearest.
fn specs() -> impl Iterator<Item = CodecSpec> {
    selections()
        .into_iter()
        .flat_map(|selection| ValueFormat::ALL.map(|values| CodecSpec::new(selection, values)))
}

const RANDOM_K: Stage = Stage::RandomK(RandomK { chunk: 512, keep: 100 });

/// Chains of all stages, for fragments of at least `tiles` tiles.
fn chains(tiles: u32) -> impl Iterator<Item = CodecSpec> {
    let stages = [None, Some(RANDOM_K), Some(Stage::Dct(Dct { tiles }))];
    let with_stages = specs().flat_map(move |spec| stages.map(|stage| CodecSpec { stage, ..spec }));
    with_stages.flat_map(|spec| {
        let stochastic = CodecSpec { rounding: Rounding::Stochastic, ..spec };
        [spec, CodecSpec { entropy: false, ..spec }, stochastic]
            .into_iter()
            .filter(|chain| chain.validate().is_ok())
    })
}

/// Returns the positions from which a chain selects: those that its stage passes.
fn seen_by_selection(spec: CodecSpec, len: usize) -> Vec<u32> {
    let stage_only = CodecSpec { selection: Selection::All, values: ValueFormat::F32, ..spec };
    let mut encoder = Encoder::new(CodecSpec { rounding: Rounding::Nearest, ..stage_only })
        .expect("a chain's stage is valid");
    encoder.encode(SEED, &vec![0.0; len], &mut Vec::new()).expect("zeros are finite");
    encoder.sent_positions().map_or_else(|| (0..len as u32).collect(), <[u32]>::to_vec)
}

/// Returns the minimum and maximum number of positions that a selection keeps of `len` values.
fn kept_of(selection: Selection, len: u32) -> [usize; 2] {
    match selection {
        Selection::All => [len as usize; 2],
        Selection::TopK(TopK { chunk, keep }) => {
            [(0..len).step_by(chunk as usize).map(|start| keep.min(len - start)).sum::<u32>() as usize; 2]
        }
        Selection::Threshold(Threshold { chunk, keep }) => {
            let wanted = f64::from(len) * f64::from(keep) / f64::from(chunk);
            [(0.8 * wanted) as usize, (1.3 * wanted.ceil()) as usize]
        }
    }
}

#[test]
fn positions_are_ascending_and_as_many_as_the_selection_keeps_of_what_the_stage_lets_through() {
    for spec in chains(2) {
        let input = gradient_like(5, 10_000);
        let mut decoder = Decoder::new();
        match decoder.decode(&encode(spec, &input), input.len()).unwrap() {
            Update::Dense(values) => {
                assert!(matches!(spec.stage, Some(Stage::Dct(_))) || spec.selection == Selection::All);
                assert_eq!(values.len(), input.len());
            }
            Update::Sparse { len, positions, values } => {
                assert_eq!(*len as usize, input.len());
                assert!(positions.is_sorted_by(|a, b| a < b));
                let seen = seen_by_selection(spec, input.len());
                assert!(positions.iter().all(|position| seen.binary_search(position).is_ok()), "{spec:?}");
                let [least, most] = kept_of(spec.selection, seen.len() as u32);
                assert_eq!(positions.len(), values.len());
                assert!((least..=most).contains(&positions.len()), "{spec:?}: {}", positions.len());
            }
            Update::Columns(_) => panic!("no chain makes columns of an update that has none"),
        }
    }
}

#[test]
fn the_encoder_tells_which_positions_it_sent() {
    for spec in chains(2) {
        let input = gradient_like(5, 10_000);
        let mut encoder = Encoder::new(spec).unwrap();
        let mut residual = vec![0.0; input.len()];
        let (mut frame, mut feedback_frame) = (Vec::new(), Vec::new());
        encoder.encode(SEED, &input, &mut frame).unwrap();
        let sent = encoder.sent_positions().map(<[u32]>::to_vec);
        let mut decoder = Decoder::new();
        match (decoder.decode(&frame, input.len()).unwrap(), &sent) {
            (Update::Sparse { positions, .. }, Some(sent)) => assert_eq!(positions, sent),
            (Update::Dense(_), None) => {}
            _ => panic!("{spec:?}: a dense update that names positions, or a sparse one without"),
        }
        encoder.encode_with_feedback(SEED, &input, &mut residual, 1.0, &mut feedback_frame).unwrap();
        assert_eq!(encoder.sent_positions().map(<[u32]>::to_vec), sent);
    }
}

#[test]
fn feedback_from_memory_that_stays_is_that_of_memory_that_changes() {
    let (delta, before) = (gradient_like(5, 10_000), gradient_like(6, 10_000));
    for spec in chains(2) {
        let (mut changed, mut residual) = (before.clone(), vec![f32::NAN; before.len()]);
        let (mut in_place, mut out) = (Vec::new(), Vec::new());
        Encoder::new(spec)
            .unwrap()
            .encode_with_feedback(SEED, &delta, &mut changed, 0.9, &mut in_place)
            .unwrap();
        let mut encoder = Encoder::new(spec).unwrap();
        encoder.encode_with_feedback_from(SEED, &delta, &before, 0.9, &mut residual, &mut out).unwrap();
        assert!(out == in_place && residual == changed, "{spec:?}");
        let mut bad = before.clone();
        bad[9_000] = f32::INFINITY;
        let refused = encoder.encode_with_feedback_from(SEED, &delta, &bad, 0.9, &mut residual, &mut out);
        assert_eq!(
            (refused, out == in_place),
            (Err(EncodeError::NonFinite { index: 9_000 }), true),
            "{spec:?}"
        );
    }
    let mut encoder = Encoder::new(CodecSpec::new(Selection::All, ValueFormat::F32)).unwrap();
    for (before, residual) in [(3, 4), (4, 3)] {
        let (before, mut residual) = (vec![0.0; before], vec![0.0; residual]);
        let refused = encoder.encode_with_feedback_from(
            SEED,
            &delta[..4],
            &before,
            1.0,
            &mut residual,
            &mut Vec::new(),
        );
        assert_eq!(refused, Err(EncodeError::ResidualLength { delta: 4, residual: 3 }));
    }
}

#[test]
fn an_encoder_that_changed_its_specification_writes_what_a_new_one_writes() {
    let input = gradient_like(9, 10_000);
    let mut encoder = Encoder::new(CodecSpec::new(Selection::All, ValueFormat::F32)).unwrap();
    for spec in chains(2) {
        encoder.set_spec(spec).unwrap();
        let mut frame = Vec::new();
        encoder.encode(SEED, &input, &mut frame).unwrap();
        assert_eq!(frame, encode(spec, &input), "{spec:?}");
    }
}

#[test]
fn adding_a_frame_gives_the_bits_of_decoding_and_then_adding() {
    let mut decoder = Decoder::new();
    for spec in chains(2) {
        let frame = encode(spec, &gradient_like(6, 9_001));
        let start = gradient_like(7, 9_001);
        let (mut fused, mut in_two_steps) = (start.clone(), start);
        decoder.decode_add(&frame, 9_001, 0.3, &mut fused).unwrap();
        decoder.decode(&frame, 9_001).unwrap().add_scaled_to(0.3, &mut in_two_steps);
        assert!(fused.iter().zip(&in_two_steps).all(|(a, b)| a.to_bits() == b.to_bits()), "{spec:?}");
    }
}
