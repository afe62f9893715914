//! From updates to a mean, with error feedback at each site and at the owner.

use std::ops::Range;

use longhaul_common::config::{ResultForm, RunConfig, SelectionRule, Source, SyncConfig, Transform};
use longhaul_common::id::{FragmentId, Round};
use longhaul_proto::codec::chain::seed_of;

use super::chain::{Before, Chain, Choice, visible};
use super::tensors::{TILE, TensorAt, tiled_order};
use super::{KeptIndices, Mistake};
use longhaul_member::testing::RUN;

pub struct Sending {
    sync: SyncConfig,
    /// Shares of the samples, by member.
    pub weights: Vec<f64>,
    kept: KeptIndices,
    mistake: Option<Mistake>,
    /// The exchange order as positions in the flat vector, and the number of tiles at its start.
    order: Option<(Vec<usize>, usize)>,
    /// By member: the unsent remainder, and its momentum.
    residuals: Vec<Vec<f64>>,
    velocities: Vec<Vec<f64>>,
    /// The owners' unpublished remainder.
    owner: Vec<f64>,
    /// θ_g at the contribution.
    global: Vec<f64>,
}

impl Sending {
    pub fn new(
        config: &RunConfig,
        tensors: &[TensorAt],
        weights: Vec<f64>,
        kept: KeptIndices,
        mistake: Option<Mistake>,
    ) -> Self {
        let len = tensors.last().map_or(0, |tensor| tensor.range.end);
        let (members, zeros) = (weights.len(), vec![0.0; len]);
        let weights = match mistake {
            Some(Mistake::NoWeights) => vec![1.0 / members as f64; members],
            _ => weights,
        };
        Self {
            sync: config.sync.clone(),
            weights,
            kept,
            mistake,
            order: (config.sync.transform == Transform::Dct).then(|| tiled_order(tensors)),
            residuals: vec![zeros.clone(); members],
            velocities: vec![zeros.clone(); members],
            owner: zeros,
            global: Vec::new(),
        }
    }

    /// Drops the remainders of the warm-up.
    pub fn forget(&mut self) {
        self.residuals.iter_mut().chain([&mut self.owner]).for_each(|residual| residual.fill(0.0));
    }

    /// A member's unsent remainder.
    pub fn residual(&self, member: usize) -> &[f64] {
        &self.residuals[member]
    }

    /// Sets the parameters that updates are compared with.
    pub fn at(&mut self, global: &[f64]) -> &mut Self {
        self.global = global.to_vec();
        self
    }

    /// The mean of the updates as all members receive it; zero where nothing is due.
    pub fn exchange(
        &mut self,
        round: u64,
        is_warmup: bool,
        due: &[(u32, Range<usize>)],
        updates: &[Vec<f64>],
    ) -> Vec<f64> {
        let Some((order, _)) = self.order.clone() else {
            return self.exchange_in_order(round, is_warmup, due, updates);
        };
        let ordered = |update: &Vec<f64>| order.iter().map(|&at| update[at]).collect();
        let updates: Vec<Vec<f64>> = updates.iter().map(ordered).collect();
        let mean = self.exchange_in_order(round, is_warmup, due, &updates);
        let mut flat = vec![0.0; mean.len()];
        order.iter().zip(mean).for_each(|(&at, value)| flat[at] = value);
        flat
    }

    fn exchange_in_order(
        &mut self,
        round: u64,
        is_warmup: bool,
        due: &[(u32, Range<usize>)],
        updates: &[Vec<f64>],
    ) -> Vec<f64> {
        let mut mean = vec![0.0; updates[0].len()];
        for (number, range) in due {
            for (member, update) in updates.iter().enumerate() {
                let chain = self.up(round, is_warmup, *number, range, member);
                let sent = self.send(member, is_warmup, &chain, range, &update[range.clone()]);
                let weight = self.weights[member];
                mean[range.clone()].iter_mut().zip(sent).for_each(|(mean, sent)| *mean += weight * sent);
            }
            if self.sync.result != ResultForm::Bundle {
                let published = self.publish(is_warmup, range, &mean[range.clone()]);
                mean[range.clone()].copy_from_slice(&published);
            }
        }
        mean
    }

    fn up(&self, round: u64, is_warmup: bool, number: u32, range: &Range<usize>, member: usize) -> Chain {
        if is_warmup {
            return Chain::of_warmup(&self.sync);
        }
        let all_tiles = self.order.as_ref().map_or(0, |(_, tiles)| *tiles);
        let tiles = all_tiles.saturating_sub(range.start / (TILE * TILE)).min(range.len() / (TILE * TILE));
        let seed = seed_of(RUN, Round(round), FragmentId(number));
        let kept = self.kept.get(&(round, number)).map(|kept| kept[member]);
        Chain::up(&self.sync, range.len(), tiles, seed, kept)
    }

    /// p = decay·e + x, e = p − C(p). With momentum correction, u ← m·u + x replaces x, and is reset to zero where sent.
    fn send(
        &mut self,
        member: usize,
        is_warmup: bool,
        chain: &Chain,
        range: &Range<usize>,
        update: &[f64],
    ) -> Vec<f64> {
        let is_corrected = self.sync.source == Source::CorrectedGradient && !is_warmup;
        let velocity = &mut self.velocities[member][range.clone()];
        if is_corrected {
            let momentum = f64::from(self.sync.momentum);
            velocity.iter_mut().zip(update).for_each(|(u, x)| *u = momentum * *u + x);
        }
        let update = if is_corrected { &*velocity } else { update };
        let (residual, decay) =
            (&mut self.residuals[member][range.clone()], f64::from(self.sync.error_decay));
        let p: Vec<f64> = residual.iter().zip(update).map(|(rest, x)| decay * rest + x).collect();
        let is_visible = self.sync.selection == SelectionRule::Visible && !is_warmup;
        let sent = if is_visible {
            let seen = visible(&self.global[range.clone()], f64::from(self.sync.outer_learning_rate), &p);
            let all = (0..p.len()).filter(|at| p[*at] != 0.0).collect();
            let choice = Choice::These(if self.mistake == Some(Mistake::SeesAll) { all } else { seen });
            Chain { choice, before: Before::Nothing, values: chain.values }.of(&p)
        } else {
            chain.of(&p)
        };
        for ((rest, p), sent) in residual.iter_mut().zip(&p).zip(&sent.values) {
            *rest = p - sent;
        }
        if is_corrected && self.mistake != Some(Mistake::NoMasking) {
            sent.positions.iter().flatten().for_each(|&at| velocity[at] = 0.0);
        }
        sent.values
    }

    /// The mean as published by the owner, which keeps the full remainder.
    fn publish(&mut self, is_warmup: bool, range: &Range<usize>, mean: &[f64]) -> Vec<f64> {
        let residual = &mut self.owner[range.clone()];
        let p: Vec<f64> = residual.iter().zip(mean).map(|(rest, x)| rest + x).collect();
        let flushes = self.mistake == Some(Mistake::FlushesUnions);
        let chain = Chain::down(&self.sync, is_warmup, if flushes { &p } else { mean });
        let sent = chain.of(&p).values;
        if self.mistake != Some(Mistake::NoOwnerResidual) {
            residual.iter_mut().zip(&p).zip(&sent).for_each(|((rest, p), sent)| *rest = p - sent);
        }
        sent
    }
}
