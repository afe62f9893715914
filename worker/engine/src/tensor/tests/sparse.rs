//! Backward passes with selected columns, in tensor groups.

use longhaul_common::config::{ModelKind, SparseBackwardConfig, SparseMode};

use super::*;

fn sparse(precision: Precision) -> TrainConfig {
    let layers = vec!["*".to_owned()];
    let sparse_backward = Some(SparseBackwardConfig { keep: 0.25, mode: SparseMode::Columns, layers });
    TrainConfig { sparse_backward, precision, micro_batch: 4, ..train_config(0.5) }
}

/// Members with other choices of replicated columns would differ, which is an error of the step.
#[test]
fn members_learn_from_some_columns_and_stay_together() {
    for spec in models() {
        for precision in [Precision::F32, Precision::Bf16] {
            let (losses, ..) = trained_in_group(Threads::group(2, Fault::Nothing), &spec, &sparse(precision));
            let [first, last] = [losses[0], losses[losses.len() - 1]];
            assert!(last < 0.8 * first, "{}, {precision:?}: from {first} to {last}", about(&spec));
        }
    }
}

/// Of a product divided by columns, each member keeps its own share; of one divided by rows, all keep the same.
#[test]
fn members_keep_as_many_columns_each() {
    for spec in models() {
        let members = Threads::group(2, Fault::Nothing);
        let train = sparse(Precision::F32);
        let all = each(members, &spec, &train, |_, mut engine| {
            (clipped_gradient(&mut engine, 0.0), engine.spec().clone())
        });
        let mut of_rows: HashMap<String, Vec<usize>> = HashMap::new();
        for (gradients, share) in &all {
            let kept = share.sparse_products(train.sparse_backward.as_ref().unwrap());
            assert!(kept.len() >= 8);
            for (product, most) in kept {
                let is_in_first = spec.kind == ModelKind::Gpt2;
                let (inputs, outputs) = (product.inputs as usize, product.outputs as usize);
                let at = |column: usize, input: usize| {
                    if is_in_first { input * outputs + column } else { column * inputs + input }
                };
                let values = &gradients[&product.weight];
                let has = |column: &usize| (0..inputs).any(|input| values[at(*column, input)] != 0.0);
                let columns: Vec<usize> = (0..outputs).filter(has).collect();
                assert!(columns.len() <= most.get() as usize, "{}: {columns:?}", product.weight);
                if is_cut_by_row(&product.weight) {
                    let other = of_rows.entry(product.weight.clone()).or_insert_with(|| columns.clone());
                    assert_eq!(*other, columns, "{}", product.weight);
                }
            }
        }
    }
}

fn is_cut_by_row(weight: &str) -> bool {
    ["c_proj", "o_proj", "down_proj"].iter().any(|part| weight.contains(part))
}
