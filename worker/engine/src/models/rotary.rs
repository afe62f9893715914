//! Rotary positions (Su et al. 2021, arXiv 2104.09864), with a table for each kind of layer.

use std::ops::Range;

use longhaul_common::config::RopeScaling;
use longhaul_common::model::{Decoder, Rotary};
use tch::{Device, TchError, Tensor};

use super::documents::Documents;

/// The tables of a model, or of some of its layers.
#[derive(Debug)]
pub(super) struct TurnTables {
    kinds: Vec<Kind>,
    /// By layer, from the first one here: index of its kind; `None`: it has no positions.
    of_layers: Vec<Option<usize>>,
    first_layer: u32,
}

/// A kind of positions.
#[derive(Debug)]
struct Kind {
    rotary: Rotary,
    table: Table,
    /// For sequences up to so many tokens: other frequencies.
    short: Option<(i64, Table)>,
}

/// Cosines and sines of all positions, each [C, W] for the W channels that turn, the two halves of W alike.
#[derive(Debug)]
struct Table {
    cos: Tensor,
    sin: Tensor,
}

/// The positions of a pass.
#[derive(Debug)]
pub(super) struct Turns<'a> {
    kinds: Vec<Table>,
    tables: &'a TurnTables,
}

impl TurnTables {
    pub(super) fn new(
        of: &Decoder,
        context: u32,
        layers: Range<u32>,
        device: Device,
    ) -> Result<Self, TchError> {
        let (mut kinds, mut of_layers) = (Vec::<Kind>::new(), Vec::new());
        for layer in layers.clone() {
            let Some(rotary) = of.rotary_of(layer) else {
                of_layers.push(None);
                continue;
            };
            let known = kinds.iter().position(|kind| kind.rotary == *rotary);
            let at = match known {
                Some(at) => at,
                None => {
                    kinds.push(Kind::new(rotary, of.rotary_width, context, device)?);
                    kinds.len() - 1
                }
            };
            of_layers.push(Some(at));
        }
        Ok(Self { kinds, of_layers, first_layer: layers.start })
    }

    /// Returns those of the `length` positions from `start` on.
    pub(super) fn positions(&self, start: i64, length: i64) -> Result<Turns<'_>, TchError> {
        let kinds = self.kinds.iter().map(|kind| kind.table(start + length).narrow(start, length));
        Ok(Turns { kinds: kinds.collect::<Result<_, _>>()?, tables: self })
    }

    /// Returns those of the tokens of documents.
    pub(super) fn within(&self, documents: &Documents) -> Result<Turns<'_>, TchError> {
        let positions = documents.positions(); // [B, T]
        let kinds = self.kinds.iter().map(|kind| kind.table(positions.size()[1]).gathered(positions));
        Ok(Turns { kinds: kinds.collect::<Result<_, _>>()?, tables: self })
    }
}

impl Kind {
    fn new(rotary: &Rotary, width: u32, context: u32, device: Device) -> Result<Self, TchError> {
        let table = |positions: u32, length: u32| {
            let (frequencies, scale) = rotary.frequencies(width, context, length);
            Table::new(&frequencies, scale, positions, device)
        };
        let short = match &rotary.scaling {
            Some(RopeScaling::LongRope { original, .. }) if context > *original => {
                Some((i64::from(*original), table(*original, *original)?))
            }
            _ => None,
        };
        Ok(Self { rotary: rotary.clone(), table: table(context, context)?, short })
    }

    /// Returns the table for sequences of this length.
    fn table(&self, length: i64) -> &Table {
        let short = self.short.as_ref().filter(|(longest, _)| length <= *longest);
        short.map_or(&self.table, |(_, table)| table)
    }
}

impl Table {
    fn new(frequencies: &[f64], scale: f64, positions: u32, device: Device) -> Result<Self, TchError> {
        let table = |function: fn(f64) -> f64| {
            let values: Vec<f32> = (0..positions)
                .flat_map(|position| {
                    let value =
                        move |frequency: &f64| (scale * function(f64::from(position) * frequency)) as f32;
                    frequencies.iter().chain(frequencies).map(value)
                })
                .collect();
            Tensor::f_from_slice(&values)?.f_view([-1, 2 * frequencies.len() as i64])?.f_to_device(device)
        };
        Ok(Self { cos: table(f64::cos)?, sin: table(f64::sin)? })
    }

    fn narrow(&self, start: i64, length: i64) -> Result<Self, TchError> {
        Ok(Self { cos: self.cos.f_narrow(0, start, length)?, sin: self.sin.f_narrow(0, start, length)? })
    }

    /// Returns the rows of these positions [B, T]: [B, 1, T, W].
    fn gathered(&self, positions: &Tensor) -> Result<Self, TchError> {
        let [batch, length] = positions.size()[..] else {
            return Err(TchError::Shape(format!("positions have two dimensions, not {positions:?}")));
        };
        let rows = |table: &Tensor| {
            table.f_index_select(0, &positions.f_reshape([-1])?)?.f_view([batch, 1, length, -1])
        };
        Ok(Self { cos: rows(&self.cos)?, sin: rows(&self.sin)? })
    }

    /// Rotates channel i of each head against channel i + W/2 by the position's angle; channels behind W stay. x: [B, heads, T, E].
    fn turn(&self, x: &Tensor) -> Result<Tensor, TchError> {
        let [width, all] = [&self.cos, x].map(|of| of.size().last().copied().unwrap_or_default());
        if width < all {
            let parts = [self.turn(&x.f_narrow(-1, 0, width)?)?, x.f_narrow(-1, width, all - width)?];
            return Tensor::f_cat(&parts, -1);
        }
        let halves = x.f_chunk(2, -1)?; // 2 × [B, heads, T, W/2]
        let turned = Tensor::f_cat(&[halves[1].f_neg()?, halves[0].shallow_clone()], -1)?; // [B, heads, T, E]
        x.f_mul(&self.cos)?.f_add(&turned.f_mul(&self.sin)?) // [B, heads, T, E]
    }
}

impl Turns<'_> {
    /// Turns the queries or keys of a layer by their positions. x: [B, heads, T, E].
    pub(super) fn turn(&self, layer: u32, x: &Tensor) -> Result<Tensor, TchError> {
        let at =
            layer.checked_sub(self.tables.first_layer).and_then(|at| self.tables.of_layers.get(at as usize));
        match at.copied().flatten() {
            Some(kind) => self.kinds[kind].turn(x),
            None => Ok(x.shallow_clone()),
        }
    }
}
