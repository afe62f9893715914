//! Placement of labels without overlaps.

/// Character width and line height at [`SIZE_PX`], in pixels, with a margin.
const CHARACTER_PX: i32 = 8;
const LINE_PX: i32 = 16;
/// Font size of all labels. The drawing library's letters are four fifths of the given size.
pub const SIZE_PX: i32 = 16;
/// Distance of a point from its label.
const GAP_PX: i32 = 9;

/// Pixels from `left`/`top` up to, excluding, `right`/`bottom`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Area {
    pub left: i32,
    pub top: i32,
    pub right: i32,
    pub bottom: i32,
}

impl Area {
    fn around((x, y): (i32, i32), reach: i32) -> Self {
        Self { left: x - reach, top: y - reach, right: x + reach, bottom: y + reach }
    }

    fn overlaps(self, other: Self) -> bool {
        self.left < other.right
            && other.left < self.right
            && self.top < other.bottom
            && other.top < self.bottom
    }

    fn is_in(self, outer: Self) -> bool {
        self.left >= outer.left
            && self.right <= outer.right
            && self.top >= outer.top
            && self.bottom <= outer.bottom
    }
}

/// Returns the upper left corner of each point's label: on a free side, away from points and `line`, inside
/// `within`; on the right if no side is free.
pub fn beside(points: &[((i32, i32), String)], line: &[(i32, i32)], within: Area) -> Vec<(i32, i32)> {
    let along = line.windows(2).flat_map(|ends| between(ends[0], ends[1])).map(|at| Area::around(at, 2));
    let mut taken: Vec<Area> = points.iter().map(|(at, _)| Area::around(*at, 5)).chain(along).collect();
    let mut corners = Vec::new();
    for &((x, y), ref words) in points {
        let width = words.chars().count() as i32 * CHARACTER_PX;
        let corners_of = |dy: i32| {
            let top = y - LINE_PX / 2 + dy;
            [(x + GAP_PX, top), (x - GAP_PX - width, top), (x - width / 2, top)]
        };
        let lines = [0, -1, 1, -2, 2, -3, 3, -4, 4];
        let sides = lines.into_iter().flat_map(|lines| corners_of(lines * LINE_PX));
        let area = |(left, top): (i32, i32)| Area { left, top, right: left + width, bottom: top + LINE_PX };
        let free = |corner: &(i32, i32)| {
            let area = area(*corner);
            area.is_in(within) && !taken.iter().any(|other| area.overlaps(*other))
        };
        let corner = sides.into_iter().find(free).unwrap_or((x + GAP_PX, y - LINE_PX / 2));
        taken.push(area(corner));
        corners.push(corner);
    }
    corners
}

/// Returns places between the two, closer than a line's height.
fn between((ax, ay): (i32, i32), (bx, by): (i32, i32)) -> impl Iterator<Item = (i32, i32)> {
    let count = ((bx - ax).abs().max((by - ay).abs()) / (LINE_PX / 4)).max(1);
    (0..=count).map(move |i| (ax + (bx - ax) * i / count, ay + (by - ay) * i / count))
}

/// Returns ascending heights near the wanted ones, a line apart and not below `lowest`.
pub fn spread(wanted: &[i32], lowest: i32) -> Vec<i32> {
    let mut heights: Vec<i32> = Vec::new();
    for &height in wanted {
        heights.push(heights.last().map_or(height, |above| height.max(above + LINE_PX)));
    }
    let mut limit = lowest;
    for height in heights.iter_mut().rev() {
        *height = (*height).min(limit);
        limit = *height - LINE_PX;
    }
    heights
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_near_points_do_not_cover_each_other_a_point_or_the_line() {
        let within = Area { left: 0, top: 0, right: 400, bottom: 200 };
        let points: Vec<_> =
            [(50, 100), (54, 103), (390, 100), (60, 98)].map(|at| (at, "a-method".to_owned())).to_vec();
        let line = [(50, 100), (200, 90)];
        let corners = beside(&points, &line, within);
        let areas: Vec<_> = corners
            .iter()
            .map(|&(left, top)| Area { left, top, right: left + 8 * CHARACTER_PX, bottom: top + LINE_PX })
            .collect();
        for (index, area) in areas.iter().enumerate() {
            assert!(area.is_in(within), "{area:?}");
            assert!(!areas[..index].iter().any(|other| other.overlaps(*area)), "{areas:?}");
            assert!(!between(line[0], line[1]).any(|at| Area::around(at, 2).overlaps(*area)), "{areas:?}");
            assert!(!points.iter().any(|(at, _)| Area::around(*at, 5).overlaps(*area)), "{areas:?}");
        }
    }

    #[test]
    fn lines_at_the_bottom_push_those_above_them_up() {
        assert_eq!(spread(&[10, 12, 80, 100], 100), [10, 26, 80, 100]);
        assert_eq!(spread(&[10, 98, 99, 100], 100), [10, 68, 84, 100]);
    }
}
