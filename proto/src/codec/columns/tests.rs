//! Column updates compared with equivalent dense ones.

use proptest::prelude::*;

use super::*;
use crate::codec::{CodecSpec, DecodeError, Decoder, EncodeError, Encoder, Selection, Update, ValueFormat};

/// Forty values: three outside, the end of a matrix by columns [5 of 3 values], two outside, a piece of one
/// by rows [4 of 7 columns], the rest outside.
fn stretches() -> Vec<MatrixStretch> {
    vec![
        MatrixStretch { start: 3, len: 10, offset: 5, columns: 5, rows: 3, by_column: true },
        MatrixStretch { start: 15, len: 20, offset: 3, columns: 7, rows: 4, by_column: false },
    ]
}

const LEN: usize = 40;

/// An update of the values outside and of these columns.
fn update(seed: u64, columns: [&[u32]; 2]) -> ColumnUpdate {
    let parts: Vec<ColumnPart> = stretches()
        .into_iter()
        .zip(columns)
        .map(|(stretch, columns)| ColumnPart { stretch, columns: stretch.present(columns) })
        .collect();
    let count = value_count(LEN as u32, &parts).unwrap();
    let value = |at: u64| ((at * 37 + seed * 101) % 83) as f32 / 16.0 - 2.5;
    ColumnUpdate::new(LEN as u32, parts, (0..count as u64).map(value).collect()).unwrap()
}

fn encoder(values: ValueFormat) -> Encoder {
    Encoder::new(CodecSpec::new(Selection::All, values)).unwrap()
}

fn decoded(frame: &[u8]) -> Result<ColumnUpdate, DecodeError> {
    match Decoder::new().decode(frame, LEN)? {
        Update::Columns(update) => Ok(update.clone()),
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_update_of_columns_is_the_dense_one_with_zeros_elsewhere() {
    let update = update(1, [&[1, 4], &[0, 2, 6]]);
    let dense = update.to_dense();
    // Column 1 of the first matrix is cut: of its values 3 to 5 only 5 is here. Column 4 is complete.
    assert_ne!(dense[3], 0.0);
    assert_eq!(dense[4..10], [0.0; 6]);
    assert_eq!(ColumnUpdate::from_dense(&dense, &stretches()).unwrap().to_dense(), dense);
    let mut sum = vec![1.0; LEN];
    Update::Columns(update.clone()).add_scaled_to(0.5, &mut sum);
    let expected: Vec<f32> = dense.iter().map(|value| 1.0 + 0.5 * value).collect();
    assert_eq!(sum, expected);
    assert_eq!(update.scaled(2.0).to_dense(), dense.iter().map(|value| 2.0 * value).collect::<Vec<_>>());
}

#[test]
fn sums_have_the_columns_of_both() {
    let (one, other) = (update(1, [&[1, 4], &[0, 2]]), update(2, [&[2, 4], &[2, 5]]));
    let sum = one.plus(0.5, &other).unwrap();
    let expected: Vec<f32> =
        one.to_dense().iter().zip(other.to_dense()).map(|(one, other)| one * 0.5 + other).collect();
    assert_eq!(sum.to_dense(), expected);
    assert_eq!(
        sum.parts().iter().map(|part| part.columns.clone()).collect::<Vec<_>>(),
        [vec![1, 2, 4], vec![0, 2, 5]]
    );
    let mut elsewhere = stretches();
    elsewhere[0].start = 2;
    let elsewhere = ColumnUpdate::from_dense(&[1.0; LEN], &elsewhere).unwrap();
    assert_eq!(one.plus(1.0, &elsewhere), None);
}

#[test]
fn what_cannot_be_is_refused() {
    let part = |stretch, columns: &[u32]| ColumnPart { stretch, columns: columns.to_vec() };
    let [first, second] = [0, 1].map(|at| stretches()[at]);
    let count = |parts: &[ColumnPart]| value_count(LEN as u32, parts);
    assert!(count(&[part(first, &[1, 4]), part(second, &[])]).is_some());
    for parts in [
        vec![part(second, &[]), part(first, &[])],
        vec![part(first, &[4, 1])],
        vec![part(first, &[1, 1])],
        vec![part(first, &[5])],
        // It ends before the stretch begins.
        vec![part(first, &[0])],
        vec![part(MatrixStretch { len: 11, ..first }, &[])],
        vec![part(MatrixStretch { start: 31, ..first }, &[])],
        vec![part(MatrixStretch { offset: u64::MAX, ..first }, &[])],
    ] {
        assert_eq!(count(&parts), None, "{parts:?}");
    }
    assert_eq!(ColumnUpdate::new(LEN as u32, vec![part(first, &[1])], vec![0.0; 30]), None);
}

#[test]
fn exact_formats_bring_back_what_went_in_and_leave_nothing() {
    for columns in [[&[1_u32, 4] as &[u32], &[0, 2, 6]], [&[], &[]], [&[1, 2, 3, 4], &[0, 1, 2, 3, 4, 5, 6]]]
    {
        let (update, mut frame) = (update(3, columns), Vec::new());
        let left = encoder(ValueFormat::F32).encode_columns(0, &update, None, 1.0, &mut frame).unwrap();
        assert_eq!((decoded(&frame).unwrap(), left), (update.clone(), None));
        let (mut sum, mut expected) = (vec![1.0; LEN], vec![1.0; LEN]);
        Decoder::new().decode_add(&frame, LEN, 0.25, &mut sum).unwrap();
        Update::Columns(update).add_scaled_to(0.25, &mut expected);
        assert_eq!(sum, expected);
    }
}

/// With decay 1, for each format: Σ sent + residual = Σ input, and no more columns are sent than computed.
#[test]
fn error_feedback_on_columns_loses_nothing() {
    let columns: [[&[u32]; 2]; 4] = [[&[1, 4], &[0, 2]], [&[2], &[1, 2]], [&[3, 4], &[5]], [&[1], &[6, 0]]];
    for format in ValueFormat::ALL {
        let mut encoder = encoder(format);
        let (mut put_in, mut sent) = (vec![0.0_f64; LEN], vec![0.0_f64; LEN]);
        let mut residual: Option<ColumnUpdate> = None;
        for round in 0..40 {
            let mut of = columns[round % 4];
            of[1] = if of[1] == [6, 0] { &[0, 6] } else { of[1] };
            let (update, mut frame) = (update(round as u64, of), Vec::new());
            residual = encoder.encode_columns(0, &update, residual.as_ref(), 1.0, &mut frame).unwrap();
            let got = decoded(&frame).unwrap();
            assert_eq!(got.column_counts(), update.column_counts(), "{format}, round {round}");
            update.for_each(|at, value| put_in[at] += f64::from(value));
            got.for_each(|at, value| sent[at] += f64::from(value));
        }
        if let Some(residual) = &residual {
            residual.for_each(|at, value| sent[at] += f64::from(value));
        }
        assert!(residual.is_none() || !format.is_exact(), "{format}");
        for at in 0..LEN {
            assert!(
                (put_in[at] - sent[at]).abs() < 2e-4,
                "{format}: {} became {} at {at}",
                put_in[at],
                sent[at]
            );
        }
    }
}

#[test]
fn of_more_columns_than_may_be_sent_the_smallest_wait() {
    let parts = vec![
        ColumnPart { stretch: stretches()[0], columns: vec![2, 3, 4] },
        ColumnPart { stretch: stretches()[1], columns: vec![] },
    ];
    // Ten outside, three, and two matrices: 3 + 3·3 + 2 + 5.
    let mut values = vec![1.0; 19];
    values[3..6].fill(0.5);
    values[6..9].fill(-3.0);
    values[9..12].fill(2.0);
    let update = ColumnUpdate::new(LEN as u32, parts, values).unwrap();
    let (sent, back) = update.split(&[2, 0]);
    assert_eq!((sent.parts()[0].columns.clone(), back.parts()[0].columns.clone()), (vec![3, 4], vec![2]));
    assert_eq!(sent.plus(1.0, &back).unwrap(), update);
}

#[test]
fn what_is_not_finite_is_not_sent() {
    let mut values = update(1, [&[1, 4], &[0, 2, 6]]);
    values.values[5] = f32::NAN;
    let mut frame = vec![7];
    let refused = encoder(ValueFormat::Int4).encode_columns(0, &values, None, 1.0, &mut frame);
    assert!(matches!(refused, Err(EncodeError::NonFinite { .. })), "{refused:?}");
    assert_eq!(frame, [7]);
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn frames_of_columns_keep_their_bytes() {
    let golden = include_str!("golden.txt");
    let mut found = String::new();
    for format in ValueFormat::ALL {
        let mut frame = Vec::new();
        encoder(format).encode_columns(0, &update(1, [&[1, 4], &[0, 2, 6]]), None, 1.0, &mut frame).unwrap();
        found += &format!("{format} {}\n", hex(&frame));
    }
    assert_eq!(found, golden);
}

#[test]
fn no_damage_makes_a_frame_that_panics_or_asks_for_more_than_its_fragment() {
    for format in [ValueFormat::F32, ValueFormat::Int4, ValueFormat::TwoBit] {
        let mut frame = Vec::new();
        encoder(format).encode_columns(0, &update(1, [&[1, 4], &[0, 2, 6]]), None, 1.0, &mut frame).unwrap();
        for at in 0..frame.len() {
            assert!(decoded(&frame[..at]).is_err(), "cut at {at}");
            for bit in 0..8 {
                let mut damaged = frame.clone();
                damaged[at] ^= 1 << bit;
                if let Ok(update) = Decoder::new().decode(&damaged, LEN) {
                    assert!(update.len() == LEN && update.values().len() <= LEN);
                }
            }
        }
        frame.push(0);
        assert!(matches!(decoded(&frame), Err(DecodeError::TrailingBytes { .. })));
    }
}

proptest! {
    #[test]
    fn any_columns_come_back(first in 0_u32..32, second in 0_u32..128, seed in 0_u64..50) {
        let of = |bits: u32| (0..7).filter(|at| bits & (1 << at) != 0).collect::<Vec<u32>>();
        let first = of(first).into_iter().filter(|column| *column < 5).collect::<Vec<_>>();
        let (update, mut frame) = (update(seed, [&first, &of(second)]), Vec::new());
        encoder(ValueFormat::F32).encode_columns(0, &update, None, 1.0, &mut frame).unwrap();
        prop_assert_eq!(decoded(&frame).unwrap(), update);
    }

    #[test]
    fn no_bytes_behind_any_part_of_a_frame_make_the_decoder_panic(
        format in prop::sample::select(ValueFormat::ALL.as_slice()),
        kept in 0.0..1.0_f64,
        bytes: Vec<u8>,
        damage: Vec<(prop::sample::Index, u8)>,
    ) {
        let mut frame = Vec::new();
        encoder(format).encode_columns(0, &update(1, [&[1, 4], &[0, 2, 6]]), None, 1.0, &mut frame).unwrap();
        frame.truncate((kept * frame.len() as f64) as usize);
        frame.extend(bytes);
        for (at, byte) in damage {
            if !frame.is_empty() {
                let at = at.index(frame.len());
                frame[at] = byte;
            }
        }
        if let Ok(update) = Decoder::new().decode(&frame, LEN) {
            prop_assert!(update.len() == LEN && update.values().len() <= LEN);
        }
    }
}
