//! The rules against their formulas in f64, and their memory.

use longhaul_common::config::{
    AdafactorConfig, LionConfig, MuonConfig, MuonScale, Optimiser as Kind, Precision, SgdConfig, TrainConfig,
};
use longhaul_common::model::tiny::{tiny_cnn, tiny_gpt2, tiny_llama};
use longhaul_common::model::{ModelSpec, ParameterSpec};
use longhaul_common::pipeline::PipelineSchedule;
use tch::Tensor;

use crate::testing::{batch, channels, engine, pipeline, train_config, trained, trained_through};
use crate::{Engine, EngineError, LearningRate, Moments};

const STEPS: u64 = 3;

fn with(optimiser: Kind) -> TrainConfig {
    TrainConfig {
        optimiser,
        learning_rate: 0.01,
        weight_decay: 0.3,
        gradient_clip: 0.0,
        warmup_steps: 2,
        ..TrainConfig::default()
    }
}

fn wave(i: usize, t: u64) -> f32 {
    ((i * 37 + t as usize * 101) % 997) as f32 / 500.0 - 1.0
}

fn parameters(engine: &Engine) -> Vec<f32> {
    let mut parameters = Vec::new();
    engine.parameters_to_host(&mut parameters).unwrap();
    parameters
}

fn places(spec: &ModelSpec) -> Vec<(ParameterSpec, std::ops::Range<usize>)> {
    let mut start = 0;
    let place = |tensor: ParameterSpec| {
        let end = start + tensor.count() as usize;
        let place = start..end;
        start = end;
        (tensor, place)
    };
    spec.parameters().into_iter().map(place).collect()
}

/// Applies three gradients, and the reference to each tensor's values with its gradients; the reference returns nothing for tensors of others. Changes must
/// be equal but for `tolerance` of their size.
fn assert_follows(
    spec: &ModelSpec,
    train: &TrainConfig,
    tolerance: f64,
    mut reference: impl FnMut(&ParameterSpec, Vec<f64>, &[Vec<f64>], &[f64]) -> Option<Vec<f64>>,
) {
    let mut engine = engine(spec, train);
    let start = parameters(&engine);
    let rates: Vec<f64> = (0..STEPS).map(|step| LearningRate::new(train, 100).at(step)).collect();
    let gradient = |t| -> Vec<f32> { (0..start.len()).map(|i| wave(i, t)).collect() };
    (0..STEPS).for_each(|t| engine.apply_gradient(t, &gradient(t)).unwrap());
    let (end, mut checked) = (parameters(&engine), 0);
    for (tensor, place) in places(spec) {
        let wide =
            |values: &[f32]| -> Vec<f64> { values[place.clone()].iter().map(|&v| f64::from(v)).collect() };
        let gradients: Vec<Vec<f64>> = (0..STEPS).map(|t| wide(&gradient(t))).collect();
        let before = wide(&start);
        let Some(expected) = reference(&tensor, before.clone(), &gradients, &rates) else { continue };
        checked += 1;
        let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|v| v * v).sum::<f64>().sqrt();
        let change = norm(&mut expected.iter().zip(&before).map(|(e, b)| e - b));
        let apart = norm(&mut wide(&end).into_iter().zip(&expected).map(|(a, e)| a - e));
        assert!(change > 1e-3 && apart < tolerance * change, "{}: {apart} apart of {change}", tensor.name);
    }
    assert!(checked > 0);
}

fn decay(tensor: &ParameterSpec) -> f64 {
    if tensor.is_matrix() { 0.3 } else { 0.0 }
}

#[test]
fn gradient_descent_with_momentum_follows_its_formula_in_f64() {
    for nesterov in [false, true] {
        let train = TrainConfig { sgd: Some(SgdConfig { momentum: 0.8, nesterov }), ..with(Kind::Sgd) };
        assert_follows(&tiny_gpt2(), &train, 1e-4, |tensor, mut theta, gradients, rates| {
            let mut m = vec![0.0; theta.len()];
            for (gradient, rate) in gradients.iter().zip(rates) {
                for ((m, g), theta) in m.iter_mut().zip(gradient).zip(&mut theta) {
                    *m = 0.8 * *m + g;
                    let direction = if nesterov { g + 0.8 * *m } else { *m };
                    *theta = (1.0 - rate * decay(tensor)) * *theta - rate * direction;
                }
            }
            Some(theta)
        });
    }
}

#[test]
fn lion_follows_its_formula_in_f64() {
    let train = TrainConfig { lion: Some(LionConfig { beta1: 0.7, beta2: 0.9 }), ..with(Kind::Lion) };
    assert_follows(&tiny_gpt2(), &train, 1e-4, |tensor, mut theta, gradients, rates| {
        let mut m = vec![0.0; theta.len()];
        for (gradient, rate) in gradients.iter().zip(rates) {
            for ((m, g), theta) in m.iter_mut().zip(gradient).zip(&mut theta) {
                let mixed = 0.7 * *m + 0.3 * g;
                // Where both cancel, the sign is that of a rounding; no reference has it.
                let sign = if mixed.abs() < 1e-6 { 0.0 } else { mixed.signum() };
                *theta = (1.0 - rate * decay(tensor)) * *theta - rate * sign;
                *m = 0.9 * *m + 0.1 * g;
            }
        }
        Some(theta)
    });
}

/// Means of squares over rows and columns of the last two dimensions, `[outer, rows, columns]`.
fn adafactor(
    tensor: &ParameterSpec,
    mut theta: Vec<f64>,
    gradients: &[Vec<f64>],
    rates: &[f64],
    beta1: f64,
) -> Vec<f64> {
    let shape: Vec<usize> = tensor.shape.iter().map(|&size| size as usize).collect();
    let len = theta.len();
    let (rows, columns) = match *shape.as_slice() {
        [.., rows, columns] => (rows, columns),
        _ => (len, 1),
    };
    let is_factored = shape.len() > 1;
    let (mut r, mut c, mut v) = (vec![0.0; len / columns], vec![0.0; len / rows], vec![0.0; len]);
    let mut m = vec![0.0; len];
    for (t, (gradient, rate)) in gradients.iter().zip(rates).enumerate() {
        let beta2 = 1.0 - ((t + 1) as f64).powf(-0.8);
        let square = |i: usize| gradient[i] * gradient[i] + 1e-30;
        for (i, v) in v.iter_mut().enumerate() {
            *v = beta2 * *v + (1.0 - beta2) * square(i);
        }
        r.iter_mut().chain(&mut c).for_each(|mean| *mean *= beta2);
        for i in 0..len {
            r[i / columns] += (1.0 - beta2) * square(i) / columns as f64;
            c[i / (rows * columns) * columns + i % columns] += (1.0 - beta2) * square(i) / rows as f64;
        }
        let estimate = |i: usize| {
            let outer = i / (rows * columns);
            let mean = r[outer * rows..(outer + 1) * rows].iter().sum::<f64>() / rows as f64;
            if is_factored { r[i / columns] * c[outer * columns + i % columns] / mean } else { v[i] }
        };
        let update: Vec<f64> = (0..len).map(|i| gradient[i] / estimate(i).sqrt()).collect();
        let rms = (update.iter().map(|u| u * u).sum::<f64>() / len as f64).sqrt();
        for i in 0..len {
            let step = rate * update[i] / (rms / 0.9).max(1.0);
            m[i] = beta1 * m[i] + (1.0 - beta1) * step;
            theta[i] = (1.0 - rate * decay(tensor)) * theta[i] - m[i];
        }
    }
    theta
}

#[test]
fn adafactor_follows_its_formulas_in_f64() {
    for (spec, beta1) in [(tiny_gpt2(), 0.0), (tiny_cnn(), 0.0), (tiny_gpt2(), 0.9)] {
        let own = AdafactorConfig { beta1, clip_threshold: 0.9, ..AdafactorConfig::default() };
        let train = TrainConfig { adafactor: Some(own), ..with(Kind::Adafactor) };
        assert_follows(&spec, &train, 1e-4, |tensor, theta, gradients, rates| {
            Some(adafactor(tensor, theta, gradients, rates, beta1))
        });
    }
}

/// Row by row.
#[derive(Clone)]
struct Matrix {
    rows: usize,
    columns: usize,
    values: Vec<f64>,
}

impl Matrix {
    fn at(&self, row: usize, column: usize) -> f64 {
        self.values[row * self.columns + column]
    }

    fn of(rows: usize, columns: usize, value: impl Fn(usize, usize) -> f64) -> Self {
        let values = (0..rows * columns).map(|i| value(i / columns, i % columns)).collect();
        Self { rows, columns, values }
    }

    fn transposed(&self) -> Self {
        Self::of(self.columns, self.rows, |row, column| self.at(column, row))
    }

    fn times(&self, other: &Self) -> Self {
        Self::of(self.rows, other.columns, |row, column| {
            (0..self.columns).map(|k| self.at(row, k) * other.at(k, column)).sum()
        })
    }
}

/// With the Gram matrix of the rows, whichever are more.
fn newton_schulz(matrix: &Matrix, steps: u32) -> Matrix {
    let norm = matrix.values.iter().map(|v| v * v).sum::<f64>().sqrt();
    let mut x = Matrix::of(matrix.rows, matrix.columns, |row, column| matrix.at(row, column) / norm);
    for _ in 0..steps {
        let a = x.times(&x.transposed());
        let (ax, aax) = (a.times(&x), a.times(&a.times(&x)));
        x = Matrix::of(x.rows, x.columns, |row, column| {
            3.4445 * x.at(row, column) - 4.7750 * ax.at(row, column) + 2.0315 * aax.at(row, column)
        });
    }
    x
}

fn muon(spec: &ModelSpec, names: &[&str], own: &MuonConfig, ratio: f64, precision: Precision) {
    let own = &MuonConfig { precision: Some(precision), ..own.clone() };
    let train = TrainConfig { muon: Some(own.clone()), ..with(Kind::Muon) };
    // Newton–Schulz amplifies the rounding of small singular values, and bf16 has eight bits.
    let tolerance = if precision == Precision::Bf16 { 5e-2 } else { 3e-4 };
    let products = spec.hidden_products();
    assert_follows(spec, &train, tolerance, |tensor, theta, gradients, rates| {
        let product = products.iter().find(|product| product.weight == tensor.name)?;
        if !names.iter().any(|name| tensor.name.contains(name)) {
            return None;
        }
        let [rows, columns] = [tensor.shape[0] as usize, tensor.shape[1] as usize];
        let (mut theta, mut m) = (theta, vec![0.0; rows * columns]);
        for (gradient, rate) in gradients.iter().zip(rates) {
            let mut direction = vec![0.0; m.len()];
            for ((m, g), direction) in m.iter_mut().zip(gradient).zip(&mut direction) {
                *m = 0.95 * *m + g;
                *direction = if own.nesterov { g + 0.95 * *m } else { *m };
            }
            // In the layout [out, in], whichever the tensor has.
            let is_in_first = product.inputs == rows as u64 && spec.decoder.is_none();
            let stored = Matrix { rows, columns, values: direction };
            let meant = if is_in_first { stored.transposed() } else { stored };
            assert_eq!([meant.rows as u64, meant.columns as u64], [product.outputs, product.inputs]);
            let update = newton_schulz(&meant, own.steps);
            let update = if is_in_first { update.transposed() } else { update };
            let scale = match own.scale {
                MuonScale::MatchRmsAdamw => 0.2 * (rows.max(columns) as f64).sqrt(),
                MuonScale::Original => (meant.rows as f64 / meant.columns as f64).max(1.0).sqrt(),
            };
            for (theta, o) in theta.iter_mut().zip(&update.values) {
                *theta = (1.0 - rate * ratio * 0.3) * *theta - rate * ratio * scale * o;
            }
        }
        Some(theta)
    });
}

/// GPT-2's matrices are [in, out], the others' [out, in].
#[test]
fn muon_follows_its_formulas_in_f64_in_either_layout() {
    let original = MuonConfig { scale: MuonScale::Original, ..MuonConfig::default() };
    // Wide and tall.
    muon(&tiny_gpt2(), &["0.attn.c_attn", "1.mlp.c_proj"], &original, 2.0, Precision::F32);
    let heavy = MuonConfig { nesterov: false, learning_rate: Some(0.03), ..MuonConfig::default() };
    muon(&tiny_llama(), &["0.self_attn.k_proj", "1.mlp.down_proj"], &heavy, 3.0, Precision::F32);
}

/// Rounding makes small eigenvalues of Gram matrices negative, which many iterations would amplify.
#[test]
fn muon_of_a_wide_matrix_of_low_rank_is_bounded_after_any_number_of_iterations() {
    let value = |place: usize| ((place * place + 3 * place) % 17) as f32 - 8.0;
    let left = Tensor::from_slice(&(0..64).map(value).collect::<Vec<_>>()).view([32, 2]);
    let right = Tensor::from_slice(&(0..192).map(|place| value(place + 5)).collect::<Vec<_>>()).view([2, 96]);
    let matrix = left.matmul(&right);
    let kinds = [tch::Kind::Float, tch::Kind::BFloat16];
    for (steps, kind) in [1, 5, 6, 10, 20].into_iter().flat_map(|steps| kinds.map(|kind| (steps, kind))) {
        let update = super::muon::orthogonal(&matrix, steps, kind).unwrap();
        let squares = update.square().sum(tch::Kind::Float).double_value(&[]);
        // No singular value is above 1.3: many iterations raise those of rounding, too.
        assert!(squares.is_finite() && squares < 32.0 * 1.3 * 1.3, "{steps} steps, {kind:?}: {squares}");
    }
}

/// Five iterations are three by Gram matrices and two. One fewer or more would be 26 to 39 % off; rounding to bf16 makes 4.5 % without Gram matrices.
#[test]
fn muon_of_a_wide_matrix_in_bf16_has_all_its_iterations() {
    let value = |row: usize, column: usize| {
        let on_diagonal = if column % 32 == row { 1.0 + row as f64 / 32.0 } else { 0.0 };
        on_diagonal + 0.01 * ((row * 7 + column * 3) % 11) as f64
    };
    let exact = Matrix::of(32, 96, value);
    let values: Vec<f32> = exact.values.iter().map(|&value| value as f32).collect();
    for (steps, kind, tolerance) in
        [(5, tch::Kind::Float, 1e-4), (5, tch::Kind::BFloat16, 7e-2), (4, tch::Kind::BFloat16, 7e-2)]
    {
        let update =
            super::muon::orthogonal(&Tensor::from_slice(&values).view([32, 96]), steps, kind).unwrap();
        let update = Vec::<f32>::try_from(update.contiguous().view(-1)).unwrap();
        let expected = newton_schulz(&exact, steps).values;
        let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|v| v * v).sum::<f64>().sqrt();
        let apart = norm(&mut update.iter().zip(&expected).map(|(a, e)| f64::from(*a) - e));
        let size = norm(&mut expected.iter().copied());
        assert!(apart < tolerance * size, "{steps} steps, {kind:?}: {}", apart / size);
    }
}

#[test]
fn muon_in_bf16_is_that_of_f32_but_for_rounding() {
    let own = MuonConfig { steps: 3, ..MuonConfig::default() };
    muon(&tiny_llama(), &["0.self_attn.k_proj", "1.mlp.down_proj"], &own, 1.0, Precision::Bf16);
}

/// Embeddings, output projection and vectors move as under AdamW alone.
#[test]
fn tensors_outside_products_of_blocks_are_adamws() {
    for spec in [tiny_gpt2(), tiny_llama()] {
        let end = |optimiser| {
            let mut engine = engine(&spec, &with(optimiser));
            let gradient: Vec<f32> = (0..engine.parameter_count()).map(|i| wave(i, 5)).collect();
            (0..STEPS).for_each(|step| engine.apply_gradient(step, &gradient).unwrap());
            parameters(&engine)
        };
        let (adamw, muon, products) = (end(Kind::Adamw), end(Kind::Muon), spec.hidden_products());
        for (tensor, place) in places(&spec) {
            let is_product = products.iter().any(|product| product.weight == tensor.name);
            assert_eq!(adamw[place.clone()] == muon[place], !is_product, "{}", tensor.name);
        }
    }
}

fn all() -> Vec<TrainConfig> {
    let with_first = AdafactorConfig { beta1: 0.9, ..AdafactorConfig::default() };
    let mut all: Vec<TrainConfig> =
        [Kind::Adamw, Kind::Muon, Kind::Sgd, Kind::Lion, Kind::Adafactor].map(with).into();
    all.push(TrainConfig { adafactor: Some(with_first), ..with(Kind::Adafactor) });
    all
}

/// Through the host, as a checkpoint does.
#[test]
fn every_optimiser_resumes_from_its_memory_bit_for_bit() {
    for train in all() {
        let spec = tiny_gpt2();
        let steps = |engine: &mut Engine, steps: std::ops::Range<u64>| {
            steps.for_each(|step| drop(engine.train_step(step, &batch(step)).unwrap()));
            (parameters(engine), engine.moments_to_host().unwrap())
        };
        let mut whole = engine(&spec, &train);
        let expected = steps(&mut whole, 0..4);
        let (values, moments) = steps(&mut engine(&spec, &train), 0..2);
        let mut resumed = engine(&spec, &train);
        resumed.load_parameters(&values).unwrap();
        resumed.load_moments(&moments).unwrap();
        assert!(steps(&mut resumed, 2..4) == expected, "{:?}", train.optimiser);

        // Without its memory, it goes elsewhere; a reset one is as new.
        resumed.load_parameters(&values).unwrap();
        resumed.reset_moments().unwrap();
        let mut new = engine(&spec, &train);
        new.load_parameters(&values).unwrap();
        let (other, fresh) = (steps(&mut resumed, 2..4), steps(&mut new, 2..4));
        assert!(other == fresh && other != expected, "{:?}", train.optimiser);
    }
}

/// As where stages are divided anew: each tensor's memory goes with it.
#[test]
fn a_part_of_the_model_takes_the_memory_of_its_tensors() {
    for train in all() {
        let spec = tiny_gpt2();
        let mut whole = engine(&spec, &train);
        (0..2).for_each(|step| drop(whole.train_step(step, &batch(step)).unwrap()));
        let (values, moments) = (parameters(&whole), whole.moments_to_host().unwrap());
        let gradient: Vec<f32> = (0..values.len()).map(|i| wave(i, 9)).collect();
        whole.apply_gradient(2, &gradient).unwrap();
        let expected = (parameters(&whole), whole.moments_to_host().unwrap());

        let part = spec.part(std::iter::once(2..spec.head() + 1).collect());
        let of_part = |flat: &[f32]| -> Vec<f32> {
            let wanted = part.parameters();
            let place = |tensor: &ParameterSpec| {
                places(&spec).into_iter().find(|(other, _)| other.name == tensor.name).unwrap().1
            };
            wanted.iter().flat_map(|tensor| flat[place(tensor)].to_vec()).collect()
        };
        let memory = |moments: &Moments| Moments {
            first: of_part(&moments.first),
            second: of_part(&moments.second),
            updates: moments.updates,
        };
        let mut stage = engine(&part, &train);
        stage.load_parameters(&of_part(&values)).unwrap();
        stage.load_moments(&memory(&moments)).unwrap();
        stage.apply_gradient(2, &of_part(&gradient)).unwrap();
        assert!(parameters(&stage) == of_part(&expected.0), "{:?}", train.optimiser);
        assert!(stage.moments_to_host().unwrap() == memory(&expected.1), "{:?}", train.optimiser);
    }
}

/// With a training loss beyond cross entropy, and dropout.
#[test]
fn stages_update_as_one_worker_does() {
    let ranks = pipeline(PipelineSchedule::ZeroBubble, 2, 1);
    let spec = tiny_llama();
    let train = TrainConfig {
        optimiser: Kind::Muon,
        learning_rate: 1e-3,
        label_smoothing: 0.2,
        z_loss: 1e-2,
        dropout: Some(0.1),
        attention_dropout: Some(0.1),
        ..train_config(0.0)
    };
    let expected = trained(engine(&spec, &train));
    assert!(trained_through(channels(&ranks), &spec, &train, &ranks) == expected);
}

#[test]
fn a_model_learns_to_count_with_every_optimiser() {
    for (optimiser, learning_rate) in
        [(Kind::Muon, 2e-2), (Kind::Sgd, 0.5), (Kind::Lion, 4e-3), (Kind::Adafactor, 2e-2)]
    {
        let train = TrainConfig { optimiser, learning_rate, ..train_config(1.0) };
        let mut engine = engine(&tiny_llama(), &train);
        let first = engine.evaluate([batch(0)]).unwrap().unwrap().loss;
        (0..20).for_each(|step| drop(engine.train_step(step, &batch(0)).unwrap()));
        let last = engine.evaluate([batch(0)]).unwrap().unwrap().loss;
        assert!(last < 0.7 * first, "{optimiser:?}: {first} to {last}");
    }
}

#[test]
fn rules_for_adamws_moments_and_shares_of_matrices_are_refused() {
    let mut engine = engine(&tiny_gpt2(), &with(Kind::Lion));
    let gradient = vec![1.0; engine.parameter_count()];
    for refused in [
        engine.apply_frozen_adamw(0, &gradient),
        engine.look_ahead(0, &gradient),
        engine.frozen_step(0, &batch(0), 1.0).map(drop),
        engine.decayed_momentum().map(drop),
    ] {
        assert!(matches!(refused, Err(EngineError::OtherOptimiser)), "{refused:?}");
    }
    let share = &tiny_llama().shards(2).unwrap()[1];
    for optimiser in [Kind::Muon, Kind::Adafactor] {
        let nothing = crate::models::FrozenWeights::of(share, crate::testing::test_device());
        let values = vec![0.0; share.parameter_count() as usize];
        let refused = Engine::with_parameters(share, &with(optimiser), 9, &values, nothing, None);
        assert!(matches!(refused, Err(EngineError::SharedMatrices)), "{optimiser:?}");
    }
}
