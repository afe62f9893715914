//! A share of the model in a tensor group: what an engine that is a member does in another way. `docs/tensor.md` is the design.
//!
//! Each member computes the same loss and residual stream, and the gradient of its own parameters; the sums are within the model.

use std::sync::Arc;

use longhaul_common::model::ParameterSpec;
use tch::{Kind, Tensor};

use super::{Engine, EngineError, to_host};
use crate::models::TensorGroup;
use longhaul_collective::Word;

/// A member's place in its group, and what it has in common with the others.
#[derive(Debug)]
pub(super) struct Membership {
    group: Arc<TensorGroup>,
    /// By parameter tensor: whether all members have all of it.
    replicated: Vec<bool>,
}

/// What a member tells of its gradients.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Told {
    /// The squared norm of what it alone has.
    cut: f64,
    /// A sum of the bits of what all members have.
    bits: i64,
}

impl Engine {
    /// From now on, computes with the other members of this tensor group, which have the other shares of the model, or of a part of it: each of them makes the
    /// same calls in the same order, with the same batches.
    ///
    /// # Errors
    /// When this engine's share is not that of its place in the group; where libtorch fails.
    pub fn join_group(&mut self, group: TensorGroup) -> Result<(), EngineError> {
        let shard = self.spec.shard;
        if !group.is_of(shard) {
            return Err(EngineError::Share { index: shard.index(), ways: shard.ways() });
        }
        let replicated = self.spec.parameters().iter().map(ParameterSpec::is_replicated).collect();
        self.group = Some(Membership { group: Arc::new(group), replicated });
        self.build_chunks()
    }

    /// Whether it is a member of a tensor group.
    #[must_use]
    pub fn is_member(&self) -> bool {
        self.group.is_some()
    }

    /// All members say where they are, and go on when all are there. Alone, an engine is where it is.
    ///
    /// # Errors
    /// [`EngineError::Interrupted`] where they are not at the same place; [`EngineError::Group`].
    pub fn meet(&self, place: u64) -> Result<(), EngineError> {
        if self.tell_members(place)?.iter().all(|other| *other == place) {
            return Ok(());
        }
        Err(EngineError::Interrupted(
            "members of a tensor group are at different places of the run".to_owned(),
        ))
    }

    /// What all members of the tensor group say, by index, when each says a number.
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

    /// Replaces these values of each member of the tensor group by those of the first, of which all have as many. Alone, an engine keeps its own.
    ///
    /// # Errors
    /// [`EngineError::Group`]
    pub fn hand_on(&self, values: &mut [f32]) -> Result<(), EngineError> {
        self.group.as_ref().map_or(Ok(()), |member| member.group.hand_on(values).map_err(EngineError::Group))
    }

    /// What has come of a computation, with the group's own words where a sum has failed.
    pub(super) fn explained<T>(&self, result: Result<T, EngineError>) -> Result<T, EngineError> {
        result.map_err(|error| {
            let failure = self.group.as_ref().and_then(|member| member.group.take_failure());
            failure.map_or(error, EngineError::Group)
        })
    }
}

impl Membership {
    pub fn group(&self) -> &Arc<TensorGroup> {
        &self.group
    }

    /// The squared norm of the gradient of all that the members hold together, given this member's gradients and their norms [tensors]: the same bits for all
    /// members. What is cut is added up in the order of members, and what is replicated counts once.
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

    /// A norm for this member of so many, given its norms [tensors], such that the squares of all members' are that of what they hold together: an equal share
    /// of what is replicated, and what is cut.
    ///
    /// # Errors
    /// When there are not as many tensors as parameters; where libtorch fails.
    pub fn share_of_norm(&self, norms: &Tensor, members: u32) -> Result<f64, EngineError> {
        let (cut, replicated) = self.squares(norms)?;
        Ok((cut + replicated / f64::from(members)).sqrt())
    }

    /// The squares of these norms [tensors]: the sum of those of what is cut, and of what is replicated.
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

/// Of all values as 32-bit integers, and of each tensor as often as its place says: exact in any order, and another one where a single value differs.
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
