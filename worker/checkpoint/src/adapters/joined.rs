//! Adapters of modules that a family's files join: see `engine/docs/adapters.md`.

use std::borrow::Cow;

use longhaul_common::config::{LoraConfig, ModelKind};
use longhaul_common::model::{ModelSpec, ParameterSpec};
use serde_json::{Map, Value, json};

/// Keys of `adapter_config.json` with ranks and alphas of single modules.
pub(crate) const PATTERNS: [&str; 2] = ["rank_pattern", "alpha_pattern"];

/// Largest relative difference of equal alphas, which JSON may round.
const ALPHA_TOLERANCE: f64 = 1e-9;

/// The form of a file's adapters of joined modules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// As runs write them: each module's A and B are blocks; A's stand below each other, B's on the diagonal of a matrix that is zero elsewhere.
    Blocks,
    /// As PEFT trains them: the modules share A, and B's stand below each other.
    Shared,
}

impl Form {
    /// Returns that of a file with this `adapter_config.json`.
    pub(crate) fn of(config: &[u8]) -> Self {
        let json: Option<Value> = serde_json::from_slice(config).ok();
        let has_patterns = json.is_some_and(|json| has_any(&json[PATTERNS[0]]));
        if has_patterns { Self::Blocks } else { Self::Shared }
    }
}

fn has_any(pattern: &Value) -> bool {
    pattern.as_object().is_some_and(|pattern| !pattern.is_empty())
}

/// Returns PEFT's ranks and alphas of the joined modules among these targets. The scale stays that of each part: n parts have n times the rank.
pub(super) fn patterns<'a>(
    kind: ModelKind,
    targets: impl IntoIterator<Item = &'a String>,
    (rank, alpha, use_rslora): (u32, f64, bool),
) -> [Map<String, Value>; 2] {
    let [mut ranks, mut alphas] = [Map::new(), Map::new()];
    for target in targets {
        let parts = kind.parts_of(target);
        if parts > 1 {
            let factor = if use_rslora { f64::from(parts).sqrt() } else { f64::from(parts) };
            ranks.insert(target.clone(), json!(u64::from(rank) * u64::from(parts)));
            alphas.insert(target.clone(), json!(alpha * factor));
        }
    }
    [ranks, alphas]
}

/// Returns the first key of [`PATTERNS`] that means other ranks or scales than those of all modules.
pub(super) fn unfit(json: &Map<String, Value>, kind: ModelKind, lora: &LoraConfig) -> Option<&'static str> {
    let given = PATTERNS.map(|key| json.get(key).unwrap_or(&Value::Null));
    if !given.into_iter().any(has_any) {
        return None;
    }
    let wanted = patterns(kind, &lora.targets, (lora.rank, lora.alpha(), lora.use_rslora));
    let is_fit = |given: &Value, wanted: &Map<String, Value>| {
        let given = given.as_object().cloned().unwrap_or_default();
        let is_near = |(name, wanted): (&String, &Value)| {
            let [found, wanted] = [given.get(name).unwrap_or(&Value::Null), wanted].map(Value::as_f64);
            found
                .zip(wanted)
                .is_some_and(|(found, wanted)| (found - wanted).abs() <= ALPHA_TOLERANCE * wanted)
        };
        given.len() == wanted.len() && wanted.iter().all(is_near)
    };
    (0..PATTERNS.len()).find(|at| !is_fit(given[*at], &wanted[*at])).map(|at| PATTERNS[at])
}

/// A tensor of a file of adapters, and its blocks.
struct Laid {
    stored: ParameterSpec,
    blocks: Vec<Block>,
}

/// The place of a trained tensor.
struct Block {
    /// Its first value in the flat vector.
    start: usize,
    sides: [usize; 2],
    /// Its first row and column in the file's tensor.
    place: [usize; 2],
}

/// Whether files have the adapters of a model in another form than its flat vector.
fn are_joined(spec: &ModelSpec) -> bool {
    let has_adapters = spec.tuning.as_ref().is_some_and(|tuning| tuning.lora.is_some());
    has_adapters && !spec.kind.joined().is_empty()
}

/// Returns the tensors of a file of adapters.
pub(crate) fn stored(spec: &ModelSpec, form: Form) -> Vec<ParameterSpec> {
    match are_joined(spec) {
        true => laid_out(spec, form).into_iter().map(|laid| laid.stored).collect(),
        false => spec.synchronised(),
    }
}

/// Returns the values of a file of adapters as runs write it.
pub(crate) fn to_file<'a>(spec: &ModelSpec, flat: &'a [f32]) -> Cow<'a, [f32]> {
    if !are_joined(spec) {
        return flat.into();
    }
    let mut values = Vec::new();
    for Laid { stored, blocks } in laid_out(spec, Form::Blocks) {
        let start = values.len();
        values.resize(start + stored.count() as usize, 0.0);
        for block in &blocks {
            for (own, place) in block.rows(&stored) {
                let place = start + place..start + place + block.sides[1];
                values[place].copy_from_slice(&flat[own..own + block.sides[1]]);
            }
        }
    }
    values.into()
}

/// Returns the flat vector of a file's values.
///
/// # Errors
/// Names a tensor with values outside its blocks.
pub(crate) fn from_file(spec: &ModelSpec, form: Form, values: Vec<f32>) -> Result<Vec<f32>, String> {
    if !are_joined(spec) {
        return Ok(values);
    }
    let (mut flat, mut rest) = (vec![0.0; spec.synchronised_count() as usize], values.as_slice());
    for Laid { stored, blocks } in laid_out(spec, form) {
        let (values, after) = rest.split_at(stored.count() as usize);
        rest = after;
        let mut taken = vec![false; values.len()];
        for block in &blocks {
            for (own, place) in block.rows(&stored) {
                let place = place..place + block.sides[1];
                taken[place.clone()].fill(true);
                flat[own..own + block.sides[1]].copy_from_slice(&values[place]);
            }
        }
        if values.iter().zip(&taken).any(|(value, is_taken)| !is_taken && *value != 0.0) {
            return Err(format!(
                "{} has values outside the blocks of the modules that it joins: merge the adapter with PEFT (`merge_and_unload`)",
                stored.name
            ));
        }
    }
    Ok(flat)
}

impl Block {
    /// Returns the first values of its rows, in the flat vector and in the file's tensor.
    fn rows(&self, stored: &ParameterSpec) -> impl Iterator<Item = (usize, usize)> {
        let ([rows, columns], [row, column]) = (self.sides, self.place);
        let width = sides(stored)[1];
        (0..rows).map(move |at| (self.start + at * columns, (row + at) * width + column))
    }
}

fn sides(tensor: &ParameterSpec) -> [usize; 2] {
    let columns = tensor.shape.iter().skip(1).product::<u64>() as usize;
    [tensor.shape.first().map_or(1, |rows| *rows as usize), columns]
}

fn laid_out(spec: &ModelSpec, form: Form) -> Vec<Laid> {
    let (mut all, mut start) = (Vec::<Laid>::new(), 0);
    for parameter in spec.synchronised() {
        let (sides, count) = (sides(&parameter), parameter.count() as usize);
        let name = spec.kind.joined_name(&parameter.name).unwrap_or_else(|| parameter.name.clone());
        match all.iter_mut().rev().find(|laid| laid.stored.name == name) {
            Some(laid) => {
                let place = placed(&mut laid.stored, &parameter, form);
                laid.blocks.push(Block { start, sides, place });
            }
            None => {
                let stored = ParameterSpec { name, ..parameter };
                all.push(Laid { stored, blocks: vec![Block { start, sides, place: [0, 0] }] });
            }
        }
        start += count;
    }
    all
}

/// Makes room for a further module's tensor, and returns its first row and column.
fn placed(stored: &mut ParameterSpec, own: &ParameterSpec, form: Form) -> [usize; 2] {
    let shares_columns = form == Form::Shared || !own.name.contains(".lora_B.");
    if form == Form::Shared && own.name.contains(".lora_A.") {
        return [0, 0];
    }
    let [row, column] = sides(stored);
    stored.shape[0] += own.shape[0];
    if shares_columns {
        return [row, 0];
    }
    stored.shape[1] += own.shape[1];
    [row, column]
}

#[cfg(test)]
mod tests;
