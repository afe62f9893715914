//! The wire format, pinned. A change here breaks runs whose members have different versions: raise the frame's version.

use longhaul_proto::codec::{CodecSpec, Selection, ValueFormat};

use super::{decode_dense, encode};

/// Sixteen values: a zero, a tie of magnitudes, both signs, many powers of two.
const INPUT: [f32; 16] =
    [0.0, 1.0, -1.0, 0.5, -0.25, 3.0, -0.001, 100.0, -77.0, 0.0625, 1e-6, -1e-9, 2.5, -2.5, 12.0, -0.75];

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn top_k_of(chunk: u32, keep: u32) -> Selection {
    Selection::TopK { chunk, keep }
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
    ];
    for (values, header, sections) in golden {
        let frame = encode(CodecSpec::new(top_k_of(8, 3), values), &INPUT);
        assert_eq!(hex(&frame), format!("{header}{sections}"), "{values}");
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
