//! Experts in files: on the hub each has tensors of its own, in the engine those of a layer are one.

use longhaul_common::config::ModelKind;
use longhaul_common::model::{ParameterSpec, is_of_experts};

/// Ends of the names of the matrices of all experts, in the engine and in files that have them as one.
const INNER: &str = "experts.gate_up_proj";
const OUTER: &str = "experts.down_proj";

/// Reports whether a tensor of a file is the matrix of all experts of a layer.
pub(super) fn is_stacked(name: &str) -> bool {
    is_of_experts(name) && (name.ends_with(INNER) || name.ends_with(OUTER))
}

/// Returns the tensors of a file with this parameter, in the order of its values.
pub(super) fn stored(kind: ModelKind, parameter: ParameterSpec) -> Vec<ParameterSpec> {
    let is_mixtral = kind == ModelKind::Mixtral;
    let renamed = |name: &str| match is_mixtral {
        true => name.replace(".mlp.", ".block_sparse_moe."),
        false => name.to_owned(),
    };
    let (end, parts): (&str, &[&str]) = match (parameter.name.as_str(), is_mixtral) {
        (name, true) if name.ends_with(INNER) => (INNER, &["w1", "w3"]),
        (name, true) if name.ends_with(OUTER) => (OUTER, &["w2"]),
        (name, false) if name.ends_with(INNER) => (INNER, &["gate_proj", "up_proj"]),
        (name, false) if name.ends_with(OUTER) => (OUTER, &["down_proj"]),
        (name, _) => return vec![ParameterSpec { name: renamed(name), ..parameter }],
    };
    let [count, rows, columns] = parameter.shape[..] else { return vec![parameter] };
    let layer = renamed(parameter.name.strip_suffix(end).unwrap_or_default());
    let shape = vec![rows / parts.len() as u64, columns];
    let of_expert = |expert: u64| {
        let (parameter, layer, shape) = (&parameter, &layer, &shape);
        parts.iter().map(move |part| ParameterSpec {
            name: format!("{layer}experts.{expert}.{part}.weight"),
            shape: shape.clone(),
            ..parameter.clone()
        })
    };
    (0..count).flat_map(of_expert).collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use longhaul_common::model::tiny::tiny_decoders;
    use longhaul_common::model::{ModelSpec, draw_parameters};
    use safetensors::{Dtype, SafeTensors, serialize_to_file};

    use super::*;
    use crate::{BaseModel, MODEL_CONFIG, model_config, tensors};

    fn write(folder: &Path, spec: &ModelSpec) {
        tensors::write_model(&folder.join("model.safetensors"), spec, &draw_parameters(spec, 3)).unwrap();
        std::fs::write(folder.join(MODEL_CONFIG), model_config::to_json(spec).to_string()).unwrap();
    }

    /// Joins the tensors of a layer's experts as `torch.stack` and `torch.cat` do.
    fn stack(path: &Path, spec: &ModelSpec) {
        let bytes = std::fs::read(path).unwrap();
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let mut joined = Vec::new();
        for parameter in spec.parameters() {
            let parts = stored(spec.kind, parameter.clone());
            let data: Vec<u8> =
                parts.iter().flat_map(|part| file.tensor(&part.name).unwrap().data().to_vec()).collect();
            let shape = parameter.shape.iter().map(|size| *size as usize).collect();
            joined.push((parameter.name, (shape, data)));
        }
        let views: Vec<_> = joined
            .iter()
            .map(|(name, (shape, data)): &(String, (Vec<usize>, Vec<u8>))| {
                (name, safetensors::tensor::TensorView::new(Dtype::F32, shape.clone(), data).unwrap())
            })
            .collect();
        serialize_to_file(views, None, path).unwrap();
    }

    #[test]
    fn experts_are_read_one_by_one_and_as_one_tensor() {
        for spec in tiny_decoders().into_iter().filter(|spec| spec.kind.usual_experts().is_some()) {
            let folder = tempfile::tempdir().unwrap();
            write(folder.path(), &spec);
            let path = folder.path().join("model.safetensors");
            let names = |path: &Path| {
                let bytes = std::fs::read(path).unwrap();
                let names = SafeTensors::deserialize(&bytes).unwrap();
                names.names().into_iter().map(str::to_owned).collect::<Vec<_>>()
            };
            let of_hub = match spec.kind {
                ModelKind::Mixtral => "model.layers.1.block_sparse_moe.experts.3.w2.weight",
                ModelKind::Olmoe => "model.layers.1.mlp.experts.3.down_proj.weight",
                _ => "model.layers.0.mlp.experts.4.up_proj.weight",
            };
            assert!(names(&path).iter().any(|name| name == of_hub), "{:?}", names(&path));
            let read =
                || BaseModel::open(folder.path(), |_, _| {}).unwrap().parameters(&spec, &spec).unwrap();
            let expected = draw_parameters(&spec, 3);
            assert!(read() == expected, "{:?}", spec.kind);
            stack(&path, &spec);
            assert!(names(&path).iter().any(|name| is_stacked(name)));
            assert!(read() == expected, "{:?}, as one", spec.kind);
        }
    }
}
