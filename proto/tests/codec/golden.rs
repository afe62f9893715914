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
            "010000001000000000000000",
            "000000000000803f000080bf0000003f000080be000040406f1283ba0000c84200009ac20000803dbd3786355f7089b000002040000020c000004041000040bf",
        ),
        (
            ValueFormat::Bf16,
            "010001001000000000000000",
            "0000803f80bf003f80be404083bac8429ac2803d863589b0204020c0404140bf",
        ),
        (
            ValueFormat::F16,
            "010002001000000000000000",
            "0000003c00bc003800b4004219944056d0d4002c11000080004100c1004a00ba",
        ),
        (ValueFormat::Int8, "010003001000000000000000", "c8420001ff010004007f9e00000003fd0fff"),
        (ValueFormat::Int4, "010004001000000000000000", "c842888888f883888889"),
        (ValueFormat::E3M0, "010005001000000000000000", "c842100928780f80a284"),
        (ValueFormat::TwoBit, "010006001000000000000000", "483ec74120628388"),
        (ValueFormat::Sign, "010007001000000000000000", "494154a9"),
    ];
    for (values, header, sections) in golden {
        let frame = encode(CodecSpec { selection: Selection::All, values }, &INPUT);
        assert_eq!(hex(&frame), format!("{header}{sections}"), "{values}");
    }
}

#[test]
fn frames_with_selected_values_keep_their_bytes() {
    let golden = [
        (
            ValueFormat::F32,
            "010100031000000003000000",
            "8c67f7c3ff0600000000803f000040400000c84200009ac20000204000004041",
        ),
        (ValueFormat::Bf16, "010101031000000003000000", "8c67f7c3ff060000803f4040c8429ac220404041"),
        (ValueFormat::F16, "010102031000000003000000", "8c67f7c3ff060000003c00424056d0d40041004a"),
        (ValueFormat::Int8, "010103031000000003000000", "8c67f7c3ff060000c84201047f9e030f"),
        (ValueFormat::Int4, "010104031000000003000000", "8c67f7c3ff060000c842883f98"),
        (ValueFormat::E3M0, "010105031000000003000000", "8c67f7c3ff060000c84221f742"),
        (ValueFormat::TwoBit, "010106031000000003000000", "8c67f7c3ff060000803f4e42102040324203"),
        (ValueFormat::Sign, "010107031000000003000000", "8c67f7c3ff0600000b4200f44101"),
    ];
    for (values, header, sections) in golden {
        let frame = encode(CodecSpec { selection: top_k_of(8, 3), values }, &INPUT);
        assert_eq!(hex(&frame), format!("{header}{sections}"), "{values}");
    }
}

#[test]
fn a_long_position_stream_keeps_its_hash() {
    // Long enough for raw bits, many tables and many words.
    let input: Vec<f32> = (0..1_u32 << 18).map(|i| (i.wrapping_mul(2_654_435_761) >> 8) as f32).collect();
    let golden = [
        (4096, 64, "0cf2276aed5dde167fe412c2baf0ea86"),
        (65_536, 4, "147009a361117f7c258f0199b839cb02"),
        (16, 5, "8e38c66df2960d6e60952c30c010680e"),
    ];
    for (chunk, keep, expected) in golden {
        let frame = encode(CodecSpec { selection: top_k_of(chunk, keep), values: ValueFormat::Sign }, &input);
        assert_eq!(&blake3::hash(&frame).to_hex()[..32], expected, "{keep} of {chunk}");
    }
}

#[test]
fn the_golden_frames_decode_to_the_selected_values() {
    let spec = CodecSpec { selection: top_k_of(8, 3), values: ValueFormat::F32 };
    let mut expected = [0.0; 16];
    for kept in [1, 5, 7, 8, 12, 14] {
        expected[kept] = INPUT[kept];
    }
    assert_eq!(decode_dense(&encode(spec, &INPUT), 16), expected);
}
