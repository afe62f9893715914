//! Classifiers of images: their learning, and the equivalence of all work-saving options.

use longhaul_common::config::RunConfig;
use longhaul_common::model::Evaluation;
use longhaul_common::model::tiny::{tiny_cnn, tiny_mlp};
use longhaul_proto::codec::ColumnGradient;
use longhaul_run_toml::RunToml;

use super::*;
use crate::count_multiplications;
use crate::testing::test_device;

const VALUES: usize = 36;

/// Grey images of 6 × 6: two bright rows encode one of three classes, all else is noise.
fn images(count: usize) -> Batch {
    let mut batch = Batch::of_images(VALUES);
    (0..count).for_each(|at| batch.push_image(&image(at)));
    batch
}

fn image(at: usize) -> Vec<u8> {
    let class = at % 3;
    let noise = |pixel: usize| ((at * 7919 + pixel * 104_729) % 1009 % 97) as u8;
    let bright = |pixel: usize| if pixel / 12 == class { 158 } else { 0 };
    let pixels = (0..VALUES).map(|pixel| bright(pixel) + noise(pixel));
    pixels.chain([class as u8, 0]).collect()
}

fn gradient(engine: &mut Engine, batch: &Batch) -> Vec<f32> {
    let mut into = Vec::new();
    engine.gradient(batch, &mut into).unwrap();
    into
}

fn models() -> [ModelSpec; 2] {
    [tiny_mlp(), tiny_cnn()]
}

#[test]
fn classifiers_learn_classes_that_can_be_told_in_both_precisions() {
    for spec in models() {
        for precision in [Precision::F32, Precision::Bf16] {
            let train =
                TrainConfig { learning_rate: 1e-2, precision, warmup_steps: 5, ..TrainConfig::default() };
            let mut engine = engine(&spec, &train);
            let first = engine.train_step(0, &images(24)).unwrap();
            assert_eq!(first.tokens, 24, "an image is one token");
            for step in 1..60 {
                engine.train_step(step, &images(24)).unwrap();
            }
            // Unseen images.
            let mut held_out = Batch::of_images(VALUES);
            (100..140).for_each(|at| held_out.push_image(&image(at)));
            let Evaluation { loss, accuracy } = engine.evaluate([&held_out]).unwrap().unwrap();
            let name = format!("{:?} in {precision:?}: {first:?}, {loss}", spec.kind);
            assert!(loss < 0.1 && accuracy == Some(1.0), "{name}, {accuracy:?}");
        }
    }
}

#[test]
fn accuracy_is_the_share_of_classes_with_the_largest_logit_over_all_batches() {
    for spec in models() {
        let engine = engine(&spec, &TrainConfig { micro_batch: 4, ..TrainConfig::default() });
        let batches = [images(7), images(5)];
        let right = |batch: &Batch| -> usize {
            let samples = batch.micro_batches(16).next().unwrap().to_tensor(test_device()).unwrap();
            let logits = engine.whole().unwrap().logits(&samples.narrow(1, 0, VALUES as i64)).unwrap();
            let found: Vec<i64> = logits.argmax(-1, false).try_into().unwrap();
            found.iter().enumerate().filter(|(at, class)| **class == (at % 3) as i64).count()
        };
        let expected = (right(&batches[0]) + right(&batches[1])) as f32 / 12.0;
        let evaluation = engine.evaluate(&batches).unwrap().unwrap();
        assert_eq!(evaluation.accuracy, Some(expected));
        let losses = batches.iter().flat_map(|batch| engine.sample_losses(batch).unwrap());
        let mean = losses.map(f64::from).sum::<f64>() / 12.0;
        assert!((f64::from(evaluation.loss) - mean).abs() < 1e-6);
        assert_eq!(engine.evaluate([&images(0)]).unwrap(), None);
    }
}

#[test]
fn micro_batches_recomputing_and_gradients_by_tensor_change_nothing() {
    for spec in models() {
        let of = |micro_batch, recompute| {
            engine(&spec, &TrainConfig { micro_batch, recompute, ..TrainConfig::default() })
        };
        let (mut whole, mut parts) = (of(7, false), of(3, false));
        let (one, sum) = (gradient(&mut whole, &images(7)), gradient(&mut parts, &images(7)));
        let largest = one.iter().fold(0f32, |max, g| max.max(g.abs()));
        assert!(one.iter().zip(&sum).all(|(a, b)| (a - b).abs() < 1e-5 * largest), "{:?}", spec.kind);
        assert_eq!(gradient(&mut of(3, true), &images(7)), sum, "{:?}", spec.kind);
        let (mut told, mut streamed) = (Vec::new(), Vec::new());
        parts.gradient_by_tensor(&images(7), &mut streamed, &mut |tensor, _| told.push(tensor)).unwrap();
        told.sort_unstable();
        let expected = if test_device().is_cuda() { 0 } else { spec.parameters().len() };
        assert_eq!((streamed, told.len()), (sum, expected));
    }
}

#[test]
fn selected_images_count_by_their_weights_and_tell_their_losses() {
    for spec in models() {
        let mut engine = engine(&spec, &TrainConfig { micro_batch: 2, ..TrainConfig::default() });
        let (all, weights) = (images(5), [1.0, 0.0, 2.5, 0.25, 1.0]);
        let losses = engine.sample_losses(&all).unwrap();
        let mut expected = vec![0.0; engine.parameter_count()];
        for (at, weight) in weights.iter().enumerate() {
            let mut single = Batch::of_images(VALUES);
            single.push_image(&image(at));
            let own = gradient(&mut engine, &single);
            expected.iter_mut().zip(own).for_each(|(sum, g)| *sum += f64::from(weight * g) / 4.0);
        }
        let selected = all.selected(&weights);
        let mut found = Vec::new();
        let outcome = engine.gradient(&selected, &mut found).unwrap();
        let largest = expected.iter().fold(0.0, |max: f64, g| max.max(g.abs()));
        assert!(found.iter().zip(&expected).all(|(a, b)| (f64::from(*a) - b).abs() < 2e-5 * largest));
        let kept = [0, 2, 3, 4].map(|at: usize| losses[at]);
        assert!(outcome.losses.iter().zip(kept).all(|(a, b)| (a - b).abs() < 1e-5), "{outcome:?}");
        assert_eq!((outcome.tokens, outcome.losses.len()), (4, 4));
    }
}

#[test]
fn who_keeps_all_columns_or_rows_trains_with_the_same_bits() {
    for mode in [SparseMode::Columns, SparseMode::Rows] {
        for spec in models() {
            let run = |sparse_backward| {
                let mut engine = engine(&spec, &TrainConfig { sparse_backward, ..TrainConfig::default() });
                let step = |step| engine.train_step(step, &images(12)).unwrap().loss;
                ((0..5).map(step).collect::<Vec<f32>>(), parameters(&engine))
            };
            assert_eq!(run(sparse(1.0, mode, "*")), run(None), "{:?}", spec.kind);
        }
    }
}

#[test]
fn a_quarter_of_the_columns_is_enough_to_learn_from() {
    for (mode, recompute) in
        [(SparseMode::Columns, false), (SparseMode::Columns, true), (SparseMode::Rows, false)]
    {
        for spec in models() {
            let sparse_backward = sparse(0.25, mode, "*");
            let train = TrainConfig {
                learning_rate: 1e-2,
                warmup_steps: 5,
                recompute,
                sparse_backward,
                ..TrainConfig::default()
            };
            let mut engine = engine(&spec, &train);
            for step in 0..80 {
                engine.train_step(step, &images(24)).unwrap();
            }
            let last = engine.evaluate([&images(24)]).unwrap().unwrap();
            assert!(last.accuracy == Some(1.0), "{:?}, {mode:?}: {last:?}", spec.kind);
        }
    }
}

#[test]
fn columns_that_are_collected_are_those_of_the_dense_gradient() {
    for spec in models() {
        for recompute in [false, true] {
            let layers = vec!["*".to_owned(), "output.weight".to_owned()];
            let sparse_backward =
                Some(SparseBackwardConfig { keep: 0.25, mode: SparseMode::Columns, layers });
            let train = TrainConfig { micro_batch: 4, recompute, sparse_backward, ..TrainConfig::default() };
            let (batch, mut dense) = (images(9), Vec::new());
            let expected = engine(&spec, &train).gradient(&batch, &mut dense).unwrap();
            let mut collecting = engine(&spec, &train);
            collecting.collect_columns().unwrap();
            let (outcome, found): (_, ColumnGradient) = collecting.column_gradient(&batch).unwrap();
            // The norm is a sum in another order.
            let [norm, dense_norm] = [&outcome, &expected].map(|outcome| outcome.gradient_norm.unwrap());
            assert!((norm / dense_norm - 1.0).abs() < 1e-6, "{norm} is not {dense_norm}");
            let gradient_norm = expected.gradient_norm;
            assert_eq!((StepOutcome { gradient_norm, ..outcome }, found.len), (expected, dense.len()));
            assert_eq!(found.cut(0..dense.len()).unwrap().to_dense(), dense, "{:?}", spec.kind);
        }
    }
}

/// Sun et al. 2017: both products of a backward pass shrink with the kept columns; that for the pixels is never made.
#[test]
fn a_perceptron_multiplies_as_often_as_its_specification_says() {
    // Autograd runs a GPU's backward pass on its own thread, where multiplications are not counted.
    if test_device().is_cuda() {
        return;
    }
    const IMAGES: u64 = 10;
    let all = RunToml::new("x")
        .table("model", "kind = \"mlp\"\nhidden = [16, 12]")
        .table("data", "sources = [{ path = \"x\", format = \"images\" }]")
        .lines("data.image", "channels = 1\nheight = 6\nwidth = 6\nclasses = 3");
    let quarter = all.clone().set("train.sparse_backward.keep", 0.25);
    for (run, collects) in [(&all, false), (&quarter, false), (&quarter, true)] {
        let config = RunConfig::parse(&run.to_string()).unwrap();
        let spec = ModelSpec::of(&config, 0).unwrap();
        assert_eq!(spec, tiny_mlp());
        let mut engine = engine(&spec, &TrainConfig { micro_batch: 16, ..config.train.clone() });
        if collects {
            engine.collect_columns().unwrap();
        }
        let samples = images(IMAGES as usize);
        let samples = samples.micro_batches(16).next().unwrap().to_tensor(test_device()).unwrap();
        let model = engine.whole().unwrap();
        let (loss, forwards) = count_multiplications(|| model.mean_loss(&samples)).unwrap();
        let leaves = engine.parameters.views();
        let back = || Tensor::f_run_backward(&[&loss], leaves, false, false);
        let (_, backwards) = count_multiplications(back).unwrap();
        let blocks = spec.blocks_in(&config);
        let flops =
            |of: fn(&longhaul_common::model::BlockCost) -> u64| -> u64 { blocks.iter().map(of).sum() };
        assert_eq!(2 * forwards, IMAGES * flops(|block| block.forward_flops_per_token));
        assert_eq!(2 * backwards, IMAGES * flops(|block| block.backward_flops_per_token), "{run}");
    }
}

#[test]
fn a_classifier_continues_no_text() {
    let spec = tiny_mlp();
    let values = vec![0.0; spec.parameter_count() as usize];
    assert!(matches!(Generator::new(&spec, &values, test_device(), None), Err(EngineError::NoText)));
}
