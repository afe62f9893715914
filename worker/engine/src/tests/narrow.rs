//! Residual streams in a subspace, against GPT-2 with the matrices written out.

use std::collections::HashMap;

use longhaul_common::model::tiny::tiny_subspace;
use longhaul_common::model::{FixedValues, ModelSpec};

use super::*;

/// By name.
type Tensors = HashMap<String, Vec<f64>>;

fn named(spec: &ModelSpec, flat: &[f32]) -> Tensors {
    let mut rest = flat;
    let mut cut = |count: u64| {
        let (own, others) = rest.split_at(count as usize);
        rest = others;
        own.iter().map(|value| f64::from(*value)).collect()
    };
    spec.parameters().into_iter().map(|tensor| (tensor.name.clone(), cut(tensor.count()))).collect()
}

/// Returns a [n, from] times the basis [k, d] or its transpose, in f64.
fn product(a: &[f64], basis: &[f32], from: usize, is_transposed: bool) -> Vec<f64> {
    let to = basis.len() / from;
    let at =
        |i: usize, j: usize| f64::from(if is_transposed { basis[j * from + i] } else { basis[i * to + j] });
    a.chunks(from).flat_map(|row| (0..to).map(move |j| (0..from).map(|i| row[i] * at(i, j)).sum())).collect()
}

fn is_in_subspace(name: &str) -> bool {
    name.contains("c_proj") || name.contains("wte") || name.contains("wpe")
}

/// Returns the parameters of GPT-2 that computes the same.
fn written_out(narrow: &Tensors, fixed: &FixedValues, k: usize) -> Tensors {
    let whole = |(name, values): (&String, &Vec<f64>)| {
        let mut values =
            if is_in_subspace(name) { product(values, &fixed.basis, k, false) } else { values.clone() };
        let table = match name.as_str() {
            "transformer.wte.weight" => &fixed.tokens[..],
            "transformer.wpe.weight" => &fixed.positions,
            _ => &[],
        };
        values.iter_mut().zip(table).for_each(|(value, fixed)| *value += f64::from(*fixed));
        (name.clone(), values)
    };
    narrow.iter().map(whole).collect()
}

fn engine_of(spec: &ModelSpec, parameters: &[f32], recompute: bool) -> Engine {
    let train = TrainConfig { micro_batch: 3, recompute, ..TrainConfig::default() };
    let mut engine = engine(spec, &train);
    engine.load_parameters(parameters).unwrap();
    engine
}

/// Its gradient is the projection of that of the whole matrices: dA = dW·U, with W = A·Uᵀ.
#[test]
fn a_model_in_a_subspace_computes_as_gpt2_with_its_matrices_written_out() {
    for (is_tied, recompute) in [(true, false), (false, true)] {
        let (spec, plain) = (tiny_subspace(is_tied), ModelSpec { tied_embeddings: is_tied, ..tiny_gpt2() });
        let (k, width) = (spec.subspace().unwrap() as usize, spec.width as usize);
        let fixed = spec.fixed_values().unwrap();
        let drawn = draw_parameters(&spec, 5).into_iter().enumerate();
        let flat: Vec<f32> = drawn.map(|(at, value)| value + 0.1 * (at as f32 * 0.7).sin()).collect();
        let whole = written_out(&named(&spec, &flat), &fixed, k);
        let whole: Vec<f32> = plain
            .parameters()
            .iter()
            .flat_map(|tensor| whole[&tensor.name].iter().map(|value| *value as f32))
            .collect();
        let (mut own, mut expected) = (Vec::new(), Vec::new());
        let batch = batch(5, 16);
        let loss = engine_of(&spec, &flat, recompute).gradient(&batch, &mut own).unwrap().loss;
        let of_plain = engine_of(&plain, &whole, false).gradient(&batch, &mut expected).unwrap().loss;
        assert!((loss - of_plain).abs() < 1e-5 * of_plain, "{loss} for {of_plain}");
        let (own, expected) = (named(&spec, &own), named(&plain, &expected));
        for (name, own) in own {
            let expected = match is_in_subspace(&name) {
                true => product(&expected[&name], &fixed.basis, width, true),
                false => expected[&name].clone(),
            };
            let largest = expected.iter().fold(0.0, |most: f64, value| most.max(value.abs()));
            let apart = own.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
            assert!(
                own.len() == expected.len() && apart < 1e-5 * largest.max(1e-3),
                "{name}: {apart} of {largest}"
            );
        }
        let [loss, of_plain] = [engine_of(&spec, &flat, false), engine_of(&plain, &whole, false)]
            .map(|engine| engine.evaluate([&batch]).unwrap().unwrap().loss);
        assert!((loss - of_plain).abs() < 1e-5 * of_plain, "{loss} for {of_plain}");
    }
}

/// Positions begin anew with each document, in the fixed part too.
#[test]
fn documents_in_a_subspace_are_those_of_gpt2_with_its_matrices_written_out() {
    let (spec, plain) = (tiny_subspace(true), tiny_gpt2());
    let fixed = spec.fixed_values().unwrap();
    let flat = draw_parameters(&spec, 5);
    let whole = written_out(&named(&spec, &flat), &fixed, 6);
    let whole: Vec<f32> =
        plain.parameters().iter().flat_map(|tensor| whole[&tensor.name].iter().map(|v| *v as f32)).collect();
    let logits = |spec: &ModelSpec, values: &[f32]| {
        let parameters = Parameters::new(spec, values, test_device()).unwrap();
        let model = Model::of_all(spec, &parameters, Precision::F32).unwrap();
        let tokens = Tensor::arange(32, (Kind::Int64, test_device())).view([2, 16]);
        let starts = tokens.remainder(5).eq(0).logical_or(&tokens.remainder(16).eq(0));
        let documents = models::Documents::new(&starts).unwrap();
        let pass = models::Pass { documents: Some(&documents), ..Default::default() };
        tch::no_grad(|| model.logits_behind(&model.forward_in(&tokens, pass).unwrap()).unwrap())
    };
    let apart = (logits(&spec, &flat) - logits(&plain, &whole)).abs().max().double_value(&[]);
    assert!(apart < 1e-5, "{apart}");
}
