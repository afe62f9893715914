//! Training of some of a model's parameters: adapters beside frozen weights, or chosen tensors alone.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::experts::is_of_experts;
use super::meant::matches;
use super::parameters::{InBlock, in_model_order};
use super::shard::Cut;
use super::{Initial, ModelSpec, ParameterSpec, Product};
use crate::config::{ConfigError, FrozenFormat, LoraConfig, ModelKind, TrainConfig};

/// The trained part of a model; the rest is frozen.
#[derive(Clone, Debug, PartialEq)]
pub struct Tuning {
    /// Adapters.
    pub lora: Option<Lora>,
    /// Patterns of the names of trained tensors.
    pub unfrozen: Vec<String>,
    /// Format of the frozen matrices.
    pub base: FrozenFormat,
}

/// Adapters: beside x·Wᵀ, scale·(x·Aᵀ)·Bᵀ with A [rank, in] and B [out, rank] (Hu et al. 2021, arXiv 2106.09685).
#[derive(Clone, Debug, PartialEq)]
pub struct Lora {
    /// Rank.
    pub rank: u32,
    /// Numerator of the factor.
    pub alpha: f64,
    /// Whether the root of the rank divides it, and not the rank.
    pub use_rslora: bool,
    /// Whether the lengths of rows are trained as well.
    pub use_dora: bool,
    /// Dropout of its inputs.
    pub dropout: f64,
    /// Names of the adapted weights.
    pub weights: Vec<String>,
}

impl Eq for Tuning {}

/// End of a weight's name, and that of its adapters' names.
const WEIGHT: &str = ".weight";

/// Modules of feed-forward parts and routers. In models with experts, PEFT 0.21 adapts the matrices of all experts for these.
const OF_EXPERTS: [&str; 10] =
    ["experts", "gate", "gate_proj", "up_proj", "down_proj", "gate_up_proj", "mlp", "w1", "w2", "w3"];

/// The names of an adapter's matrices A and B, for the name of the adapted weight.
#[must_use]
pub fn adapter_names(weight: &str) -> [String; 2] {
    let module = module_of(weight);
    ["A", "B"].map(|part| format!("{module}.lora_{part}{WEIGHT}"))
}

/// The name of an adapter's trained lengths of rows, for the name of the adapted weight.
#[must_use]
pub fn magnitude_name(weight: &str) -> String {
    format!("{}.lora_magnitude_vector", module_of(weight))
}

/// Returns the module of a tensor's name.
#[must_use]
pub fn module_of(name: &str) -> &str {
    name.rsplit_once('.').map_or(name, |(module, _)| module)
}

/// Whether a tensor is part of an adapter.
#[must_use]
pub fn is_adapter(name: &str) -> bool {
    name.contains(".lora_")
}

impl ModelSpec {
    /// Returns the same model with all of its own parameters trained, and no adapters.
    #[must_use]
    pub fn untuned(&self) -> Self {
        Self { tuning: None, ..self.clone() }
    }

    /// Returns the frozen tensors that this part computes with, in model order.
    #[must_use]
    pub fn frozen(&self) -> Vec<ParameterSpec> {
        let Some(tuning) = &self.tuning else { return Vec::new() };
        let all = in_model_order(self).into_iter().filter(|(_, tensor)| !tuning.trains(&tensor.name));
        // A tied embedding is the output projection as well.
        let tied = self.tied_embeddings.then(|| self.output_projection());
        let is_here =
            |block: u32, name: &str| self.holds(block) || tied == Some(name) && self.holds(self.head());
        all.filter(|(block, tensor)| is_here(*block, &tensor.name)).map(|(_, tensor)| tensor).collect()
    }

    /// Returns the names of weights that are matrices of products, and nothing else.
    #[must_use]
    pub fn multiplied(&self) -> BTreeSet<String> {
        let is_embedding = |weight: &str| self.tied_embeddings && weight == self.output_projection();
        let weights = self.products().into_iter().map(|product| product.weight);
        weights.filter(|weight| !is_embedding(weight)).collect()
    }

    /// Whether the output projection is tied to a token embedding that is trained.
    #[must_use]
    pub fn ties_trained_embedding(&self) -> bool {
        let is_trained = |tuning: &Arc<Tuning>| tuning.trains(self.output_projection());
        self.tied_embeddings && self.tuning.as_ref().is_none_or(is_trained)
    }

    /// Returns the scale of this weight's adapter; `None`: it has none.
    #[must_use]
    pub fn adapter_scale(&self, weight: &str) -> Option<f64> {
        let lora = self.tuning.as_ref()?.lora.as_ref()?;
        lora.weights.iter().any(|adapted| adapted == weight).then(|| lora.scale())
    }

    /// Returns the trained tensors with their blocks, from the embedding to the output projection.
    pub(super) fn trained_in_model_order(&self) -> Vec<InBlock> {
        let all = in_model_order(self);
        let Some(tuning) = &self.tuning else { return all };
        let mut trained = Vec::new();
        let products = if tuning.lora.is_some() { self.products() } else { Vec::new() };
        for (block, tensor) in all {
            let adapter = products.iter().find(|product| product.weight == tensor.name);
            let adapter = adapter.filter(|product| self.adapter_scale(&product.weight).is_some());
            if tuning.trains(&tensor.name) {
                trained.push((block, tensor));
            }
            if let (Some(product), Some(lora)) = (adapter, &tuning.lora) {
                trained.extend(lora.tensors(product).map(|tensor| (block, tensor)));
            }
        }
        trained
    }

    /// Returns the model with the configured part trained.
    ///
    /// # Errors
    /// Names a pattern that no tensor has, or a choice that adapters do not support.
    pub fn tuned(mut self, train: &TrainConfig) -> Result<Self, ConfigError> {
        if train.lora.is_none() && train.unfrozen_parameters.is_none() {
            return Ok(self);
        }
        let lora = train.lora.as_ref().map(|config| self.lora(config)).transpose()?;
        let unfrozen = train.unfrozen_parameters.clone().unwrap_or_default();
        let names: Vec<String> = in_model_order(&self).into_iter().map(|(_, tensor)| tensor.name).collect();
        for pattern in &unfrozen {
            if !names.iter().any(|name| matches(pattern, name)) {
                let reason = format!("no tensor has such a name; names are {}", examples(&names));
                return Err(ConfigError::value("train.unfrozen_parameters", pattern, reason));
            }
        }
        let base = train.lora.as_ref().map_or(FrozenFormat::F32, |lora| lora.base);
        self.tuning = Some(Arc::new(Tuning { lora, unfrozen, base }));
        self.check_whole_modules()?;
        Ok(self)
    }

    /// Refuses trained tensors beside adapters that an adapter's file cannot hold: it has whole modules, and none with an adapter.
    fn check_whole_modules(&self) -> Result<(), ConfigError> {
        let Some(tuning) = self.tuning.as_ref().filter(|tuning| tuning.lora.is_some()) else { return Ok(()) };
        let all = in_model_order(self);
        for (_, tensor) in all.iter().filter(|(_, tensor)| tuning.trains(&tensor.name)) {
            if is_of_experts(&tensor.name) {
                let reason =
                    "experts cannot be trained beside adapters: leave them out, or remove [train.lora]";
                return Err(ConfigError::value("train.unfrozen_parameters", &tensor.name, reason));
            }
            let module = module_of(&tensor.name);
            let mut of_module =
                all.iter().map(|(_, other)| &other.name).filter(|name| module_of(name) == module);
            if self.tied_embeddings && tensor.name == self.output_projection() {
                let reason = "is the output projection as well, which PEFT's files leave as it was: beside adapters, leave it frozen";
                return Err(ConfigError::value("train.unfrozen_parameters", &tensor.name, reason));
            }
            let is_adapted = self.adapter_scale(&format!("{module}{WEIGHT}")).is_some();
            if is_adapted || of_module.any(|name| !tuning.trains(name)) {
                let reason = format!(
                    "beside adapters, whole modules without one are trained: name \"{module}.*\" and leave it out of train.lora.targets"
                );
                return Err(ConfigError::value("train.unfrozen_parameters", &tensor.name, reason));
            }
        }
        Ok(())
    }

    /// Refuses targets that PEFT takes for experts or routers as well, whose adapters it stores under names of their own.
    fn check_adapts_no_experts(&self, config: &LoraConfig) -> Result<(), ConfigError> {
        if self.decoder.as_ref().is_none_or(|of| of.experts.is_none()) {
            return Ok(());
        }
        let of_experts = |target: &&String| {
            let last = target.rsplit('.').next().unwrap_or_default();
            *target == LoraConfig::ALL_LINEAR || OF_EXPERTS.contains(&last)
        };
        let codes = match config.base {
            FrozenFormat::Int8 => Some("int8"),
            FrozenFormat::Nf4 => Some("nf4"),
            FrozenFormat::F32 | FrozenFormat::Bf16 => None,
        };
        if let Some(codes) = codes {
            let reason = "has no codes for experts, which are most of the model: take \"bf16\"";
            return Err(ConfigError::value("train.lora.base", codes, reason));
        }
        match config.targets.iter().find(of_experts) {
            Some(target) => {
                let reason = "means experts and routers as well, which have no adapters here: name modules of attention, such as q_proj, k_proj, v_proj and o_proj";
                Err(ConfigError::value("train.lora.targets", target, reason))
            }
            None => Ok(()),
        }
    }

    fn lora(&self, config: &LoraConfig) -> Result<Lora, ConfigError> {
        if self.kind == ModelKind::Phi3 {
            let reason = "Phi-3 files join the matrices of queries, keys and values, which share adapters there: not supported; take unfrozen_parameters";
            return Err(ConfigError::value("train.lora.rank", config.rank, reason));
        }
        self.check_adapts_no_experts(config)?;
        // A tied output projection is the embedding.
        let can_be = |weight: &String| !self.tied_embeddings || *weight != self.output_projection();
        let linear = self.products().into_iter().map(|product| product.weight);
        let linear: Vec<String> = linear.filter(can_be).collect();
        let mut weights = Vec::new();
        for target in &config.targets {
            let of_target = |weight: &&String| {
                let module = module_of(weight);
                match target == LoraConfig::ALL_LINEAR {
                    true => *weight != self.output_projection(),
                    false => module == target || module.ends_with(&format!(".{target}")),
                }
            };
            let before = weights.len();
            weights.extend(linear.iter().filter(of_target).cloned());
            if weights.len() == before {
                let reason = format!(
                    "no linear module has such a name; modules are {}",
                    examples(&linear.iter().map(|name| module_of(name).to_owned()).collect::<Vec<_>>())
                );
                return Err(ConfigError::value("train.lora.targets", target, reason));
            }
        }
        weights.sort_unstable();
        weights.dedup();
        Ok(Lora {
            rank: config.rank,
            alpha: config.alpha(),
            use_rslora: config.use_rslora,
            use_dora: config.use_dora,
            dropout: config.dropout,
            weights,
        })
    }
}

impl Tuning {
    /// Whether a tensor of the model is trained itself.
    #[must_use]
    pub fn trains(&self, name: &str) -> bool {
        self.unfrozen.iter().any(|pattern| matches(pattern, name))
    }
}

impl Lora {
    /// Returns the factor of an adapter's product: α / rank, or α / √rank.
    #[must_use]
    pub fn scale(&self) -> f64 {
        let rank = f64::from(self.rank);
        self.alpha / if self.use_rslora { rank.sqrt() } else { rank }
    }

    /// Returns A and B of a product, initialised as in PEFT: A uniformly within ±1/√in, B with zeros. The lengths of rows begin as those of the weight,
    /// which whoever has it fills in.
    fn tensors(&self, product: &Product) -> impl Iterator<Item = ParameterSpec> + use<> {
        let [a, b] = adapter_names(&product.weight);
        let rank = u64::from(self.rank);
        let bound = (product.inputs as f64).sqrt().recip();
        let tensor = |name, shape, initial| ParameterSpec { name, shape, cut: Cut::Replicated, initial };
        let magnitude = magnitude_name(&product.weight);
        let magnitude = self.use_dora.then(|| tensor(magnitude, vec![product.outputs], Initial::Ones));
        [
            tensor(a, vec![rank, product.inputs], Initial::Uniform { bound }),
            tensor(b, vec![product.outputs, rank], Initial::Zeros),
        ]
        .into_iter()
        .chain(magnitude)
    }
}

/// Returns a few different names, those of layers without the layer.
fn examples(names: &[String]) -> String {
    const NAMED_MAX: usize = 12;
    let mut ends: Vec<&str> = Vec::new();
    for name in names {
        let number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
        let layer = name.split('.').find(|part| number(part));
        let end = layer
            .and_then(|layer| name.split_once(&format!(".{layer}.")))
            .map_or(name.as_str(), |(_, end)| end);
        if !ends.contains(&end) && ends.len() < NAMED_MAX {
            ends.push(end);
        }
    }
    ends.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{ParallelConfig, Precision};
    use crate::model::tiny::{tiny_decoders, tiny_gpt2, tiny_llama};

    fn config(targets: &[&str]) -> LoraConfig {
        let targets = targets.iter().map(|target| (*target).to_owned()).collect();
        LoraConfig {
            rank: 2,
            alpha: Some(6.0),
            use_rslora: false,
            targets,
            use_dora: false,
            dropout: 0.0,
            base: FrozenFormat::F32,
        }
    }

    fn tuned(
        spec: ModelSpec,
        lora: Option<LoraConfig>,
        unfrozen: Option<&[&str]>,
    ) -> Result<ModelSpec, String> {
        let unfrozen_parameters = unfrozen.map(|names| names.iter().map(|name| (*name).to_owned()).collect());
        let train = TrainConfig { lora, unfrozen_parameters, ..TrainConfig::default() };
        spec.tuned(&train).map_err(|error| error.to_string())
    }

    fn names(parameters: Vec<ParameterSpec>) -> Vec<String> {
        parameters.into_iter().map(|tensor| tensor.name).collect()
    }

    #[test]
    fn adapters_are_trained_and_everything_else_is_frozen() {
        for spec in
            tiny_decoders().into_iter().chain([tiny_gpt2()]).filter(|spec| spec.kind != ModelKind::Phi3)
        {
            let targets: &[&str] = match spec.kind.usual_experts() {
                Some(_) => &["q_proj", "k_proj", "v_proj", "o_proj"],
                None => &["all-linear"],
            };
            let of = tuned(spec.clone(), Some(config(targets)), None).unwrap();
            let trained = of.parameters();
            let is_adapted = |weight: &str| {
                weight != spec.output_projection()
                    && (spec.kind.usual_experts().is_none() || weight.contains("self_attn"))
            };
            let linear = spec.products().iter().filter(|product| is_adapted(&product.weight)).count();
            assert_eq!(trained.len(), 2 * linear, "{:?}", spec.kind);
            assert!(trained.iter().all(|tensor| tensor.name.contains(".lora_")));
            let mut frozen = names(of.frozen());
            let mut all = names(spec.parameters());
            frozen.sort_unstable();
            all.sort_unstable();
            assert_eq!(frozen, all);
            assert_eq!(of.untuned(), spec);
            let blocks = of.blocks(8, Precision::F32);
            assert_eq!(blocks.iter().map(|block| block.parameters).sum::<u64>(), of.parameter_count());
            assert_eq!(
                blocks.iter().map(|block| block.frozen_bytes).sum::<u64>(),
                4 * spec.parameter_count()
            );
        }
    }

    #[test]
    fn chosen_modules_and_tensors_are_trained_with_the_scale_that_was_asked_for() {
        let spec =
            tuned(tiny_llama(), Some(config(&["q_proj", "v_proj"])), Some(&["model.norm.weight"])).unwrap();
        let trained = names(spec.parameters());
        assert_eq!(trained.len(), 4 * spec.layers as usize + 1);
        assert!(trained.contains(&"model.layers.1.self_attn.v_proj.lora_B.weight".to_owned()));
        assert_eq!(trained.last().map(String::as_str), Some("model.norm.weight"));
        assert_eq!(spec.adapter_scale("model.layers.0.self_attn.q_proj.weight"), Some(3.0));
        assert_eq!(spec.adapter_scale("model.layers.0.self_attn.k_proj.weight"), None);
        let root = LoraConfig { use_rslora: true, ..config(&["q_proj"]) };
        let of_root = tuned(tiny_llama(), Some(root), None).unwrap();
        let scale = of_root.adapter_scale("model.layers.0.self_attn.q_proj.weight").unwrap();
        assert!((scale - 6.0 / 2.0_f64.sqrt()).abs() < 1e-12);
        assert_eq!(LoraConfig { alpha: None, ..config(&["q_proj"]) }.alpha(), 4.0);
        // BitFit (Ben Zaken et al. 2021).
        let biases = tuned(tiny_gpt2(), None, Some(&["*.bias"])).unwrap();
        assert!(biases.parameters().iter().all(|tensor| tensor.name.ends_with(".bias")));
        assert_eq!(biases.parameters().len() + biases.frozen().len(), tiny_gpt2().parameters().len());
    }

    /// PEFT 0.21 takes these for the experts as well (`target_parameters`).
    #[test]
    fn adapters_of_experts_are_refused_by_name() {
        for spec in tiny_decoders().into_iter().filter(|spec| spec.kind.usual_experts().is_some()) {
            for target in ["all-linear", "gate", "mlp.gate_proj", "w1", "experts"] {
                let error = tuned(spec.clone(), Some(config(&["q_proj", target])), None).unwrap_err();
                let told = format!("train.lora.targets = {target}: means experts and routers as well");
                assert!(error.starts_with(&told), "{error}");
            }
            for base in [FrozenFormat::Int8, FrozenFormat::Nf4] {
                let error = tuned(spec.clone(), Some(LoraConfig { base, ..config(&["q_proj"]) }), None);
                assert!(error.unwrap_err().contains("has no codes for experts"), "{base:?}");
            }
            let beside = tuned(spec.clone(), Some(config(&["q_proj"])), Some(&["*.experts.*"])).unwrap_err();
            assert!(beside.contains("gate_up_proj: experts cannot be trained beside"), "{beside}");
            let routers = tuned(spec, None, Some(&["*.mlp.gate.weight"])).unwrap();
            assert!(routers.parameters().iter().all(|tensor| tensor.shape.len() == 2));
        }
    }

    #[test]
    fn stages_have_the_frozen_tensors_that_they_compute_with() {
        let mut whole = tiny_gpt2();
        whole.tied_embeddings = true;
        let of = tuned(whole, Some(config(&["all-linear"])), None).unwrap();
        let parts = [0..2, 2..of.head() + 1].map(|chunk| of.part(std::iter::once(chunk).collect()));
        let embedding = of.output_projection().to_owned();
        assert!(
            parts.iter().all(|part| names(part.frozen()).contains(&embedding) && part.borrowed().is_none())
        );
        let mut both = parts.each_ref().map(|part| names(part.parameters())).concat();
        let mut all = names(of.parameters());
        both.sort_unstable();
        all.sort_unstable();
        assert_eq!(both, all);
    }

    #[test]
    fn a_stage_with_nothing_to_train_is_no_stage() {
        let parallel = |stages| ParallelConfig { stages, ..ParallelConfig::default() };
        let norm = tuned(tiny_llama(), None, Some(&["model.norm.weight"])).unwrap();
        assert!(norm.parts(&parallel(1), 8).is_some() && norm.parts(&parallel(2), 8).is_none());
        // Neither the embedding nor the head has an adapter.
        let lora = tuned(tiny_llama(), Some(config(&["all-linear"])), None).unwrap();
        for stages in 2..=tiny_llama().layers {
            let parts = lora.parts(&parallel(stages), 8).unwrap();
            assert!(parts.iter().all(|part| part.parameter_count() > 0), "{stages}");
        }
        assert!(lora.parts(&parallel(tiny_llama().layers + 1), 8).is_none());
    }

    #[test]
    fn a_tied_embedding_beside_adapters_stays_frozen() {
        let mut tied = tiny_llama();
        tied.tied_embeddings = true;
        let error = tuned(tied, Some(config(&["q_proj"])), Some(&["model.embed_tokens.*"])).unwrap_err();
        assert!(error.contains("output projection as well"), "{error}");
        assert!(tuned(tiny_llama(), Some(config(&["q_proj"])), Some(&["model.embed_tokens.*"])).is_ok());
    }

    #[test]
    fn frozen_weights_are_not_kept_as_casts() {
        let of = tuned(tiny_llama(), Some(config(&["all-linear"])), None).unwrap();
        let casts = of.blocks(8, Precision::Bf16).iter().map(|block| block.cast_bytes).sum::<u64>();
        assert!(casts > 0 && casts <= 2 * of.parameter_count(), "{casts}");
    }

    #[test]
    fn names_that_nothing_has_are_refused_with_those_that_there_are() {
        let error = tuned(tiny_llama(), Some(config(&["c_attn"])), None).unwrap_err();
        assert!(
            error.contains("train.lora.targets = c_attn") && error.contains("self_attn.q_proj"),
            "{error}"
        );
        let error = tuned(tiny_gpt2(), None, Some(&["*.biass"])).unwrap_err();
        assert!(
            error.contains("train.unfrozen_parameters = *.biass") && error.contains("ln_1.bias"),
            "{error}"
        );
        for bad in [
            LoraConfig { rank: 0, ..config(&["q"]) },
            LoraConfig { alpha: Some(0.0), ..config(&["q"]) },
            config(&[]),
        ] {
            assert!(bad.check().is_err(), "{bad:?}");
        }
    }
}
