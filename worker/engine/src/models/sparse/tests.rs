use tch::Kind;

use super::*;
use crate::count_multiplications;
use crate::models::deferred::Deferred;
use crate::testing::test_device;

const MODES: [SparseMode; 2] = [SparseMode::Rows, SparseMode::Columns];
const LAYOUTS: [Layout; 2] = [Layout::OutFirst, Layout::InFirst];
const IN: i64 = 7;
const OUT: i64 = 10;

fn selection(kept: u32, mode: SparseMode) -> Selection {
    Selection::new(NonZeroU32::new(kept).unwrap(), mode)
}

/// Random values, a leaf of autograd's graph.
fn leaf(sizes: &[i64], kind: Kind) -> Tensor {
    Tensor::randn(sizes, (Kind::Double, test_device())).to_kind(kind).set_requires_grad(true)
}

/// A product's operands: x [.., in], W, b, and dy [.., out] for its backward pass.
struct Given {
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    gradient: Tensor,
    layout: Layout,
}

impl Given {
    fn new(rows: &[i64], layout: Layout, kind: Kind) -> Self {
        tch::manual_seed(1);
        let (x, y) = ([rows, &[IN]].concat(), [rows, &[OUT]].concat());
        let weight = if layout == Layout::InFirst { [IN, OUT] } else { [OUT, IN] };
        let gradient = leaf(&y, kind).detach();
        Self { x: leaf(&x, kind), weight: leaf(&weight, kind), bias: leaf(&[OUT], kind), gradient, layout }
    }

    fn leaves(&self) -> [&Tensor; 3] {
        [&self.x, &self.weight, &self.bias]
    }

    fn product(&self, selection: Selection) -> Tensor {
        sparse_product(&self.x, &self.weight, Some(&self.bias), self.layout, selection).unwrap()
    }

    /// A number whose gradient in y is dy.
    fn loss(&self, y: &Tensor) -> Tensor {
        (y * &self.gradient).sum(Kind::Double)
    }

    /// dx, dW and db.
    fn backward(&self, y: &Tensor) -> Vec<Tensor> {
        Tensor::run_backward(&[self.loss(y)], &self.leaves(), false, false)
    }

    /// W as [in, out], outside autograd.
    fn matrix(&self) -> Tensor {
        let weight = self.weight.detach();
        if self.layout == Layout::InFirst { weight } else { weight.tr() }
    }
}

/// meProp's formulas, written with masks: dx = topk(dy)·Wᵀ, dW = xᵀ·topk(dy), db = Σ dy.
fn expected(given: &Given, kept: i64, mode: SparseMode) -> [Tensor; 3] {
    let (gradient, x) = (given.gradient.reshape([-1, OUT]), given.x.detach().reshape([-1, IN]));
    let sizes = match mode {
        SparseMode::Rows => gradient.abs(),
        SparseMode::Columns => gradient.abs().sum_dim_intlist([0].as_slice(), true, Kind::Double),
    };
    let (sorted, _) = sizes.sort(1, true);
    let mask = sizes.ge_tensor(&sorted.narrow(1, kept - 1, 1)).to_kind(Kind::Double);
    let sparse = &gradient * mask;
    let of_weight = x.tr().matmul(&sparse);
    let of_weight = if given.layout == Layout::InFirst { of_weight } else { of_weight.tr() };
    let of_x = sparse.matmul(&given.matrix().tr()).view(given.x.size().as_slice());
    [of_x, of_weight, gradient.sum_dim_intlist([0].as_slice(), false, Kind::Double)]
}

fn apart(a: &Tensor, b: &Tensor) -> f64 {
    assert_eq!(a.size(), b.size());
    (a.to_kind(Kind::Double) - b.to_kind(Kind::Double)).abs().max().double_value(&[])
}

#[test]
fn gradients_are_those_of_the_paper_for_any_shape_layout_and_mode() {
    for rows in [&[6][..], &[3, 4], &[2, 3, 2]] {
        for (layout, mode) in LAYOUTS.into_iter().flat_map(|layout| MODES.map(|mode| (layout, mode))) {
            let given = Given::new(rows, layout, Kind::Double);
            let dense = given.x.detach().matmul(&given.matrix()) + &given.bias.detach();
            for kept in [1, 3, OUT] {
                let y = given.product(selection(kept as u32, mode));
                let case = format!("{rows:?}, {layout:?}, {mode:?}, {kept}");
                assert!(apart(&y.detach(), &dense) < 1e-12, "{case}: nothing is left out forwards");
                let found = given.backward(&y);
                for (found, expected) in found.iter().zip(expected(&given, kept, mode)) {
                    assert!(apart(found, &expected) < 1e-12, "{case}: {found} for {expected}");
                }
            }
        }
    }
}

/// For a non-linear loss. If columns are left out, only the bias has the loss's own derivative.
#[test]
fn gradients_of_the_bias_and_of_all_columns_are_finite_differences() {
    const STEP: f64 = 1e-6;
    for (layout, mode) in LAYOUTS.into_iter().flat_map(|layout| MODES.map(|mode| (layout, mode))) {
        let given = Given::new(&[2, 3], layout, Kind::Double);
        let all = given.leaves();
        for (kept, leaves) in [(3, &all[2..]), (OUT, &all[..])] {
            let loss = || given.loss(&given.product(selection(kept as u32, mode)).tanh());
            let gradients = Tensor::run_backward(&[&loss()], leaves, false, false);
            for (leaf, gradient) in leaves.iter().zip(&gradients) {
                let (values, gradient) = (leaf.detach().view([-1]), gradient.reshape([-1]));
                for at in 0..values.size()[0] {
                    let moved = |by: f64| {
                        let _ = values.narrow(0, at, 1).f_add_scalar_(by).unwrap();
                        loss().double_value(&[])
                    };
                    let difference = (moved(STEP) - moved(-2.0 * STEP)) / (2.0 * STEP);
                    moved(STEP);
                    let found = gradient.double_value(&[at]);
                    assert!(
                        (found - difference).abs() < 1e-7,
                        "{layout:?}, {kept}: {found} for {difference}"
                    );
                }
            }
        }
    }
}

#[test]
fn one_row_keeps_the_same_either_way() {
    for layout in LAYOUTS {
        let given = Given::new(&[1], layout, Kind::Double);
        let [rows, columns] = MODES.map(|mode| given.backward(&given.product(selection(4, mode))));
        for (rows, columns) in rows.iter().zip(&columns) {
            assert!(apart(rows, columns) < 1e-14, "{layout:?}: {rows}, {columns}");
        }
        let kept = columns[1].abs().sum_dim_intlist(
            [i64::from(layout == Layout::OutFirst)].as_slice(),
            false,
            Kind::Double,
        );
        assert_eq!(kept.count_nonzero(None::<i64>).int64_value(&[]), 4);
    }
}

#[test]
fn who_keeps_all_has_the_bits_of_libtorchs_own_products() {
    for kind in [Kind::Float, Kind::BFloat16, Kind::Double] {
        for (layout, mode) in LAYOUTS.into_iter().flat_map(|layout| MODES.map(|mode| (layout, mode))) {
            let given = Given::new(&[3, 4], layout, kind);
            let dense = match layout {
                Layout::OutFirst => given.x.linear(&given.weight, Some(&given.bias)),
                Layout::InFirst => given.bias.addmm(&given.x.view([-1, IN]), &given.weight).view([3, 4, OUT]),
            };
            for kept in [OUT, OUT + 5] {
                let sparse = given.product(selection(kept as u32, mode));
                assert!(sparse.equal(&dense), "{kind:?}, {layout:?}");
                let loss =
                    |y: &Tensor| (y.to_kind(Kind::Float).gelu("none") * &given.gradient).sum(Kind::Float);
                let of = |y: &Tensor| Tensor::run_backward(&[loss(y)], &given.leaves(), true, false);
                for (found, expected) in of(&sparse).iter().zip(of(&dense)) {
                    assert!(found.equal(&expected), "{kind:?}, {layout:?}: {found} for {expected}");
                }
            }
        }
    }
}

/// Sums of magnitudes are made in f32: of 2000 rows, bf16 would count the first few hundred.
#[test]
fn half_precision_keeps_the_columns_that_f32_keeps() {
    let x = leaf(&[2000, IN], Kind::BFloat16);
    let weight = leaf(&[OUT, IN], Kind::BFloat16);
    let growth = Tensor::arange(OUT, (Kind::Float, test_device())) * 0.0078125 + 1.0; // 1, 1 + 2⁻⁷, …: the bits of bf16
    let gradient = growth.to_kind(Kind::BFloat16).expand([2000, OUT], false).contiguous();
    let y = sparse_product(&x, &weight, None, Layout::OutFirst, selection(3, SparseMode::Columns)).unwrap();
    let loss = (&y * &gradient).sum(Kind::Float);
    let found = Tensor::run_backward(&[&loss], &[&weight], false, false).remove(0);
    assert_eq!(found.kind(), Kind::BFloat16);
    let rows = found.to_kind(Kind::Float).abs().sum_dim_intlist([1].as_slice(), false, Kind::Float);
    let kept: Vec<bool> = (0..OUT).map(|at| rows.double_value(&[at]) > 0.0).collect();
    assert_eq!(kept, (0..OUT).map(|at| at >= OUT - 3).collect::<Vec<_>>());
}

#[test]
fn gradients_that_several_threads_write_are_zero_but_in_what_was_kept() {
    const WIDE: [i64; 2] = [300, 1000]; // in, out
    const KEPT: i64 = 160;
    for (layout, kind) in LAYOUTS.into_iter().flat_map(|layout| {
        [(Kind::Double, 1e-12), (Kind::Float, 1e-5), (Kind::BFloat16, 0.1)].map(|kind| (layout, kind))
    }) {
        tch::manual_seed(2);
        let ([inputs, outputs], (kind, tolerance)) = (WIDE, kind);
        let sizes = if layout == Layout::InFirst { [inputs, outputs] } else { [outputs, inputs] };
        let (x, weight) = (leaf(&[4, inputs], kind), leaf(&sizes, kind));
        let gradient = leaf(&[4, outputs], kind).detach();
        let selection = selection(KEPT as u32, SparseMode::Columns);
        let y = sparse_product(&x, &weight, None, layout, selection).unwrap();
        let loss = (&y * &gradient).sum(Kind::Double);
        let found = Tensor::run_backward(&[&loss], &[&weight], false, false).remove(0);
        let found = if layout == Layout::InFirst { found.tr() } else { found }; // [out, in]

        let sums = gradient.to_kind(Kind::Double).abs().sum_dim_intlist([0].as_slice(), false, Kind::Double);
        let (_, columns) = sums.topk(KEPT, 0, true, true);
        let mask = Tensor::zeros([outputs, 1], (Kind::Double, test_device())).index_fill(0, &columns, 1.0);
        let [x, gradient] = [x.detach(), gradient].map(|tensor| tensor.to_kind(Kind::Double));
        let expected = gradient.tr().matmul(&x) * mask;
        assert!(apart(&found, &expected) < tolerance, "{layout:?}, {kind:?}");
        let unkept = found.abs().sum_dim_intlist([1].as_slice(), false, Kind::Double).eq(0.0);
        assert_eq!(unkept.sum(Kind::Int64).int64_value(&[]), outputs - KEPT, "{layout:?}, {kind:?}");
    }
}

#[test]
fn columns_that_are_left_out_are_not_multiplied() {
    // Autograd runs a GPU's backward pass on its own thread, where multiplications are not counted.
    if test_device().is_cuda() {
        return;
    }
    let of = |given: &Given, selection: Selection, leaves: &[&Tensor]| {
        let loss = given.product(selection).sum(Kind::Double);
        count_multiplications(|| Tensor::f_run_backward(&[&loss], leaves, false, false)).unwrap().1
    };
    for layout in LAYOUTS {
        let given = Given::new(&[3, 4], layout, Kind::Double);
        let one = (12 * IN * OUT) as u64;
        let all = &given.leaves()[..];
        assert_eq!(of(&given, selection(OUT as u32, SparseMode::Columns), all), 2 * one);
        assert_eq!(of(&given, selection(2, SparseMode::Columns), all), 2 * one / 5);
        assert_eq!(of(&given, selection(2, SparseMode::Rows), all), 2 * one, "zeros are multiplied");
        assert_eq!(of(&given, selection(2, SparseMode::Columns), &all[1..]), one / 5, "dx is not needed");
    }
}

#[test]
fn weights_that_wait_have_the_gradients_of_those_that_do_not() {
    for (layout, mode) in LAYOUTS.into_iter().flat_map(|layout| MODES.map(|mode| (layout, mode))) {
        for kind in [Kind::Float, Kind::BFloat16] {
            let given = Given::new(&[3, 4], layout, Kind::Float);
            let (x, bias) = (given.x.to_kind(kind), given.bias.to_kind(kind));
            let loss = |y: &Tensor| (y.to_kind(Kind::Float) * &given.gradient).sum(Kind::Float);
            let selection = selection(3, mode);
            let y = sparse_product(&x, &given.weight.to_kind(kind), Some(&bias), layout, selection).unwrap();
            let expected = Tensor::run_backward(&[loss(&y)], &given.leaves(), true, false);

            let deferred = Deferred::new().unwrap();
            let later =
                deferred.product(&x, &given.weight, Some(&given.bias), layout, Some(selection)).unwrap();
            assert!(later.equal(&y));
            let of_x = Tensor::run_backward(&[loss(&later)], &[&given.x], false, false);
            let leaves = [&given.weight, &given.bias].map(Tensor::shallow_clone);
            let left = deferred.take().unwrap().gradients(&leaves).unwrap();
            let found = of_x.into_iter().chain(left.into_iter().flatten());
            for (found, expected) in found.zip(&expected) {
                assert!(found.equal(expected), "{layout:?}, {mode:?}, {kind:?}: {found} for {expected}");
            }
        }
    }
}

#[test]
fn what_does_not_fit_is_an_error() {
    let (x, weight) = (leaf(&[3, IN], Kind::Float), leaf(&[OUT, IN], Kind::Float));
    let of = |x: &Tensor, weight: &Tensor, bias: Option<&Tensor>, layout| {
        sparse_product(x, weight, bias, layout, selection(3, SparseMode::Columns))
            .map_err(|error| error.to_string())
    };
    assert!(of(&x, &weight, None, Layout::OutFirst).is_ok());
    assert!(of(&x, &weight, None, Layout::InFirst).is_err(), "the other layout");
    assert!(of(&x.to_kind(Kind::Double), &weight, None, Layout::OutFirst).is_err(), "another format");
    assert!(of(&x, &weight, Some(&leaf(&[OUT + 1], Kind::Float)), Layout::OutFirst).is_err(), "another bias");
    for (x, weight) in [(&x, &leaf(&[IN], Kind::Float)), (&x.sum(Kind::Float), &weight)] {
        let error = of(x, weight, None, Layout::OutFirst).unwrap_err();
        assert!(error.contains("a product takes rows and a matrix"), "{error}");
    }
}

#[test]
fn no_rows_have_gradients_of_zeros() {
    for mode in MODES {
        let (x, weight) = (leaf(&[0, 4, IN], Kind::Float), leaf(&[OUT, IN], Kind::Float));
        let y = sparse_product(&x, &weight, None, Layout::OutFirst, selection(3, mode)).unwrap();
        assert_eq!(y.size(), [0, 4, OUT]);
        let found = Tensor::run_backward(&[y.sum(Kind::Float)], &[&x, &weight], false, false);
        assert_eq!(found[0].size(), [0, 4, IN]);
        assert_eq!(found[1].abs().sum(Kind::Double).double_value(&[]), 0.0);
    }
}
