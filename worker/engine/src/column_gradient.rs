//! Gradients whose matrices consist of the columns computed by backward passes.

use std::collections::BTreeMap;

use longhaul_proto::codec::{ColumnGradient, WeightColumns};
use tch::Kind;

use super::gradient::{Sum, outcome, places};
use super::host::HostLink;
use super::{Engine, EngineError, StepOutcome};
use crate::Batch;
use crate::models::Columns;

impl Engine {
    /// Switches to gradients of columns ([`Self::column_gradient`]) alone, if `[train.sparse_backward]` keeps some.
    ///
    /// # Errors
    /// libtorch fails.
    pub fn collect_columns(&mut self) -> Result<(), EngineError> {
        self.settings.collects = true;
        self.build_chunks()
    }

    /// Returns the gradient of the mean loss over `batch`, unclipped: of each product's weight the columns chosen by any micro-batch, and all of the rest. No
    /// tensor and no vector of such a weight's size is made.
    ///
    /// # Errors
    /// Gradients are not of columns; or libtorch fails.
    pub fn column_gradient(&self, batch: &Batch) -> Result<(StepOutcome, ColumnGradient), EngineError> {
        let Some(sparse) = self.settings.sparse.as_ref().filter(|_| self.settings.collects) else {
            return Err(EngineError::Part);
        };
        let places = places(self.parameters.views());
        let products = self.spec.column_products(sparse).into_iter();
        let by_name: BTreeMap<String, _> =
            products.map(|(product, by_column)| (product.weight.clone(), (product, by_column))).collect();
        let mut weights = BTreeMap::new();
        for (at, tensor) in self.spec.parameters().iter().enumerate() {
            if let Some((product, by_column)) = by_name.get(&tensor.name) {
                let (columns, rows) = (product.outputs as u32, product.inputs as u32);
                let (place, values) = (places[at].clone(), BTreeMap::new());
                weights.insert(at, WeightColumns { place, columns, rows, by_column: *by_column, values });
            }
        }
        let chunk = self.whole_chunk()?;
        let mut sums: Vec<_> = self.parameters.views().iter().map(|_| Sum::default()).collect();
        let (mut shares, mut samples) = (Vec::new(), Vec::new());
        for micro in batch.micro_batches(self.settings.micro_batch) {
            let targets = self.targets(batch.losses(), &micro)?;
            let tokens = targets.tokens.f_narrow(1, 0, micro.length() as i64)?;
            let data = self.pass_data(batch.losses(), &micro)?;
            let (loss, kept) = chunk.forward(&tokens, Some(targets), data)?;
            samples.extend(kept.losses());
            shares.push(loss);
            let gradients = chunk.backward(kept, None)?;
            for (sum, gradient) in sums.iter_mut().zip(&gradients.tensors) {
                gradient.iter().try_for_each(|gradient| sum.add(gradient))?;
            }
            let left = gradients.left.ok_or(EngineError::Part)?;
            for (at, (columns, values)) in chunk.columns(&left)? {
                if let Some(weight) = weights.get_mut(&at) {
                    add(weight, &(columns, values), &self.link)?;
                }
            }
        }
        let mut rest = Vec::new();
        for (at, (sum, place)) in sums.into_iter().zip(&places).enumerate() {
            if weights.contains_key(&at) {
                continue;
            }
            let mut values = vec![0.0; place.len()];
            if let Some(sum) = sum.into_tensor() {
                self.link.read_all(&sum, &mut values)?;
            }
            rest.push((place.start, values));
        }
        let gradient =
            ColumnGradient { len: self.parameter_count(), rest, weights: weights.into_values().collect() };
        let outcome = outcome(batch, &shares, &samples)?;
        let gradient_norm = (outcome.tokens > 0).then(|| gradient.norm() as f32);
        Ok((StepOutcome { gradient_norm, ..outcome }, gradient))
    }
}

fn add(weight: &mut WeightColumns, (columns, values): &Columns, link: &HostLink) -> Result<(), EngineError> {
    let columns = Vec::<i64>::try_from(columns.f_to_kind(Kind::Int64)?)?;
    let mut host = Vec::new();
    link.read_all(&values.f_contiguous()?, &mut host)?;
    weight.add(&columns, &host);
    Ok(())
}

#[cfg(test)]
mod tests;
