//! Random shifts and mirroring of training images.

use longhaul_common::config::ImageConfig;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Shifts and mirrors an image `[channels, height, width]`, as determined by the run's seed and the position in its stream: all workers see the same image
/// at a position, and each epoch another one. The shift is equivalent to a random crop with padding.
///
/// # Panics
/// The shape is invalid: without rows or columns, or shifted by more than these.
pub fn augment(pixels: &mut [u8], shape: &ImageConfig, seed: u64, position: u64) {
    if shape.shift == 0 && !shape.flip {
        return;
    }
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    random.set_stream(position);
    let shift = i64::from(shape.shift);
    let [down, right] = [(); 2].map(|()| random.random_range(-shift..=shift) as isize);
    let is_mirrored = shape.flip && random.random();
    let (height, width) = (shape.height as usize, shape.width as usize);
    let before = pixels.to_vec();
    let planes = before.chunks_exact(height * width);
    for (to, from) in pixels.chunks_exact_mut(height * width).zip(planes) {
        for (row, to) in to.chunks_exact_mut(width).enumerate() {
            match row.checked_add_signed(-down).filter(|row| *row < height) {
                Some(row) => move_row(to, &from[row * width..(row + 1) * width], right, is_mirrored),
                None => to.fill(0),
            }
        }
    }
}

/// Mirrors a row and shifts it to the right, or to the left if negative.
fn move_row(to: &mut [u8], from: &[u8], right: isize, is_mirrored: bool) {
    let (width, off) = (to.len(), right.unsigned_abs());
    let kept = width - off;
    let (black, place, start) = match right {
        0.. => (0..off, off..width, 0),
        _ => (kept..width, 0..kept, off),
    };
    to[black].fill(0);
    let to = &mut to[place];
    if is_mirrored {
        let mirrored = from.iter().rev().skip(start);
        to.iter_mut().zip(mirrored).for_each(|(to, from)| *to = *from);
    } else {
        to.copy_from_slice(&from[start..start + kept]);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn shape(shift: u32, flip: bool) -> ImageConfig {
        ImageConfig { channels: 2, height: 2, width: 3, classes: 2, shift, flip }
    }

    const IMAGE: [u8; 12] = [1, 2, 3, 4, 5, 6, 11, 12, 13, 14, 15, 16];

    fn augmented(shape: &ImageConfig, position: u64) -> Vec<u8> {
        let mut pixels = IMAGE.to_vec();
        augment(&mut pixels, shape, 7, position);
        pixels
    }

    /// The reference, pixel by pixel.
    fn moved(down: i64, right: i64, is_mirrored: bool) -> Vec<u8> {
        let pixel = |(plane, row, column): (i64, i64, i64)| {
            let (row, column) = (row - down, column - right);
            let column = if is_mirrored { 2 - column } else { column };
            let is_inside = (0..2).contains(&row) && (0..3).contains(&column);
            if is_inside { IMAGE[(plane * 6 + row * 3 + column) as usize] } else { 0 }
        };
        (0..12).map(|at| pixel((at / 6, at / 3 % 2, at % 3))).collect()
    }

    #[test]
    fn images_are_mirrored_or_not_and_as_often() {
        let seen: Vec<_> = (0..1000).map(|position| augmented(&shape(0, true), position)).collect();
        let count = seen.iter().filter(|image| **image == moved(0, 0, true)).count();
        // Five standard deviations around one half.
        assert!((420..580).contains(&count), "{count}");
        assert_eq!(seen.iter().filter(|image| ***image == IMAGE).count(), 1000 - count);
    }

    #[test]
    fn images_are_moved_in_all_directions_and_black_comes_in() {
        let seen: HashSet<Vec<u8>> = (0..1000).map(|position| augmented(&shape(1, true), position)).collect();
        let all: HashSet<Vec<u8>> = (-1..=1)
            .flat_map(|down| (-1..=1).map(move |right| (down, right)))
            .flat_map(|(down, right)| [moved(down, right, false), moved(down, right, true)])
            .collect();
        assert_eq!((seen.len(), seen), (18, all));
    }

    #[test]
    fn a_position_and_a_seed_have_a_draw_of_their_own_and_no_draw_changes_nothing() {
        let all = |seed: u64| -> Vec<Vec<u8>> {
            let mut images = vec![IMAGE.to_vec(); 50];
            for (position, image) in images.iter_mut().enumerate() {
                augment(image, &shape(1, true), seed, position as u64);
            }
            images
        };
        assert_eq!(all(7), all(7));
        assert_ne!(all(7), all(8));
        assert_eq!(augmented(&shape(0, false), 5), IMAGE);
    }
}
