//! The codec by its public interface: wire format, numerical properties, hostile input.

#[path = "codec/golden.rs"]
mod golden;
#[path = "codec/hostile.rs"]
mod hostile;
#[path = "codec/properties.rs"]
mod properties;

use longhaul_proto::codec::{CodecSpec, Decoder, Encoder, Selection, Update, ValueFormat};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

fn encode(spec: CodecSpec, input: &[f32]) -> Vec<u8> {
    let mut frame = Vec::new();
    let mut encoder = Encoder::new(spec).expect("the tests' specifications are valid");
    encoder.encode(input, &mut frame).expect("the tests' inputs are finite");
    frame
}

fn decode_dense(frame: &[u8], len: usize) -> Vec<f32> {
    let mut dense = vec![0.0; len];
    Decoder::new().decode(frame, len).expect("the frame is good").add_scaled_to(1.0, &mut dense);
    dense
}

/// Values whose magnitudes spread over many powers of two, as those of gradients do.
fn gradient_like(seed: u64, len: usize) -> Vec<f32> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    (0..len).map(|_| rng.random_range(-1.0_f32..1.0).powi(5) * 0.1).collect()
}

fn selections() -> [Selection; 4] {
    [
        Selection::All,
        Selection::TopK { chunk: 4096, keep: 64 },
        Selection::TopK { chunk: 256, keep: 3 },
        Selection::TopK { chunk: 64, keep: 64 },
    ]
}

fn specs() -> impl Iterator<Item = CodecSpec> {
    selections()
        .into_iter()
        .flat_map(|selection| ValueFormat::ALL.map(|values| CodecSpec { selection, values }))
}

#[test]
fn positions_are_ascending_and_as_many_as_the_header_implies() {
    for spec in specs() {
        let input = gradient_like(5, 10_000);
        let mut decoder = Decoder::new();
        match (decoder.decode(&encode(spec, &input), input.len()).unwrap(), spec.selection) {
            (Update::Dense(values), Selection::All) => assert_eq!(values.len(), input.len()),
            (Update::Sparse { len, positions, values }, Selection::TopK { chunk, keep }) => {
                assert_eq!(*len as usize, input.len());
                assert!(positions.is_sorted_by(|a, b| a < b));
                let kept: u32 = (0..*len).step_by(chunk as usize).map(|start| keep.min(len - start)).sum();
                assert_eq!((positions.len(), values.len()), (kept as usize, kept as usize));
            }
            (update, selection) => panic!("{selection:?} gave {update:?}"),
        }
    }
}

#[test]
fn adding_a_frame_gives_the_bits_of_decoding_and_then_adding() {
    for spec in specs() {
        let frame = encode(spec, &gradient_like(6, 9_001));
        let start = gradient_like(7, 9_001);
        let (mut fused, mut in_two_steps) = (start.clone(), start);
        let mut decoder = Decoder::new();
        decoder.decode_add(&frame, 9_001, 0.3, &mut fused).unwrap();
        decoder.decode(&frame, 9_001).unwrap().add_scaled_to(0.3, &mut in_two_steps);
        assert!(fused.iter().zip(&in_two_steps).all(|(a, b)| a.to_bits() == b.to_bits()), "{spec:?}");
    }
}
