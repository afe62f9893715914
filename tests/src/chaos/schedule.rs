//! Schedule of faults, as a pure function of a seed.

use std::fmt;
use std::num::NonZeroUsize;
use std::time::Duration;

use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Kinds of faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// `kill -9` of a worker, and restart.
    Kill,
    /// A worker is paused (SIGSTOP), then continued.
    Freeze,
    /// A worker is asked to leave (SIGTERM), and restarted.
    Leave,
    /// A site's link is cut.
    Cut,
    /// The link into a site is cut.
    CutIn,
    /// The link out of a site is cut.
    CutOut,
    /// A site's link has a twentieth of its rate.
    Slow,
    /// Three packets in ten are lost, ten consecutive ones at a time.
    Loss,
    /// `kill -9` of the coordinator, and restart.
    Coordinator,
    /// A worker's checkpoint folder is unusable.
    NoDisk,
    /// The disk of a worker's checkpoints is full.
    FullDisk,
    /// A worker's calendar jumps, ahead or back, within the clock difference that certificates tolerate, and
    /// back again.
    Calendar,
    /// The cache folder of a training worker is copied, and another process started from the copy, which is
    /// asked to leave (SIGTERM) later.
    CopiedCache,
    /// A worker's output goes into a pipe whose reader closes.
    ClosedLog,
    /// A worker is started with a quarter of its memory, and ends, or is killed if that suffices.
    MemoryLimit,
    /// The coordinator's calendar is a day ahead, then right again.
    HeadCalendar,
    /// All workers are asked to leave (SIGTERM), and restarted.
    LeaveAll,
    /// Every process is paused (SIGSTOP), and resumes with its calendar three hours ahead.
    Sleep,
    /// `kill -9` of every process, as in a power failure everywhere; all are restarted.
    Outage,
    /// No fault: the reference throughput for the others.
    Nothing,
}

impl Kind {
    /// All faults.
    pub const ALL: [Self; 19] = [
        Self::Kill,
        Self::Freeze,
        Self::Leave,
        Self::Cut,
        Self::CutIn,
        Self::CutOut,
        Self::Slow,
        Self::Loss,
        Self::Coordinator,
        Self::NoDisk,
        Self::FullDisk,
        Self::Calendar,
        Self::CopiedCache,
        Self::ClosedLog,
        Self::MemoryLimit,
        Self::HeadCalendar,
        Self::LeaveAll,
        Self::Sleep,
        Self::Outage,
    ];

    /// Returns its name in documents and records.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Kill => "kill",
            Self::Freeze => "freeze",
            Self::Leave => "leave",
            Self::Cut => "cut",
            Self::CutIn => "cut_in",
            Self::CutOut => "cut_out",
            Self::Slow => "slow",
            Self::Loss => "loss",
            Self::Coordinator => "coordinator",
            Self::NoDisk => "no_disk",
            Self::FullDisk => "full_disk",
            Self::Calendar => "calendar",
            Self::CopiedCache => "copied_cache",
            Self::ClosedLog => "closed_log",
            Self::MemoryLimit => "memory_limit",
            Self::HeadCalendar => "head_calendar",
            Self::LeaveAll => "leave_all",
            Self::Sleep => "sleep",
            Self::Outage => "outage",
            Self::Nothing => "nothing",
        }
    }

    fn hits(self) -> Hits {
        match self {
            Self::Kill
            | Self::Freeze
            | Self::Leave
            | Self::NoDisk
            | Self::FullDisk
            | Self::Calendar
            | Self::CopiedCache
            | Self::ClosedLog
            | Self::MemoryLimit => Hits::Worker,
            Self::Cut | Self::CutIn | Self::CutOut | Self::Slow | Self::Loss => Hits::Site,
            Self::Coordinator | Self::HeadCalendar => Hits::Coordinator,
            Self::LeaveAll | Self::Sleep | Self::Outage => Hits::Everybody,
            Self::Nothing => Hits::Nobody,
        }
    }

    /// Returns the range of its duration: shorter and longer than detection takes.
    fn lasts(self) -> (Duration, Duration) {
        let between = |from: u64, to: u64| (Duration::from_millis(from), Duration::from_millis(to));
        match self {
            Self::Kill | Self::Leave | Self::LeaveAll | Self::MemoryLimit => between(500, 6000),
            Self::Freeze | Self::Cut | Self::CutIn | Self::CutOut => between(300, 9000),
            Self::Slow | Self::Loss => between(3000, 9000),
            Self::Coordinator | Self::Outage => between(100, 5000),
            Self::NoDisk | Self::FullDisk | Self::Calendar | Self::CopiedCache | Self::HeadCalendar => {
                between(3000, 9000)
            }
            // By then the restart of the worker is known.
            Self::ClosedLog => between(5000, 9000),
            Self::Sleep => between(1000, 5000),
            Self::Nothing => between(0, 0),
        }
    }
}

enum Hits {
    Worker,
    Site,
    Coordinator,
    Everybody,
    Nobody,
}

/// A fault with its target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A worker, by index.
    Worker(Kind, usize),
    /// A site, by index.
    Site(Kind, usize),
    /// The coordinator.
    Coordinator(Kind),
    /// Every process, or every worker.
    Everybody(Kind),
    /// No target.
    Nobody,
}

impl Fault {
    /// Returns its kind.
    #[must_use]
    pub fn kind(self) -> Kind {
        match self {
            Self::Worker(kind, _) | Self::Site(kind, _) | Self::Coordinator(kind) | Self::Everybody(kind) => {
                kind
            }
            Self::Nobody => Kind::Nothing,
        }
    }

    /// Returns the workers that cannot take part during all or a part of it.
    #[must_use]
    pub fn takes_out(self, sites: &[usize]) -> Vec<usize> {
        match self {
            Self::Worker(Kind::NoDisk | Kind::FullDisk | Kind::Calendar, _)
            | Self::Site(Kind::Slow | Kind::Loss, _)
            | Self::Coordinator(_)
            | Self::Nobody => Vec::new(),
            Self::Worker(_, worker) => vec![worker],
            Self::Site(_, site) => {
                let first: usize = sites[..site].iter().sum();
                (first..first + sites[site]).collect()
            }
            Self::Everybody(_) => (0..sites.iter().sum()).collect(),
        }
    }

    /// Whether both may not overlap, whatever their targets. A worker with a copy may have to enrol again,
    /// which needs a coordinator with the right time; and only one copy may exist. While a coordinator
    /// restarts, no worker may fail.
    #[must_use]
    pub fn excludes(self, other: Self) -> bool {
        let pair = [self, other];
        let count = |is: fn(Self) -> bool| pair.iter().filter(|fault| is(**fault)).count();
        let copies = count(|fault| fault.kind() == Kind::CopiedCache);
        let failures = count(|fault| fault.kind() == Kind::MemoryLimit);
        let heads = count(|fault| matches!(fault, Self::Coordinator(_)));
        copies == 2 || (heads == 1 && copies + failures == 1)
    }
}

impl Fault {
    /// Returns the number of workers that cannot take part during all of it. The coordinator is in the first
    /// site: when that is cut off, it continues with its workers alone.
    #[must_use]
    pub fn keeps_away(self, sites: &[usize]) -> usize {
        let out = self.takes_out(sites).len();
        match self {
            Self::Site(Kind::Cut | Kind::CutIn | Kind::CutOut, 0) => sites.iter().sum::<usize>() - out,
            Self::Worker(Kind::CopiedCache | Kind::ClosedLog, _) => 0,
            _ => out,
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Worker(kind, worker) => write!(f, "{} of worker {worker}", kind.word()),
            Self::Site(kind, site) => write!(f, "{} of site {site}", kind.word()),
            Self::Coordinator(kind) | Self::Everybody(kind) => f.write_str(kind.word()),
            Self::Nobody => f.write_str(Kind::Nothing.word()),
        }
    }
}

/// A fault in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// Start, relative to the soak's.
    pub at: Duration,
    /// Duration.
    pub lasts: Duration,
    /// Fault.
    pub fault: Fault,
}

/// Parameters of a schedule.
#[derive(Clone, Debug)]
pub struct Shape {
    /// Workers in each site.
    pub sites: Vec<usize>,
    /// Possible kinds.
    pub kinds: Vec<Kind>,
    /// After this many faults a break as long as the gap between two follows; `None`: no breaks.
    pub break_after: Option<NonZeroUsize>,
}

/// Returns faults that start `gap` apart, of all kinds in turns; the last one ends in time.
///
/// The same arguments give the same faults.
#[must_use]
pub fn schedule(seed: u64, shape: &Shape, duration: Duration, gap: Duration) -> Vec<Event> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let workers: usize = shape.sites.iter().sum();
    let mut events = Vec::new();
    if workers == 0 || shape.kinds.is_empty() || gap.is_zero() {
        return events;
    }
    let mut turn = Vec::new();
    let mut at = gap;
    loop {
        if turn.is_empty() {
            turn.clone_from(&shape.kinds);
            turn.shuffle(&mut rng);
        }
        let is_break =
            shape.break_after.is_some_and(|faults| (events.len() + 1).is_multiple_of(faults.get() + 1));
        let kind = if is_break { Some(Kind::Nothing) } else { turn.pop() };
        let Some(kind) = kind else { return events };
        let (least, most) = kind.lasts();
        let lasts = rng.random_range(least..=most);
        let fault = match kind.hits() {
            Hits::Worker => Fault::Worker(kind, rng.random_range(0..workers)),
            Hits::Site => Fault::Site(kind, rng.random_range(0..shape.sites.len())),
            Hits::Coordinator => Fault::Coordinator(kind),
            Hits::Everybody => Fault::Everybody(kind),
            Hits::Nobody => Fault::Nobody,
        };
        if at + lasts > duration {
            return events;
        }
        events.push(Event { at, lasts, fault });
        at += gap;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn shape() -> Shape {
        Shape { sites: vec![1, 3, 2], kinds: Kind::ALL.to_vec(), break_after: None }
    }

    const HOUR: Duration = Duration::from_secs(3600);
    const GAP: Duration = Duration::from_secs(15);

    #[test]
    fn where_the_coordinators_site_is_cut_off_the_others_are_away() {
        let away = |kind, site| Fault::Site(kind, site).keeps_away(&[3, 1, 2]);
        assert_eq!([0, 1, 2].map(|site| away(Kind::Cut, site)), [3, 1, 2]);
        assert_eq!(Fault::Site(Kind::CutOut, 0).keeps_away(&[1, 4]), 4);
        assert_eq!((away(Kind::Loss, 0), Fault::Worker(Kind::Leave, 2).keeps_away(&[3])), (0, 1));
    }

    #[test]
    fn a_worker_that_is_copied_trains_on_and_nobody_else_takes_it_out() {
        let copied = Fault::Worker(Kind::CopiedCache, 2);
        assert_eq!((copied.keeps_away(&[3]), copied.takes_out(&[3])), (0, vec![2]));
        assert_eq!(Fault::Worker(Kind::MemoryLimit, 2).keeps_away(&[3]), 1);
    }

    #[test]
    fn nobody_enrols_or_fails_while_something_happens_to_the_coordinator() {
        let worker = |kind| Fault::Worker(kind, 1);
        for head in [Kind::Coordinator, Kind::HeadCalendar].map(Fault::Coordinator) {
            for kind in [Kind::CopiedCache, Kind::MemoryLimit] {
                assert!(worker(kind).excludes(head) && head.excludes(worker(kind)));
            }
            assert!(!worker(Kind::Kill).excludes(head) && !worker(Kind::ClosedLog).excludes(head));
        }
        assert!(
            worker(Kind::CopiedCache).excludes(Fault::Worker(Kind::CopiedCache, 3)),
            "one copy at a time"
        );
        assert!(!worker(Kind::CopiedCache).excludes(Fault::Site(Kind::Cut, 0)));
        assert!(!worker(Kind::CopiedCache).excludes(worker(Kind::MemoryLimit)));
    }

    #[test]
    fn the_same_seed_gives_the_same_faults_and_another_one_others() {
        assert_eq!(schedule(1, &shape(), HOUR, GAP), schedule(1, &shape(), HOUR, GAP));
        assert_ne!(schedule(1, &shape(), HOUR, GAP), schedule(2, &shape(), HOUR, GAP));
    }

    #[test]
    fn a_long_run_has_as_many_faults_of_one_kind_as_of_another_and_hits_everybody() {
        let events = schedule(3, &shape(), HOUR, GAP);
        assert_eq!(events.len(), 239, "one each quarter of a minute, none of which outlasts the hour");
        let mut kinds = BTreeMap::new();
        events.iter().for_each(|event| *kinds.entry(event.fault.kind()).or_insert(0) += 1);
        assert!(kinds.values().all(|&count| (12..=13).contains(&count)), "{kinds:?}");
        for worker in 0..6 {
            let is_hit = |event: &Event| matches!(event.fault, Fault::Worker(_, of) if of == worker);
            assert!(events.iter().any(is_hit), "worker {worker} is spared");
        }
        for site in 0..3 {
            let is_hit = |event: &Event| matches!(event.fault, Fault::Site(_, of) if of == site);
            assert!(events.iter().any(is_hit), "site {site} is spared");
        }
    }

    #[test]
    fn after_so_many_faults_nothing_happens_once() {
        let shape = Shape { break_after: NonZeroUsize::new(3), ..shape() };
        let events = schedule(3, &shape, HOUR, GAP);
        for (at, event) in events.iter().enumerate() {
            assert_eq!(event.fault == Fault::Nobody, at % 4 == 3, "{at}");
        }
    }

    #[test]
    fn faults_are_in_order_and_over_by_the_end() {
        let duration = Duration::from_secs(120);
        for seed in 0..50 {
            let events = schedule(seed, &shape(), duration, GAP);
            assert!(events.windows(2).all(|pair| pair[0].at < pair[1].at));
            assert!(events.iter().all(|event| event.at + event.lasts <= duration));
        }
    }

    #[test]
    fn a_site_that_is_cut_off_takes_its_workers_with_it() {
        assert_eq!(Fault::Site(Kind::Cut, 1).takes_out(&[1, 3, 2]), [1, 2, 3]);
        assert_eq!(Fault::Site(Kind::Slow, 1).takes_out(&[1, 3, 2]), [0; 0]);
        assert_eq!(Fault::Worker(Kind::Kill, 4).takes_out(&[1, 3, 2]), [4]);
        assert_eq!(Fault::Coordinator(Kind::Coordinator).takes_out(&[1, 3, 2]), [0; 0]);
        assert_eq!(Fault::Everybody(Kind::Outage).takes_out(&[1, 2]), [0, 1, 2]);
    }
}
