//! Training of some of a model's parameters: adapters beside frozen weights, or chosen tensors alone.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::experts::is_of_experts;
use super::meant::matches;
use super::parameters::{InBlock, in_model_order};
use super::shard::Cut;
use super::{Initial, ModelSpec, ParameterSpec, Product};
use crate::config::{ConfigError, FrozenFormat, LoraConfig, TrainConfig};

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
    pub fn tuned(self, train: &TrainConfig) -> Result<Self, ConfigError> {
        self.tuned_with(train, &[])
    }

    /// Returns the model with the configured part trained, and its head for classes, if it has one: that may be new.
    pub(super) fn tuned_with_head(self, train: &TrainConfig) -> Result<Self, ConfigError> {
        let of_classes = self.encoder.as_ref().filter(|_| self.classes().is_some());
        let modules = of_classes.map(|encoder| encoder.class_names()).into_iter().flatten();
        let head: Vec<String> = modules.map(|module| format!("{module}.*")).collect();
        self.tuned_with(train, &head)
    }

    /// Returns the model with the configured part trained, and the tensors with names of these patterns. No target means the latter, as none means PEFT's
    /// `modules_to_save`.
    ///
    /// # Errors
    /// As [`Self::tuned`].
    pub fn tuned_with(mut self, train: &TrainConfig, whole: &[String]) -> Result<Self, ConfigError> {
        if train.lora.is_none() && train.unfrozen_parameters.is_none() {
            return Ok(self);
        }
        let lora = train.lora.as_ref().map(|config| self.lora(config, whole)).transpose()?;
        let mut unfrozen = train.unfrozen_parameters.clone().unwrap_or_default();
        unfrozen.extend(whole.iter().cloned());
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
            if let Some(whole) = self.kind.joined_name(module) {
                let reason = format!("is a part of {whole} in files: beside adapters, leave it frozen");
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

    /// Returns the adapters beside tensors with names of these patterns, which are trained whole.
    fn lora(&self, config: &LoraConfig, whole: &[String]) -> Result<Lora, ConfigError> {
        self.check_adapts_no_experts(config)?;
        // A tied output projection is the embedding.
        let is_embedding = |weight: &str| self.tied_embeddings && weight == self.output_projection();
        let is_whole = |weight: &str| whole.iter().any(|pattern| matches(pattern, weight));
        let can_be = |weight: &String| !is_embedding(weight) && !is_whole(weight);
        let linear = self.products().into_iter().map(|product| product.weight);
        let linear: Vec<String> = linear.filter(can_be).collect();
        let module_in_files = |weight: &str| {
            let module = module_of(weight);
            self.kind.joined_name(module).unwrap_or_else(|| module.to_owned())
        };
        let mut weights = Vec::new();
        for target in &config.targets {
            let of_target = |weight: &&String| {
                let module = module_in_files(weight);
                match target == LoraConfig::ALL_LINEAR {
                    true => *weight != self.output_projection(),
                    false => module == *target || module.ends_with(&format!(".{target}")),
                }
            };
            let before = weights.len();
            weights.extend(linear.iter().filter(of_target).cloned());
            if weights.len() == before {
                let reason = format!(
                    "no linear module has such a name; modules are {}",
                    examples(&linear.iter().map(|name| module_in_files(name)).collect::<Vec<_>>())
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
mod tests;
