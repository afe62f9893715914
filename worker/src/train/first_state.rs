//! The state in which a run starts.

use std::collections::{HashMap, HashSet};

use anyhow::Result;
use longhaul_checkpoint::BaseModel;
use longhaul_common::model::{ModelSpec, draw_parameters, draw_some, magnitude_name};
use longhaul_engine::models::FrozenWeights;

/// Returns the first values of a part's trained tensors, in the order of [`ModelSpec::parameters`], and its frozen ones: from a pretrained model, or from the
/// run's seed. Of the latter are adapters and a new head in any case.
///
/// # Errors
/// The model's files have changed; or libtorch fails.
pub fn first_state(
    base: Option<&BaseModel>,
    (whole, part): (&ModelSpec, &ModelSpec),
    seed: u64,
    device: tch::Device,
) -> Result<(Vec<f32>, FrozenWeights)> {
    let mut frozen = FrozenWeights::of(part, device);
    let Some(base) = base else { return Ok((draw_parameters(part, seed), frozen)) };
    let missing = base.missing(whole)?;
    if part.tuning.is_none() && missing.is_empty() {
        return Ok((base.parameters(whole, part)?, frozen));
    }
    if !missing.is_empty() {
        let tensors = missing.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
        tracing::info!(tensors, "the model has no head for the run's classes: it is drawn");
    }
    // Of frozen and trained tensors: the place of the latter.
    let mut places: HashMap<String, Option<usize>> =
        part.frozen().into_iter().map(|tensor| (tensor.name, None)).collect();
    let mut start = 0;
    for tensor in part.parameters() {
        let count = tensor.count() as usize;
        places.insert(tensor.name, Some(start));
        start += count;
    }
    let stored = whole.untuned().parameters().into_iter().map(|tensor| tensor.name);
    let stored: HashSet<String> = stored.filter(|name| !missing.contains(name)).collect();
    let mut trained = draw_some(part, seed, |name| !stored.contains(name));
    let wanted = |name: &str| stored.contains(name) && places.contains_key(name);
    base.for_each(whole, wanted, |tensor, first, values| {
        match places.get(&tensor.name) {
            Some(Some(start)) => {
                let start = start + first;
                values.write_f32(&mut trained[start..start + values.len()]);
            }
            _ => frozen.write(tensor, first, values)?,
        }
        Ok(())
    })?;
    for name in stored {
        if let Some(Some(start)) = places.get(&magnitude_name(&name)) {
            let lengths = frozen.row_lengths(&name, whole.kind)?;
            trained[*start..start + lengths.len()].copy_from_slice(&lengths);
        }
    }
    Ok((trained, frozen))
}

#[cfg(test)]
mod tests {
    use longhaul_checkpoint::{Companions, ExportType, WholeModel, export};
    use longhaul_common::config::{FrozenFormat, LoraConfig, TrainConfig};
    use longhaul_common::model::is_adapter;
    use longhaul_common::model::tiny::tiny_llama;
    use tch::{Device, Tensor};

    use super::*;

    /// DoRA on all linear modules, beside a trained norm.
    fn tuned(whole: &ModelSpec) -> ModelSpec {
        let lora = LoraConfig {
            rank: 2,
            alpha: None,
            use_rslora: false,
            use_dora: true,
            targets: vec![LoraConfig::ALL_LINEAR.to_owned()],
            dropout: 0.0,
            base: FrozenFormat::F32,
        };
        let unfrozen_parameters = Some(vec!["model.norm.weight".to_owned()]);
        whole
            .clone()
            .tuned(&TrainConfig { lora: Some(lora), unfrozen_parameters, ..TrainConfig::default() })
            .unwrap()
    }

    #[test]
    fn adapters_are_drawn_from_the_seed_and_all_else_comes_from_the_model() {
        let whole = tiny_llama();
        let folder = tempfile::tempdir().unwrap();
        let into = folder.path().join("model");
        let stored = draw_parameters(&whole, 3);
        let (path, companions) = ("it".to_owned(), Companions::default());
        let model = WholeModel { path, spec: whole.clone(), parameters: stored.clone(), companions };
        export(&model, &into, ExportType::F32, u64::MAX, |_, _| {}).unwrap();
        let base = BaseModel::open(&into, |_, _| {}).unwrap();
        let mut of_model = HashMap::new();
        let mut rest = stored.as_slice();
        for tensor in whole.parameters() {
            let (own, others) = rest.split_at(tensor.count() as usize);
            of_model.insert(tensor.name, own);
            rest = others;
        }

        let spec = tuned(&whole);
        let (trained, frozen) = first_state(Some(&base), (&whole, &spec), 7, Device::Cpu).unwrap();
        let (drawn, mut start, mut kinds) = (draw_parameters(&spec, 7), 0, [0; 3]);
        for tensor in spec.parameters() {
            let place = start..start + tensor.count() as usize;
            start = place.end;
            let found = &trained[place.clone()];
            if let Some(own) = of_model.get(tensor.name.as_str()) {
                kinds[0] += 1;
                assert!(found == *own, "{}", tensor.name);
            } else if let Some(of) =
                whole.parameters().iter().find(|of| magnitude_name(&of.name) == tensor.name)
            {
                kinds[1] += 1;
                let lengths = of_model[of.name.as_str()].chunks(of.shape[1] as usize);
                let lengths =
                    lengths.map(|row| row.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt());
                let off = lengths.zip(found).map(|(one, other)| (one - f64::from(*other)).abs() / one);
                assert!(off.fold(0.0, f64::max) < 1e-5, "{}", tensor.name);
            } else {
                kinds[2] += 1;
                assert!(is_adapter(&tensor.name) && found == &drawn[place], "{}", tensor.name);
            }
        }
        assert!(kinds.iter().all(|kind| *kind > 0), "{kinds:?}");
        for tensor in spec.frozen() {
            let found = frozen.values(&tensor.name).unwrap().unwrap().flatten(0, -1);
            assert!(found.equal(&Tensor::from_slice(of_model[tensor.name.as_str()])), "{}", tensor.name);
        }
    }
}
