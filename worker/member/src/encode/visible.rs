//! Changes of parameters that are visible in bf16 (PULSE, arXiv 2602.03839).

use half::bf16;

/// The parameters of a fragment, and η of their change θ − η·p.
#[derive(Clone, Copy, Debug)]
pub struct Base<'a> {
    /// θ.
    pub parameters: &'a [f32],
    /// η.
    pub learning_rate: f32,
}

impl Base<'_> {
    /// Moves the values of p whose change of a parameter its bf16 representation shows to `visible`, and leaves zeros there. Elsewhere `visible` is zero.
    pub fn take_visible(self, p: &mut [f32], visible: &mut Vec<f32>) {
        visible.clear();
        visible.extend(p.iter_mut().zip(self.parameters).map(|(value, parameter)| {
            let after = parameter - self.learning_rate * *value;
            let is_seen = bf16::from_f32(*parameter) != bf16::from_f32(after);
            if is_seen { std::mem::take(value) } else { 0.0 }
        }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parameters(len: usize) -> Vec<f32> {
        (0..len).map(|i| (i as f32 * 0.37).sin() * 0.05).collect()
    }

    /// Of one contributor that sends exactly: bf16 parameters are those that all changes would have made, and nothing is lost.
    #[test]
    fn parameters_in_bf16_are_as_if_all_was_sent() {
        let (len, rate) = (4096, 0.5f32);
        let (mut sent, mut waiting) = (parameters(len), vec![0.0f32; len]);
        let (mut visible, mut count) = (Vec::new(), 0);
        for round in 0..200 {
            for (i, value) in waiting.iter_mut().enumerate() {
                *value += ((i * 7 + round * 3) % 13) as f32 * 1e-6 - 2e-6;
            }
            let exact: Vec<f32> = sent.iter().zip(&waiting).map(|(own, value)| own - rate * value).collect();
            Base { parameters: &sent, learning_rate: rate }.take_visible(&mut waiting, &mut visible);
            sent.iter_mut().zip(&visible).for_each(|(own, value)| *own -= rate * value);
            count += visible.iter().filter(|value| **value != 0.0).count();
            for ((own, exact), value) in sent.iter().zip(&exact).zip(&waiting) {
                assert_eq!(bf16::from_f32(*own), bf16::from_f32(*exact), "round {round}");
                assert!((own - rate * value - exact).abs() <= f32::EPSILON * exact.abs(), "round {round}");
            }
        }
        let share = count as f64 / (200 * len) as f64;
        assert!((0.001..0.1).contains(&share), "{share}");
    }

    /// Half of the distance to the next bf16 value stays at an even one.
    #[test]
    fn what_rounds_to_the_same_value_waits() {
        let step = 2f32.powi(-7);
        for (change, is_seen) in
            [(0.0, false), (0.49 * step, false), (0.5 * step, false), (0.51 * step, true)]
        {
            for sign in [-1.0, 1.0] {
                let (mut p, mut visible) = (vec![-sign * change], Vec::new());
                Base { parameters: &[sign], learning_rate: 1.0 }.take_visible(&mut p, &mut visible);
                let expected = if is_seen { (0.0, -sign * change) } else { (-sign * change, 0.0) };
                assert_eq!((p[0], visible[0]), expected, "{sign}, {change}");
            }
        }
    }
}
