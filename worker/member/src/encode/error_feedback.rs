//! An uploader's memory of a fragment between contributions.

/// The residual of error feedback, and the momentum of unsent gradients.
///
/// Plain (Karimireddy et al., arXiv 1901.09847): p = decay·residual + x; C(p) is sent, p − C(p) stays.
///
/// Momentum-corrected (DGC: Lin et al., arXiv 1712.01887): u ← m·u + x, p = residual + u. At sent positions u is reset (momentum factor masking), because it
/// would push on in a direction already taken.
#[derive(Debug, Default, PartialEq)]
pub struct ErrorFeedback {
    /// Unsent values.
    pub residual: Vec<f32>,
    /// u; empty without momentum.
    pub velocity: Vec<f32>,
}

impl Clone for ErrorFeedback {
    fn clone(&self) -> Self {
        Self { residual: self.residual.clone(), velocity: self.velocity.clone() }
    }

    /// Reuses the buffers: they are as large as a fragment, and each round makes a copy.
    fn clone_from(&mut self, other: &Self) {
        self.residual.clone_from(&other.residual);
        self.velocity.clone_from(&other.velocity);
    }
}

impl ErrorFeedback {
    /// Creates an empty memory for a fragment of `len` values.
    #[must_use]
    pub fn new(len: usize, has_velocity: bool) -> Self {
        Self { residual: vec![0.0; len], velocity: vec![0.0; if has_velocity { len } else { 0 }] }
    }

    /// Mixes an update into the momentum; returns the addition to the residual, and the residual.
    pub fn accelerate<'a>(&'a mut self, momentum: f32, update: &'a [f32]) -> (&'a [f32], &'a mut [f32]) {
        if self.velocity.is_empty() {
            return (update, &mut self.residual);
        }
        self.velocity.iter_mut().zip(update).for_each(|(velocity, x)| *velocity = momentum * *velocity + x);
        (&self.velocity, &mut self.residual)
    }

    /// Resets the momentum of sent positions; `None`: of all.
    pub fn mask(&mut self, sent: Option<&[u32]>) {
        match sent {
            Some(positions) => {
                for &position in positions {
                    if let Some(velocity) = self.velocity.get_mut(position as usize) {
                        *velocity = 0.0;
                    }
                }
            }
            None => self.velocity.fill(0.0),
        }
    }

    /// Returns an update equivalent in total effect to this memory, for another member. With momentum, an update x amounts to x / (1 − m) in the end, and
    /// this memory to residual + u·m / (1 − m).
    #[must_use]
    pub fn into_update(mut self, momentum: f32) -> Vec<f32> {
        for (rest, velocity) in self.residual.iter_mut().zip(&self.velocity) {
            *rest = (1.0 - momentum) * *rest + momentum * velocity;
        }
        self.residual
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends the largest unsent value.
    fn send_one(memory: &mut ErrorFeedback, momentum: f32, update: &[f32]) -> (usize, f32) {
        let (velocity, residual) = memory.accelerate(momentum, update);
        residual.iter_mut().zip(velocity).for_each(|(rest, u)| *rest += u);
        let at =
            (0..residual.len()).max_by(|&a, &b| residual[a].abs().total_cmp(&residual[b].abs())).unwrap();
        let sent = std::mem::take(&mut memory.residual[at]);
        memory.mask(Some(&[at as u32]));
        (at, sent)
    }

    /// Algorithm 1 of the paper with its momentum correction and factor masking, in f64.
    #[test]
    fn momentum_correction_follows_the_paper() {
        let (m, len) = (0.9f64, 5);
        let (mut u, mut v) = (vec![0.0f64; len], vec![0.0f64; len]);
        let mut memory = ErrorFeedback::new(len, true);
        for step in 0..40usize {
            let gradient: Vec<f32> =
                (0..len).map(|i| ((i * 7 + step * 5) % 11) as f32 / 11.0 - 0.4).collect();
            for i in 0..len {
                u[i] = m * u[i] + f64::from(gradient[i]);
                v[i] += u[i];
            }
            let expected = (0..len).max_by(|&a, &b| v[a].abs().total_cmp(&v[b].abs())).unwrap();
            let (at, sent) = send_one(&mut memory, 0.9, &gradient);
            assert_eq!(at, expected, "step {step}");
            assert!((f64::from(sent) - v[at]).abs() < 1e-5, "step {step}: {sent} is not {}", v[at]);
            (u[at], v[at]) = (0.0, 0.0);
        }
    }

    #[test]
    fn what_is_handed_over_comes_to_the_same_in_the_end() {
        let mut memory = ErrorFeedback::new(2, true);
        for step in 0..7 {
            send_one(&mut memory, 0.9, &[1.0 + step as f32 * 0.1, -0.5]);
        }
        // Total future output of this memory without further input or masking.
        let total = |memory: &ErrorFeedback| -> Vec<f64> {
            let sum = |(r, u): (&f32, &f32)| f64::from(*r) + f64::from(*u) * 0.9 / 0.1;
            memory.residual.iter().zip(&memory.velocity).map(sum).collect()
        };
        let before = total(&memory);
        let mut heir = ErrorFeedback::new(2, true);
        let handed = memory.into_update(0.9);
        let (velocity, residual) = heir.accelerate(0.9, &handed);
        residual.iter_mut().zip(velocity).for_each(|(rest, u)| *rest += u);
        for (after, before) in total(&heir).iter().zip(&before) {
            assert!((after - before).abs() < 1e-4, "{after} is not {before}");
        }
    }

    #[test]
    fn without_momentum_the_residual_is_all_there_is() {
        let mut memory = ErrorFeedback::new(2, false);
        assert_eq!(memory.accelerate(0.9, &[1.0, 2.0]).0, [1.0, 2.0]);
        memory.residual = vec![0.5, -0.5];
        memory.mask(None);
        assert_eq!(memory.into_update(0.9), [0.5, -0.5]);
    }
}
