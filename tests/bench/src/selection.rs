//! Seconds of a back-propagation with some of its gradients, compared with all.

use std::num::NonZeroU32;

use anyhow::{Context, Result};
use longhaul_common::config::SparseMode;
use longhaul_engine::models::{Layout, Selection, sparse_product};
use longhaul_engine::{count_multiplications, keep_freed_memory};
use tch::{Device, Kind, TchError, Tensor};

use crate::kit::args::Quick;
use crate::kit::clock::seconds_of;
use crate::kit::figures::figure;
use crate::kit::recorder::Recorder;
use crate::kit::stats::{in_turns, median};

/// Backward passes before the measured ones: the first allocate.
const WARM_UP: i64 = 3;

/// Back-propagation with some of its gradients
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    quick: Quick,
}

/// Measures two networks, in two layouts of their weights.
pub fn run(args: &Args) -> Result<()> {
    keep_freed_memory();
    tch::set_num_threads(1);
    let passes = args.quick.choose(10, 300);
    // The three hidden layers of the paper's table 4, on images of 28 × 28, and its k.
    for (layout, name) in [(Layout::InFirst, "[in, out]"), (Layout::OutFirst, "[out, in]")] {
        let case = format!("mlp 3×500 {name} b50 k80");
        Network::new(&[784, 500, 500, 500], 10, layout, 50)?.bench(&case, 80, passes)?;
        let case = format!("768→3072 {name} b512 6 %");
        Network::new(&[768, 3072], 0, layout, 512)?.bench(&case, 184, passes / 5)?;
    }
    Ok(())
}

/// Layers with biases and rectifiers between them.
struct Network {
    layers: Vec<[Tensor; 2]>,
    /// The layer after them, whose gradient is never cut.
    head: Option<Tensor>,
    layout: Layout,
    x: Tensor,
    /// dy of a loss that is a sum of products with them.
    gradient: Tensor,
}

impl Network {
    /// Creates a network of these widths, with this many classes; 0: no head, and the input's gradient is
    /// also computed, as within a model.
    fn new(widths: &[i64], classes: i64, layout: Layout, batch: i64) -> Result<Self, TchError> {
        tch::manual_seed(1);
        let layer = |pair: &[i64]| {
            let sizes = if layout == Layout::InFirst { [pair[0], pair[1]] } else { [pair[1], pair[0]] };
            Ok::<_, TchError>([leaf(&sizes, 0.05)?, leaf(&[pair[1]], 0.0)?])
        };
        let layers = widths.windows(2).map(layer).collect::<Result<_, TchError>>()?;
        let last = widths.last().copied().unwrap_or_default();
        let head = (classes > 0).then(|| leaf(&[last, classes], 0.05)).transpose()?;
        let out = if classes > 0 { classes } else { last };
        Ok(Self {
            layers,
            layout,
            x: leaf(&[batch, widths[0]], 1.0)?.f_set_requires_grad(head.is_none())?,
            head,
            gradient: leaf(&[batch, out], 1.0)?.f_detach()?,
        })
    }

    /// `None`: libtorch's own products.
    fn loss(&self, selection: Option<Selection>) -> Result<Tensor, TchError> {
        let mut x = self.x.shallow_clone();
        for [weight, bias] in &self.layers {
            let y = match (selection, self.layout) {
                (Some(selection), layout) => sparse_product(&x, weight, Some(bias), layout, selection)?,
                (None, Layout::InFirst) => bias.f_addmm(&x, weight)?,
                (None, Layout::OutFirst) => x.f_linear(weight, Some(bias))?,
            };
            x = if self.head.is_some() { y.f_relu()? } else { y };
        }
        if let Some(head) = &self.head {
            x = x.f_matmul(head)?;
        }
        x.f_mul(&self.gradient)?.f_sum(Kind::Float)
    }

    /// Returns the seconds of a backward pass.
    fn backward(&self, selection: Option<Selection>) -> Result<f64> {
        let loss = self.loss(selection)?;
        seconds_of(|| {
            Tensor::f_run_backward(&[&loss], &self.leaves(), false, false)?;
            Ok(())
        })
    }

    fn leaves(&self) -> Vec<&Tensor> {
        let input = self.head.is_none().then_some(&self.x);
        self.layers.iter().flatten().chain(&self.head).chain(input).collect()
    }

    fn bench(&self, case: &str, kept: u32, passes: i64) -> Result<()> {
        let kept = NonZeroU32::new(kept).context("a column at least")?;
        let [columns, rows] = [SparseMode::Columns, SparseMode::Rows].map(|mode| Selection::new(kept, mode));
        let ways = [("all", None), ("columns", Some(columns)), ("rows", Some(rows))];
        let seconds = in_turns(&ways, -WARM_UP..passes, |(_, selection), _| self.backward(*selection))?;
        let medians: Vec<f64> = seconds.iter().map(|seconds| median(seconds)).collect();
        let all = self.multiplications(None)?;
        let recorder = Recorder::new("selection/sparse").with("passes", passes);
        for ((way, selection), backward_s) in ways.iter().zip(&medians) {
            let flops_ratio = self.multiplications(*selection)? / all;
            let figures = [
                figure("backward_ms", backward_s * 1e3, "ms"),
                figure("flops_ratio", flops_ratio, "ratio"),
                figure("speedup", medians[0] / backward_s, "ratio"),
            ];
            recorder.print_all(&format!("{case}: {way}"), figures);
        }
        Ok(())
    }

    /// Counts the multiplications of a backward pass.
    fn multiplications(&self, selection: Option<Selection>) -> Result<f64, TchError> {
        let loss = self.loss(selection)?;
        let backward = || Tensor::f_run_backward(&[&loss], &self.leaves(), false, false);
        Ok(count_multiplications(backward)?.1 as f64)
    }
}

fn leaf(sizes: &[i64], deviation: f64) -> Result<Tensor, TchError> {
    let values = Tensor::f_randn(sizes, (Kind::Float, Device::Cpu))?;
    values.f_mul_scalar(deviation)?.f_set_requires_grad(true)
}
