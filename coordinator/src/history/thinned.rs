//! A list that never grows beyond a size: it loses resolution instead.

/// A point of a [`Thinned`].
pub trait Point: Clone {
    /// One in the place of two neighbours: this one and the one after it.
    #[must_use]
    fn joined(self, later: Self) -> Self;
}

/// Points in order, at most so many. When there are as many, each two neighbours become one, and from then on so many more make one.
#[derive(Clone, Debug, PartialEq)]
pub struct Thinned<T> {
    kept: Vec<T>,
    most: usize,
    /// So many that come are one that is kept: a power of two.
    per_point: u64,
    /// Those that came since the last one that was kept, as one.
    open: Option<(T, u64)>,
}

impl<T: Point> Thinned<T> {
    /// An empty list of at most `most` points, which is even and not zero.
    #[must_use]
    pub fn new(most: usize) -> Self {
        Self { kept: Vec::new(), most, per_point: 1, open: None }
    }

    /// The points, oldest first.
    #[must_use]
    pub fn kept(&self) -> &[T] {
        &self.kept
    }

    /// Those that came since the last one that is kept, as one, and how many they are.
    #[must_use]
    pub fn open(&self) -> Option<&(T, u64)> {
        self.open.as_ref()
    }

    /// The newest one, whether it is kept yet or still waits for others.
    #[must_use]
    pub fn newest(&self) -> Option<&T> {
        self.open.as_ref().map(|(point, _)| point).or(self.kept.last())
    }

    /// The newest one that is kept.
    pub fn last_kept_mut(&mut self) -> Option<&mut T> {
        self.kept.last_mut()
    }

    /// How many that came one point stands for.
    #[must_use]
    pub fn per_point(&self) -> u64 {
        self.per_point
    }

    /// Takes the next one. Whether a point was added, and whether all were thinned then.
    pub fn push(&mut self, next: T) -> Pushed {
        let (open, count) = match self.open.take() {
            Some((open, count)) => (open.joined(next), count + 1),
            None => (next, 1),
        };
        if count < self.per_point {
            self.open = Some((open, count));
            return Pushed::Waits;
        }
        self.keep(open)
    }

    /// Keeps those that came since the last one that was kept, as one, though they are fewer: no more will come.
    pub fn close(&mut self) -> Pushed {
        match self.open.take() {
            Some((open, _)) => self.keep(open),
            None => Pushed::Waits,
        }
    }

    fn keep(&mut self, point: T) -> Pushed {
        self.kept.push(point);
        if self.kept.len() < self.most {
            return Pushed::Added;
        }
        let mut points = std::mem::take(&mut self.kept).into_iter();
        while let Some(first) = points.next() {
            self.kept.push(match points.next() {
                Some(second) => first.joined(second),
                None => first,
            });
        }
        self.per_point = self.per_point.saturating_mul(2);
        Pushed::Thinned
    }

    /// Takes up a list as it was kept, of which each point stands for so many, with those that waited for others.
    #[must_use]
    pub fn taken_up(mut kept: Vec<T>, per_point: u64, open: Option<(T, u64)>, most: usize) -> Self {
        kept.truncate(most.saturating_sub(1));
        let open = open.filter(|&(_, count)| count < per_point);
        Self { kept, most, per_point: per_point.max(1), open }
    }

    /// Changes all of them in place.
    pub fn each_mut(&mut self, change: impl Fn(&mut T)) {
        self.kept.iter_mut().chain(self.open.as_mut().map(|(point, _)| point)).for_each(change);
    }

    /// Returns the first point that satisfies this.
    pub fn first_mut_where(&mut self, is_it: impl Fn(&T) -> bool) -> Option<&mut T> {
        let open = self.open.as_mut().map(|(point, _)| point);
        self.kept.iter_mut().chain(open).find(|point| is_it(point))
    }

    /// Drops the points from the first one on that satisfies this: they were undone.
    pub fn cut_where(&mut self, goes: impl Fn(&T) -> bool) -> bool {
        self.open = self.open.take().filter(|(point, _)| !goes(point));
        let stays = self.kept.iter().position(goes).unwrap_or(self.kept.len());
        let is_cut = stays < self.kept.len();
        self.kept.truncate(stays);
        is_cut
    }
}

/// Fate of a new point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pushed {
    /// It is one with others that are yet to come.
    Waits,
    /// It is the newest one.
    Added,
    /// It was added, and then each two became one.
    Thinned,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A stretch of whole numbers: its first, and how many.
    impl Point for (u64, u64) {
        fn joined(self, later: Self) -> Self {
            (self.0, self.1 + later.1)
        }
    }

    #[test]
    fn a_list_that_is_full_keeps_its_beginning_at_half_the_resolution() {
        let mut list = Thinned::new(4);
        let pushed: Vec<Pushed> = (0..6).map(|number| list.push((number, 1))).collect();
        use Pushed::{Added, Thinned as AllThinned, Waits};
        assert_eq!(pushed, [Added, Added, Added, AllThinned, Waits, Added]);
        assert_eq!(list.kept(), [(0, 2), (2, 2), (4, 2)]);
        assert!(list.cut_where(|point| point.0 >= 2));
        assert_eq!(list.kept(), [(0, 2)]);
    }

    #[test]
    fn the_newest_is_known_before_it_is_kept_and_kept_where_no_more_come() {
        let mut list = Thinned::new(4);
        for number in 0..5 {
            list.push((number, 1));
        }
        assert_eq!(
            (list.kept().last(), list.newest(), list.open()),
            (Some(&(2, 2)), Some(&(4, 1)), Some(&((4, 1), 1)))
        );
        let mut again = Thinned::taken_up(list.kept().to_vec(), list.per_point(), list.open().copied(), 4);
        assert_eq!((again.push((5, 1)), again.kept().last()), (Pushed::Added, Some(&(4, 2))));
        assert_eq!((list.close(), list.close()), (Pushed::Added, Pushed::Waits));
        assert_eq!((list.kept().last(), list.open()), (Some(&(4, 1)), None));
    }

    proptest! {
        #[test]
        fn however_many_come_few_are_kept_and_each_is_in_one(count in 0u64..5000, half in 1usize..20) {
            let mut list = Thinned::new(2 * half);
            for number in 0..count {
                list.push((number, 1));
            }
            prop_assert!(list.kept().len() < 2 * half);
            let mut next = 0;
            for &(first, many) in list.kept() {
                prop_assert_eq!((first, many), (next, list.per_point()));
                next += many;
            }
            prop_assert!(count - next < list.per_point());
        }
    }
}
