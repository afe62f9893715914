//! A share of the model in a tensor group: the differences in a member's engine. `docs/tensor.md` is the design.
//!
//! Each member computes the same loss and residual stream, and the gradient of its own parameters; the sums are within the model.

use std::sync::Arc;

use longhaul_common::model::ParameterSpec;
use tch::{Kind, Tensor};

use super::{Engine, EngineError, to_host};
use crate::models::TensorGroup;
use longhaul_collective::Word;

/// A member's group, and the parameters shared with the others.
#[derive(Debug)]
pub(super) struct TensorSharding {
    group: Arc<TensorGroup>,
    /// By parameter tensor: whether all members have all of it.
    replicated: Vec<bool>,
}

/// A member's message about its gradients.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Told {
    /// Squared norm of its own parts.
    cut: f64,
    /// Sum of the bits of the replicated parts.
    bits: i64,
}

impl Engine {
    /// Joins the other members of this tensor group, with the other shares of the model or of a part: all make the same calls in the same order, with the
    /// same batches.
    ///
    /// # Errors
    /// This engine's share does not fit its place in the group; or libtorch fails.
    pub fn join_group(&mut self, group: TensorGroup) -> Result<(), EngineError> {
        let shard = self.spec.shard;
        if !group.is_of(shard) {
            return Err(EngineError::Share { index: shard.index(), ways: shard.ways() });
        }
        let replicated = self.spec.parameters().iter().map(ParameterSpec::is_replicated).collect();
        self.group = Some(TensorSharding { group: Arc::new(group), replicated });
        self.build_chunks()
    }

    /// Reports whether it is a member of a tensor group.
    #[must_use]
    pub fn is_member(&self) -> bool {
        self.group.is_some()
    }

    /// Waits for all members, and checks that they are at the same place. Alone, returns at once.
    ///
    /// # Errors
    /// [`EngineError::Interrupted`] if they are not at the same place; [`EngineError::Group`].
    pub fn meet(&self, place: u64) -> Result<(), EngineError> {
        if self.tell_members(place)?.iter().all(|other| *other == place) {
            return Ok(());
        }
        Err(EngineError::Interrupted(
            "members of a tensor group are at different places of the run".to_owned(),
        ))
    }

    /// Exchanges a number with all members of the tensor group, and returns the numbers by index.
    ///
    /// # Errors
    /// [`EngineError::Group`]
    pub fn tell_members(&self, number: u64) -> Result<Vec<u64>, EngineError> {
        let Some(member) = &self.group else { return Ok(vec![number]) };
        let mut word = Word::default();
        word[..8].copy_from_slice(&number.to_le_bytes());
        let words = member.group.exchange(word).map_err(EngineError::Group)?;
        Ok(words.into_iter().map(|word| u64::from_le_bytes(std::array::from_fn(|at| word[at]))).collect())
    }

    /// Replaces these values of each member of the tensor group, of equal number, by those of the first. Alone, an engine keeps its own.
    ///
    /// # Errors
    /// [`EngineError::Group`]
    pub fn hand_on(&self, values: &mut [f32]) -> Result<(), EngineError> {
        self.group.as_ref().map_or(Ok(()), |member| member.group.hand_on(values).map_err(EngineError::Group))
    }

    /// Replaces an error by the group's own, if a sum has failed.
    pub(super) fn explained<T>(&self, result: Result<T, EngineError>) -> Result<T, EngineError> {
        result.map_err(|error| {
            let failure = self.group.as_ref().and_then(|member| member.group.take_failure());
            failure.map_or(error, EngineError::Group)
        })
    }
}

impl TensorSharding {
    pub fn group(&self) -> &Arc<TensorGroup> {
        &self.group
    }

    /// Returns the squared norm of the gradient over all members, given this member's gradients and their norms [tensors]: the same bits for all members.
    /// Divided tensors are added in the order of members, and replicated ones count once.
    ///
    /// # Errors
    /// [`EngineError::Apart`]; [`EngineError::Group`].
    pub fn squared_norm(&self, gradients: &[Tensor], norms: &Tensor) -> Result<f64, EngineError> {
        if gradients.len() != self.replicated.len() {
            return Err(EngineError::Part);
        }
        let (cut, of_replicated) = self.squares(norms)?;
        let replicated = gradients.iter().zip(&self.replicated).filter(|(_, is)| **is);
        let bits = sum_of_bits(replicated.map(|(gradient, _)| gradient))?;
        let own = Told { cut, bits };
        let words = self.group.exchange(own.to_word()).map_err(EngineError::Group)?;
        let all: Vec<Told> = words.into_iter().map(Told::from_word).collect();
        let first = all.first().map_or(bits, |first| first.bits);
        match all.iter().position(|told| told.bits != first) {
            Some(index) => Err(EngineError::Apart { index }),
            None => Ok(all.iter().map(|told| told.cut).sum::<f64>() + of_replicated),
        }
    }

    /// Returns a norm for one of `members` members, given its norms [tensors], such that all members' squares add up to that of the whole: those of divided
    /// tensors, and an equal share of the replicated ones'.
    ///
    /// # Errors
    /// The number of tensors is wrong; or libtorch fails.
    pub fn share_of_norm(&self, norms: &Tensor, members: u32) -> Result<f64, EngineError> {
        let (cut, replicated) = self.squares(norms)?;
        Ok((cut + replicated / f64::from(members)).sqrt())
    }

    /// Returns the sums of the squares of these norms [tensors]: of divided tensors, and of replicated ones.
    fn squares(&self, norms: &Tensor) -> Result<(f64, f64), EngineError> {
        let mut values = Vec::new();
        to_host(norms, &mut values)?;
        if values.len() != self.replicated.len() {
            return Err(EngineError::Part);
        }
        let square = |of_replicated: bool| -> f64 {
            let norms = values.iter().zip(&self.replicated);
            norms.filter(|(_, is)| **is == of_replicated).map(|(norm, _)| f64::from(*norm).powi(2)).sum()
        };
        Ok((square(false), square(true)))
    }
}

/// Sums all values as 32-bit integers, each tensor multiplied by its position: exact in any order, and changed by any single value.
fn sum_of_bits<'a>(tensors: impl Iterator<Item = &'a Tensor>) -> Result<i64, EngineError> {
    let sums = tensors
        .map(|tensor| tensor.f_contiguous()?.f_view_dtype(Kind::Int)?.f_sum(Kind::Int64))
        .collect::<Result<Vec<_>, _>>()?;
    let sums = Vec::<i64>::try_from(Tensor::f_stack(&sums, 0)?)?;
    Ok((1_i64..).zip(sums).fold(0, |all, (place, sum)| all.wrapping_add(sum.wrapping_mul(place))))
}

impl Told {
    fn to_word(self) -> Word {
        let mut word = Word::default();
        word[..8].copy_from_slice(&self.cut.to_le_bytes());
        word[8..].copy_from_slice(&self.bits.to_le_bytes());
        word
    }

    fn from_word(word: Word) -> Self {
        let half = |start: usize| std::array::from_fn(|at| word[start + at]);
        Self { cut: f64::from_le_bytes(half(0)), bits: i64::from_le_bytes(half(8)) }
    }
}

#[cfg(test)]
mod tests;
