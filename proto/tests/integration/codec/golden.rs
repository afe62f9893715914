//! The wire format, pinned. A change here breaks runs whose members have different versions: raise the
//! frame's version.

use longhaul_proto::codec::{
    CodecSpec, Dct, RandomK, Rounding, Selection, Stage, Threshold, TopK, ValueFormat,
};

use super::{SEED, decode_dense, encode};

/// Sixteen values: a zero, a tie of magnitudes, both signs, many powers of two.
const INPUT: [f32; 16] =
    [0.0, 1.0, -1.0, 0.5, -0.25, 3.0, -0.001, 100.0, -77.0, 0.0625, 1e-6, -1e-9, 2.5, -2.5, 12.0, -0.75];

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn top_k_of(chunk: u32, keep: u32) -> Selection {
    Selection::TopK(TopK { chunk, keep })
}

#[test]
fn frames_with_all_values_keep_their_bytes() {
    let golden = [
        (
            ValueFormat::F32,
            "0300000010000000000000000000",
            "000000000000803f000080bf0000003f000080be000040406f1283ba0000c84200009ac20000803dbd3786355f7089b000002040000020c000004041000040bf",
        ),
        (
            ValueFormat::Bf16,
            "0300010010000000000000000000",
            "0000803f80bf003f80be404083bac8429ac2803d863589b0204020c0404140bf",
        ),
        (
            ValueFormat::F16,
            "0300020010000000000000000000",
            "0000003c00bc003800b4004219944056d0d4002c11000080004100c1004a00ba",
        ),
        (ValueFormat::Int8, "0300030010000000000000000000", "c8420001ff010004007f9e00000003fd0fff"),
        (ValueFormat::Int4, "0300040010000000000000000000", "c842888888f883888889"),
        (ValueFormat::E3M0, "0300050010000000000000000000", "c842100928780f80a284"),
        (ValueFormat::TwoBit, "0300060010000000000000000000", "d73fb14220628388"),
        (ValueFormat::Sign, "0300070010000000000000000000", "494154a9"),
        (ValueFormat::Nf4, "0300080010000000000000000000", "c842777777f771777778"),
    ];
    for (values, header, sections) in golden {
        let frame = encode(CodecSpec::new(Selection::All, values), &INPUT);
        assert_eq!(hex(&frame), format!("{header}{sections}"), "{values}");
    }
}

#[test]
fn frames_with_selected_values_keep_their_bytes() {
    let golden = [
        (
            ValueFormat::F32,
            "0301000310000000030000000000",
            "0bc9064c63000000ac7d064c63000000000000800000000000000080000000000000803f000040400000c84200009ac20000204000004041",
        ),
        (
            ValueFormat::Bf16,
            "0301010310000000030000000000",
            "0bc9064c63000000ac7d064c6300000000000080000000000000008000000000803f4040c8429ac220404041",
        ),
        (
            ValueFormat::F16,
            "0301020310000000030000000000",
            "0bc9064c63000000ac7d064c6300000000000080000000000000008000000000003c00424056d0d40041004a",
        ),
        (
            ValueFormat::Int8,
            "0301030310000000030000000000",
            "0bc9064c63000000ac7d064c6300000000000080000000000000008000000000c84201047f9e030f",
        ),
        (
            ValueFormat::Int4,
            "0301040310000000030000000000",
            "0bc9064c63000000ac7d064c6300000000000080000000000000008000000000c842883f98",
        ),
        (
            ValueFormat::E3M0,
            "0301050310000000030000000000",
            "0bc9064c63000000ac7d064c6300000000000080000000000000008000000000c84221f742",
        ),
        (
            ValueFormat::TwoBit,
            "0301060310000000030000000000",
            "0bc9064c63000000ac7d064c63000000000000800000000000000080000000000040c84210e8409a4203",
        ),
        (
            ValueFormat::Sign,
            "0301070310000000030000000000",
            "0bc9064c63000000ac7d064c63000000000000800000000000000080000000000b4200f44101",
        ),
        (
            ValueFormat::Nf4,
            "0301080310000000030000000000",
            "0bc9064c63000000ac7d064c6300000000000080000000000000008000000000c842771f87",
        ),
    ];
    for (values, header, sections) in golden {
        let frame = encode(CodecSpec::new(top_k_of(8, 3), values), &INPUT);
        assert_eq!(hex(&frame), format!("{header}{sections}"), "{values}");
    }
}

#[test]
fn frames_of_a_threshold_keep_their_bytes() {
    let golden = [
        "0302000310000000030000000000060000004af057d1670e0000000040400000c84200009ac200002040000020c000004041",
        "0302010310000000030000000000060000004af057d1670e00004040c8429ac2204020c04041",
        "0302020310000000030000000000060000004af057d1670e000000424056d0d4004100c1004a",
        "0302030310000000030000000000060000004af057d1670e0000c842047f9e03fd0f",
        "0302040310000000030000000000060000004af057d1670e0000c842f88398",
        "0302050310000000030000000000060000004af057d1670e0000c842722f4a",
        "0302060310000000030000000000060000004af057d1670e0000a040b1423402",
        "0302070310000000030000000000060000004af057d1670e0000034214",
        "0302080310000000030000000000060000004af057d1670e0000c842f77187",
    ];
    for (values, expected) in ValueFormat::ALL.into_iter().zip(golden) {
        let frame =
            encode(CodecSpec::new(Selection::Threshold(Threshold { chunk: 8, keep: 3 }), values), &INPUT);
        assert_eq!(hex(&frame), expected, "{values}");
    }
}

#[test]
fn frames_behind_a_random_mask_keep_their_bytes() {
    let stage = Some(Stage::RandomK(RandomK { chunk: 8, keep: 5 }));
    let golden = [
        (
            Selection::All,
            ValueFormat::Bf16,
            "03000100100000000000000001000305000000efcdab8967452301000080bf003f4040c8429ac289b020c0404140bf",
        ),
        (
            top_k_of(4, 2),
            ValueFormat::Int4,
            "03010402100000000200000001000305000000efcdab8967452301132225b497000000c90055555501000000000080000000000000008000000000c842883f89",
        ),
        (
            Selection::Threshold(Threshold { chunk: 4, keep: 2 }),
            ValueFormat::TwoBit,
            "03020602100000000200000001000305000000efcdab89674523010500000078f2e83197000000bb40b142b400",
        ),
    ];
    for (selection, values, expected) in golden {
        let frame = encode(CodecSpec { stage, ..CodecSpec::new(selection, values) }, &INPUT);
        assert_eq!(hex(&frame), expected, "{selection:?}");
    }
}

#[test]
fn frames_rounded_at_random_keep_their_bytes() {
    let golden = [
        (ValueFormat::Int8, "0300030010000000000000000000c8420002ff010003007f9f00000004fd0fff"),
        (ValueFormat::Int4, "0300040010000000000000000000c842888888f883888989"),
        (ValueFormat::E3M0, "0300050010000000000000000000c842000828781f80a294"),
        (ValueFormat::Nf4, "0300080010000000000000000000c842777787f770777779"),
    ];
    for (values, expected) in golden {
        let rounding = Rounding::Stochastic;
        let frame = encode(CodecSpec { rounding, ..CodecSpec::new(Selection::All, values) }, &INPUT);
        assert_eq!(hex(&frame), expected, "{values}");
    }
    assert_eq!(SEED, 0x0123_4567_89ab_cdef, "the seed of these frames");
}

/// Values of many magnitudes: integers times a power of two.
fn long_input(len: u32) -> Vec<f32> {
    let hash = |i: u32| i.wrapping_mul(2_654_435_761) >> 8;
    (0..len)
        .map(|i| hash(i) as f32 * hash(i + len) as f32 * 2.0_f32.powi(-(hash(i) as i32 % 20)) - 1e6)
        .collect()
}

#[test]
fn entropy_coded_frames_keep_their_hash() {
    // One state and several, symbols of part of a byte and of a whole one.
    let golden = [
        (ValueFormat::Int4, 512, "fe9d28c7cd25c23a939c5af56a04f8cb"),
        (ValueFormat::Int4, 1 << 15, "45247b2a03728c0be37de0d15277feab"),
        (ValueFormat::E3M0, 512, "95decf8a82b1517b62575e07b1b1bae2"),
        (ValueFormat::Nf4, 512, "43b99ba58a39d4fd8d09f3feceb757fc"),
        (ValueFormat::Nf4, 1 << 15, "8b1ac94218e521e8e3436284f7c0d016"),
        (ValueFormat::Int8, 512, "38a4acf02539b72b870d86842b9a2a9a"),
        (ValueFormat::Int8, 1 << 15, "d43c18f3c9c7dc18cd4f67905cbd13fe"),
    ];
    for (values, len, expected) in golden {
        let frame = encode(CodecSpec::new(Selection::All, values), &long_input(len));
        assert_eq!(frame[13], 1, "{values} of {len}: it is shorter");
        assert_eq!(&blake3::hash(&frame).to_hex()[..32], expected, "{values} of {len}");
    }
}

#[test]
fn frames_of_a_transform_keep_their_hash_and_that_of_their_values() {
    let stage = Some(Stage::Dct(Dct { tiles: 2 }));
    let golden = [
        (
            Selection::All,
            ValueFormat::F32,
            "90ca167594d1ca8a74650f867f1d40d3",
            "8552a44f788499948fdca8c0dffa8620",
        ),
        (
            top_k_of(4096, 32),
            ValueFormat::Bf16,
            "3bc2169b11dca0ee83e6de87f918b746",
            "33325110a5fe41369d2ca67420bae819",
        ),
        (
            top_k_of(4096, 64),
            ValueFormat::TwoBit,
            "2ab268435c990d37af5cb533ae25eadd",
            "d4ef8c82b1273b970ab40e90d7c11973",
        ),
        (
            Selection::Threshold(Threshold { chunk: 4096, keep: 64 }),
            ValueFormat::Int4,
            "80ee79ccec6d791e306577071e9381be",
            "64ef93d6e6cc3755f6dfabfd682bb33e",
        ),
    ];
    let input = long_input(2 * 4096 + 100);
    for (selection, values, of_frame, of_values) in golden {
        let frame = encode(CodecSpec { stage, ..CodecSpec::new(selection, values) }, &input);
        assert_eq!(&blake3::hash(&frame).to_hex()[..32], of_frame, "{selection:?} {values}");
        let bytes: Vec<u8> =
            decode_dense(&frame, input.len()).iter().flat_map(|value| value.to_le_bytes()).collect();
        assert_eq!(&blake3::hash(&bytes).to_hex()[..32], of_values, "{selection:?} {values}");
    }
}

#[test]
fn a_long_position_stream_keeps_its_hash() {
    // Long enough for raw bits, many tables and many words.
    let input: Vec<f32> = (0..1_u32 << 18).map(|i| (i.wrapping_mul(2_654_435_761) >> 8) as f32).collect();
    let golden = [
        (4096, 64, "9aab13028e568fa91b35ff956a26a4c7"),
        (65_536, 4, "aba8c00826e0324ec5568632a1afd7da"),
        (4096, 1024, "5c11f0d6f625d1adc10dbb530f606906"),
        (16, 5, "49190003f387c72eb8cfa7a4fa3ba3c1"),
    ];
    for (chunk, keep, expected) in golden {
        let frame = encode(CodecSpec::new(top_k_of(chunk, keep), ValueFormat::Sign), &input);
        assert_eq!(&blake3::hash(&frame).to_hex()[..32], expected, "{keep} of {chunk}");
    }
}

#[test]
fn the_golden_frames_decode_to_the_selected_values() {
    let spec = CodecSpec::new(top_k_of(8, 3), ValueFormat::F32);
    let mut expected = [0.0; 16];
    for kept in [1, 5, 7, 8, 12, 14] {
        expected[kept] = INPUT[kept];
    }
    assert_eq!(decode_dense(&encode(spec, &INPUT), 16), expected);
}
