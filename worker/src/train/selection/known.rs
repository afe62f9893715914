//! Losses of samples from earlier epochs.

use longhaul_data::Visit;

/// Limit on samples with stored losses: 32 MiB with their epochs, and as much in a checkpoint. Later samples are always scored.
pub(super) const SAMPLES_KEPT_MAX: u64 = 1 << 22;

/// The known loss of each sample, by its number.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct KnownLosses {
    losses: Vec<f32>,
    /// Epoch of each loss, from 1; 0: unknown.
    epochs: Vec<u32>,
    /// Epochs for which a loss is valid; 0: none are stored.
    reused_for: u32,
}

impl KnownLosses {
    pub fn new(samples: u64, reused_for: u32) -> Self {
        let kept = if reused_for == 0 { 0 } else { samples.min(SAMPLES_KEPT_MAX) as usize };
        Self { losses: vec![0.0; kept], epochs: vec![0; kept], reused_for }
    }

    /// Returns the loss of a sample unless it is too old.
    pub fn get(&self, visit: Visit) -> Option<f32> {
        let at = self.place(visit)?;
        let computed = u64::from(self.epochs[at].checked_sub(1)?);
        let age = visit.epoch.checked_sub(computed)?;
        (age <= u64::from(self.reused_for)).then(|| self.losses[at])
    }

    pub fn put(&mut self, visit: Visit, loss: f32) {
        if let Some(at) = self.place(visit) {
            self.losses[at] = loss;
            self.epochs[at] = u32::try_from(visit.epoch).unwrap_or(u32::MAX - 1) + 1;
        }
    }

    fn place(&self, visit: Visit) -> Option<usize> {
        usize::try_from(visit.sample).ok().filter(|at| *at < self.losses.len())
    }

    /// Returns the checkpoint form: losses, and the bits of epochs.
    pub fn to_vectors(&self) -> [Vec<f32>; 2] {
        [self.losses.clone(), self.epochs.iter().map(|epoch| f32::from_bits(*epoch)).collect()]
    }

    /// Restores such vectors if they match the number of samples.
    pub fn load(&mut self, losses: &[f32], epochs: &[f32]) {
        if [losses, epochs].iter().all(|values| values.len() == self.losses.len()) {
            self.losses.copy_from_slice(losses);
            self.epochs = epochs.iter().map(|epoch| epoch.to_bits()).collect();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loss_counts_for_some_epochs_and_only_where_it_is_kept() {
        let mut known = KnownLosses::new(4, 2);
        let visit = |sample, epoch| Visit { sample, epoch };
        assert_eq!(known.get(visit(3, 0)), None, "nobody has computed it");
        known.put(visit(3, 5), 1.5);
        known.put(visit(4, 5), 9.0);
        let found = [4, 5, 6, 7, 8].map(|epoch| known.get(visit(3, epoch)));
        assert_eq!(found, [None, Some(1.5), Some(1.5), Some(1.5), None]);
        assert_eq!(known.get(visit(4, 5)), None, "there is no such sample");
        let mut again = KnownLosses::new(4, 2);
        let [losses, epochs] = known.to_vectors();
        again.load(&losses, &epochs);
        assert_eq!(again, known);
        again.load(&[0.0; 5], &[0.0; 5]);
        assert_eq!(again, known, "those are of other samples");
    }

    #[test]
    fn memory_is_bounded_and_none_is_taken_where_no_loss_is_used_again() {
        assert_eq!(KnownLosses::new(u64::MAX, 0).losses.capacity(), 0);
        assert_eq!(KnownLosses::new(u64::MAX, 1).losses.len() as u64, SAMPLES_KEPT_MAX);
    }
}
