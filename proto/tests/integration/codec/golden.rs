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
            "0200000010000000000000000000",
            "000000000000803f000080bf0000003f000080be000040406f1283ba0000c84200009ac20000803dbd3786355f7089b000002040000020c000004041000040bf",
        ),
        (
            ValueFormat::Bf16,
            "0200010010000000000000000000",
            "0000803f80bf003f80be404083bac8429ac2803d863589b0204020c0404140bf",
        ),
        (
            ValueFormat::F16,
            "0200020010000000000000000000",
            "0000003c00bc003800b4004219944056d0d4002c11000080004100c1004a00ba",
        ),
        (ValueFormat::Int8, "0200030010000000000000000000", "c8420001ff010004007f9e00000003fd0fff"),
        (ValueFormat::Int4, "0200040010000000000000000000", "c842888888f883888889"),
        (ValueFormat::E3M0, "0200050010000000000000000000", "c842100928780f80a284"),
        (ValueFormat::TwoBit, "0200060010000000000000000000", "483ec74120628388"),
        (ValueFormat::Sign, "0200070010000000000000000000", "494154a9"),
        (ValueFormat::Nf4, "0200080010000000000000000000", "c842777777f771777778"),
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
            "0201000310000000030000000000",
            "8c67f7c3ff0600000000803f000040400000c84200009ac20000204000004041",
        ),
        (ValueFormat::Bf16, "0201010310000000030000000000", "8c67f7c3ff060000803f4040c8429ac220404041"),
        (ValueFormat::F16, "0201020310000000030000000000", "8c67f7c3ff060000003c00424056d0d40041004a"),
        (ValueFormat::Int8, "0201030310000000030000000000", "8c67f7c3ff060000c84201047f9e030f"),
        (ValueFormat::Int4, "0201040310000000030000000000", "8c67f7c3ff060000c842883f98"),
        (ValueFormat::E3M0, "0201050310000000030000000000", "8c67f7c3ff060000c84221f742"),
        (ValueFormat::TwoBit, "0201060310000000030000000000", "8c67f7c3ff060000803f4e42102040324203"),
        (ValueFormat::Sign, "0201070310000000030000000000", "8c67f7c3ff0600000b4200f44101"),
        (ValueFormat::Nf4, "0201080310000000030000000000", "8c67f7c3ff060000c842771f87"),
    ];
    for (values, header, sections) in golden {
        let frame = encode(CodecSpec::new(top_k_of(8, 3), values), &INPUT);
        assert_eq!(hex(&frame), format!("{header}{sections}"), "{values}");
    }
}

#[test]
fn frames_of_a_threshold_keep_their_bytes() {
    let golden = [
        "0202000310000000030000000000060000004af057d1670e0000000040400000c84200009ac200002040000020c000004041",
        "0202010310000000030000000000060000004af057d1670e00004040c8429ac2204020c04041",
        "0202020310000000030000000000060000004af057d1670e000000424056d0d4004100c1004a",
        "0202030310000000030000000000060000004af057d1670e0000c842047f9e03fd0f",
        "0202040310000000030000000000060000004af057d1670e0000c842f88398",
        "0202050310000000030000000000060000004af057d1670e0000c842722f4a",
        "0202060310000000030000000000060000004af057d1670e00002b407c423402",
        "0202070310000000030000000000060000004af057d1670e0000034214",
        "0202080310000000030000000000060000004af057d1670e0000c842f77187",
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
            "02000100100000000000000001000305000000efcdab8967452301000080bf003f4040c8429ac289b020c0404140bf",
        ),
        (
            top_k_of(4, 2),
            ValueFormat::Int4,
            "02010402100000000200000001000305000000efcdab8967452301b98786aa15000000c842883f89",
        ),
        (
            Selection::Threshold(Threshold { chunk: 4, keep: 2 }),
            ValueFormat::TwoBit,
            "02020602100000000200000001000305000000efcdab89674523010500000078f2e8319700000030407c42b400",
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
        (ValueFormat::Int8, "0200030010000000000000000000c8420002ff010003007f9f00000004fd0fff"),
        (ValueFormat::Int4, "0200040010000000000000000000c842888888f883888989"),
        (ValueFormat::E3M0, "0200050010000000000000000000c842000828781f80a294"),
        (ValueFormat::Nf4, "0200080010000000000000000000c842777787f770777779"),
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
        (ValueFormat::Int4, 512, "b4d37a8704e31c54c1c648ce9de39bfb"),
        (ValueFormat::Int4, 1 << 15, "dbddeb180097332c5f9b1ecaaae1e2df"),
        (ValueFormat::E3M0, 512, "8c4a73ac1fa3f7a7b5744557768a5d25"),
        (ValueFormat::Nf4, 512, "e8f15f5be00f7194a78e1d1ee36c7cf8"),
        (ValueFormat::Nf4, 1 << 15, "6d206e6f213722b02ff2279f8277b930"),
        (ValueFormat::Int8, 512, "d88117d75ad685a45409db478d15b86a"),
        (ValueFormat::Int8, 1 << 15, "caa00c81d1fd26bfbdfbcf4db3eb7976"),
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
            "798fae054a29df095d1cd9efd19a501f",
            "8552a44f788499948fdca8c0dffa8620",
        ),
        (
            top_k_of(4096, 32),
            ValueFormat::Bf16,
            "bf6e967719ec90027203c4e703ac7659",
            "33325110a5fe41369d2ca67420bae819",
        ),
        (
            top_k_of(4096, 64),
            ValueFormat::TwoBit,
            "a5eb3631d485eef54c2f47509fe8faf8",
            "4e57c56db256059d666d8d8eeac3cdee",
        ),
        (
            Selection::Threshold(Threshold { chunk: 4096, keep: 64 }),
            ValueFormat::Int4,
            "f4fceaf200a67d9889032f3267a74468",
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
        (4096, 64, "51fe391fe91af140f2e44eb37884e9f8"),
        (65_536, 4, "3e0e9c06139b8d857a1fc95932ae7b5e"),
        (16, 5, "9f3aca2298e326e8c5bc7d6ede6eac26"),
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
