//! Simulation of a step: the time and memory of a list of tasks, and detection of deadlocks.

use super::{Pipeline, RankTask, Task, Work};

/// Durations of tasks and transfers, in seconds.
pub trait Costs {
    /// Returns the duration of a task.
    fn task_s(&self, place: RankTask) -> f64;
    /// Returns the time for which the result of a task occupies the link to another rank.
    fn sending_s(&self, from: u32, to: u32) -> f64;
    /// Returns the latency of that link.
    fn latency_s(&self, from: u32, to: u32) -> f64;
}

/// Result of a simulated step.
#[derive(Clone, Debug, PartialEq)]
pub struct Trace {
    /// Time from the first task's start to the last one's end.
    pub step_s: f64,
    /// By rank: time spent computing.
    pub busy_s: Vec<f64>,
    /// By rank: maximum held, as in [`held_most`].
    pub held_most: Vec<Vec<Held>>,
    /// By rank: end times of its tasks, in order.
    pub ends_s: Vec<Vec<f64>>,
}

impl Trace {
    /// Returns the idle share of the time of all ranks.
    #[must_use]
    pub fn bubble(&self) -> f64 {
        let all = self.step_s * self.busy_s.len() as f64;
        1.0 - self.busy_s.iter().sum::<f64>() / all
    }
}

/// Ranks wait for each other, or for a task that no rank computes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the schedule is stuck: {waiting:?} can never begin")]
pub struct Stuck {
    /// Next task of each unfinished rank.
    pub waiting: Vec<RankTask>,
}

/// Micro-batches times chunks held by a rank at one time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Those that wait for their backward pass, with activations.
    pub open: u32,
    /// Those that wait for the gradients of their weights.
    pub left: u32,
}

impl Held {
    fn covers(self, other: Self) -> bool {
        self.open >= other.open && self.left >= other.left
    }
}

/// Returns the maxima held by a rank with this list of tasks: the Pareto-maximal states of both counts.
#[must_use]
pub fn held_most(list: &[Task]) -> Vec<Held> {
    let (mut held, mut most) = (Held::default(), Vec::<Held>::new());
    for task in list {
        match task.work {
            Work::Forward => held.open += 1,
            Work::Backward => held.open = held.open.saturating_sub(1),
            Work::BackwardInput => {
                held = Held { open: held.open.saturating_sub(1), left: held.left + 1 };
            }
            Work::BackwardWeight => held.left = held.left.saturating_sub(1),
        }
        if !most.iter().any(|other| other.covers(held)) {
            most.retain(|other| !held.covers(*other));
            most.push(held);
        }
    }
    most
}

/// Simulates lists of tasks (by rank) for a step. Each rank computes one task after the other, each as soon
/// as its inputs are present.
///
/// # Errors
/// Not all tasks can be computed.
pub fn trace(pipeline: &Pipeline, lists: &[Vec<Task>], costs: &dyn Costs) -> Result<Trace, Stuck> {
    let mut run = Run::new(pipeline, lists.len());
    run.trace.held_most = lists.iter().map(|list| held_most(list)).collect();
    loop {
        let mut moved = false;
        for (rank, list) in (0..).zip(lists) {
            while let Some(&task) = list.get(run.done_on(rank)) {
                let Some(start) = run.start(pipeline, RankTask { rank, task }) else { break };
                run.compute(pipeline, costs, RankTask { rank, task }, start);
                moved = true;
            }
        }
        if !moved {
            break;
        }
    }
    let next =
        |(rank, list): (u32, &Vec<Task>)| list.get(run.done_on(rank)).map(|&task| RankTask { rank, task });
    let waiting: Vec<RankTask> = (0..).zip(lists).filter_map(next).collect();
    if waiting.is_empty() { Ok(run.trace) } else { Err(Stuck { waiting }) }
}

/// State of a simulation. A planner simulates thousands of schedules, so nothing here is hashed.
struct Run {
    places: Places,
    /// Tasks done, by [`Places::at`].
    done: Vec<bool>,
    /// Arrival times of results at their receivers, by the same index.
    arrivals: Vec<Option<f64>>,
    /// By sender and receiver: the time at which all results so far have been sent.
    links: Vec<f64>,
    trace: Trace,
}

/// Index of all possible tasks of a pipeline.
#[derive(Clone, Copy)]
struct Places {
    stages: usize,
    ranks: usize,
    micro_batches: usize,
}

impl Places {
    /// Kinds of work.
    const WORKS: usize = 4;

    fn count(self) -> usize {
        Self::WORKS * self.stages * self.micro_batches
    }

    /// Returns `None` if the pipeline has no such task.
    fn at(self, place: RankTask) -> Option<usize> {
        let RankTask { rank, task } = place;
        let work = match task.work {
            Work::Forward => 0,
            Work::Backward => 1,
            Work::BackwardInput => 2,
            Work::BackwardWeight => 3,
        };
        let (rank, micro_batch) = (rank as usize, task.micro_batch as usize);
        let stage = task.chunk as usize * self.ranks + rank;
        let is_there = rank < self.ranks && stage < self.stages && micro_batch < self.micro_batches;
        is_there.then_some((work * self.stages + stage) * self.micro_batches + micro_batch)
    }
}

impl Run {
    fn new(pipeline: &Pipeline, ranks: usize) -> Self {
        let places = Places {
            stages: pipeline.stages() as usize,
            ranks: pipeline.ranks as usize,
            micro_batches: pipeline.micro_batches as usize,
        };
        let trace = Trace {
            step_s: 0.0,
            busy_s: vec![0.0; ranks],
            held_most: Vec::new(),
            ends_s: vec![Vec::new(); ranks],
        };
        let links = vec![0.0; ranks.max(places.ranks).pow(2)];
        let (done, arrivals) = (vec![false; places.count()], vec![None; places.count()]);
        Self { places, done, arrivals, links, trace }
    }

    fn done_on(&self, rank: u32) -> usize {
        self.trace.ends_s[rank as usize].len()
    }

    /// Returns the start time of a rank's next task, if its inputs are known to arrive.
    fn start(&self, pipeline: &Pipeline, place: RankTask) -> Option<f64> {
        let own = pipeline.own_input_of(place.task).map(|task| RankTask { task, ..place });
        if own.is_some_and(|own| !self.places.at(own).is_some_and(|at| self.done[at])) {
            return None;
        }
        let free = self.trace.ends_s[place.rank as usize].last().copied().unwrap_or(0.0);
        match pipeline.input_of(place) {
            Some(input) => Some(self.arrivals[self.places.at(input)?]?.max(free)),
            None => Some(free),
        }
    }

    fn compute(&mut self, pipeline: &Pipeline, costs: &dyn Costs, place: RankTask, start: f64) {
        let (rank, took) = (place.rank as usize, costs.task_s(place));
        let end = start + took;
        let at = self.places.at(place);
        if let Some(at) = at {
            self.done[at] = true;
        }
        self.trace.ends_s[rank].push(end);
        self.trace.busy_s[rank] += took;
        self.trace.step_s = self.trace.step_s.max(end);
        if let Some(to) = pipeline.receiver_of(place) {
            let arrival = self.hand_on(costs, place.rank, to, end);
            if let Some(at) = at {
                self.arrivals[at] = Some(arrival);
            }
        }
    }

    fn hand_on(&mut self, costs: &dyn Costs, from: u32, to: u32, at: f64) -> f64 {
        if from == to {
            return at;
        }
        let link = &mut self.links[from as usize * self.places.ranks + to as usize];
        *link = link.max(at) + costs.sending_s(from, to);
        *link + costs.latency_s(from, to)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::PipelineSchedule::{self, Gpipe, Interleaved, OneForwardOneBackward, ZeroBubble};
    use super::*;

    /// Equal for every micro-batch and every stage, over links without delay.
    struct TaskCosts {
        forward_s: f64,
        input_s: f64,
        weight_s: f64,
    }

    impl Costs for TaskCosts {
        fn task_s(&self, place: RankTask) -> f64 {
            match place.task.work {
                Work::Forward => self.forward_s,
                Work::Backward => self.input_s + self.weight_s,
                Work::BackwardInput => self.input_s,
                Work::BackwardWeight => self.weight_s,
            }
        }

        fn sending_s(&self, _: u32, _: u32) -> f64 {
            0.0
        }

        fn latency_s(&self, _: u32, _: u32) -> f64 {
            0.0
        }
    }

    const EQUAL: TaskCosts = TaskCosts { forward_s: 1.0, input_s: 1.0, weight_s: 1.0 };

    fn pipeline(schedule: PipelineSchedule, ranks: u32, chunks: u32, micro_batches: u32) -> Pipeline {
        Pipeline { schedule, ranks, chunks, micro_batches, in_flight: Vec::new() }
    }

    fn traced(pipeline: &Pipeline, costs: &dyn Costs) -> Trace {
        trace(pipeline, &pipeline.tasks().unwrap(), costs).unwrap()
    }

    /// For p ranks and m micro-batches, with stages of one second forwards and two backwards.
    fn closed_form(schedule: PipelineSchedule, p: f64, v: f64, m: f64) -> f64 {
        match schedule {
            Gpipe | OneForwardOneBackward => (p - 1.0) / (m + p - 1.0),
            Interleaved => (p - 1.0) / (v * m + p - 1.0),
            // A third of 1F1B's idle time.
            ZeroBubble => (p - 1.0) / (3.0 * m + p - 1.0),
        }
    }

    #[test]
    fn bubbles_are_those_of_the_closed_forms() {
        for (schedule, chunks) in [
            (Gpipe, 1),
            (OneForwardOneBackward, 1),
            (Interleaved, 1),
            (Interleaved, 2),
            (Interleaved, 4),
            (ZeroBubble, 1),
        ] {
            for ranks in 1..=8 {
                for groups in 1..=4 {
                    let pipeline = pipeline(schedule, ranks, chunks, ranks * groups);
                    let expected =
                        closed_form(schedule, f64::from(ranks), f64::from(chunks), f64::from(ranks * groups));
                    let bubble = traced(&pipeline, &EQUAL).bubble();
                    assert!((bubble - expected).abs() < 1e-9, "{pipeline:?}: {bubble}, not {expected}");
                }
            }
        }
    }

    #[test]
    fn activations_are_kept_of_as_many_micro_batches_as_the_papers_say() {
        let kept = |schedule, chunks| -> Vec<u32> {
            let lists = pipeline(schedule, 4, chunks, 12).tasks().unwrap();
            let kept_most = |list: &Vec<Task>| held_most(list).iter().map(|held| held.open + held.left).max();
            lists.iter().filter_map(kept_most).collect()
        };
        assert_eq!(kept(Gpipe, 1), [12; 4]);
        assert_eq!(kept(OneForwardOneBackward, 1), [4, 3, 2, 1]);
        assert_eq!(kept(ZeroBubble, 1), [4; 4]);
        // Of chunks, each half as large: p·v + p − 1 − 2·rank (Narayanan et al. 2021).
        assert_eq!(kept(Interleaved, 2), [11, 9, 7, 5]);
    }

    /// Rank r of four defers the weights of r micro-batches, and has 4 − r in flight; at the end, four are
    /// deferred.
    #[test]
    fn what_is_put_off_takes_the_place_of_what_is_on_its_way() {
        let held = |schedule| traced(&pipeline(schedule, 4, 1, 12), &EQUAL).held_most;
        let pairs = |of_rank: &[Held]| of_rank.iter().map(|held| (held.open, held.left)).collect::<Vec<_>>();
        let divided = held(ZeroBubble);
        assert_eq!(pairs(&divided[0]), [(4, 0), (3, 1)]);
        assert_eq!(pairs(&divided[2]), [(2, 2), (1, 3)]);
        assert_eq!(pairs(&held(OneForwardOneBackward)[1]), [(3, 0)]);
    }

    /// A link that a result occupies for `sending` seconds, with a delay of `latency`.
    struct Far {
        sending: f64,
        latency: f64,
    }

    impl Costs for Far {
        fn task_s(&self, place: RankTask) -> f64 {
            EQUAL.task_s(place)
        }

        fn sending_s(&self, _: u32, _: u32) -> f64 {
            self.sending
        }

        fn latency_s(&self, _: u32, _: u32) -> f64 {
            self.latency
        }
    }

    #[test]
    fn more_in_flight_hides_a_long_link() {
        let far = Far { sending: 0.5, latency: 6.0 };
        let short = pipeline(OneForwardOneBackward, 2, 1, 64);
        let long = Pipeline { in_flight: vec![7, 1], ..short.clone() };
        let alone = 64.0 * 3.0;
        let way = 6.5;
        assert!(traced(&short, &far).step_s > 2.0 * alone);
        // One round trip remains, plus the first forward and last backward of the other rank.
        let hidden = traced(&long, &far).step_s;
        assert!(hidden <= alone + 2.0 * way + 3.0, "{hidden}");
    }

    #[test]
    fn a_link_that_is_slower_than_the_ranks_decides() {
        let slow = Far { sending: 4.0, latency: 0.0 };
        let pipeline = Pipeline { in_flight: vec![8, 1], ..pipeline(OneForwardOneBackward, 2, 1, 32) };
        let step_s = traced(&pipeline, &slow).step_s;
        assert!((step_s - (32.0 * 4.0 + 1.0 + 3.0 + 4.0 + 2.0)).abs() < 1e-9, "{step_s}");
    }

    #[test]
    fn ranks_that_wait_for_each_other_are_found() {
        let pipeline = pipeline(OneForwardOneBackward, 2, 1, 2);
        let mut lists = pipeline.tasks().unwrap();
        // The second rank computes its first backward before the forward that it needs.
        lists[1].swap(0, 1);
        let stuck = trace(&pipeline, &lists, &EQUAL).unwrap_err();
        assert_eq!(stuck.waiting.iter().map(|place| place.rank).collect::<Vec<_>>(), [0, 1]);
        lists[1].clear();
        let stuck = trace(&pipeline, &lists, &EQUAL).unwrap_err();
        assert_eq!(stuck.waiting.len(), 1);
    }

    struct Random(Vec<f64>);

    impl Random {
        fn number(&self, from: u32, to: u32, salt: u32) -> f64 {
            self.0[(from * 31 + to * 17 + salt) as usize % self.0.len()]
        }
    }

    impl Costs for Random {
        fn task_s(&self, place: RankTask) -> f64 {
            self.number(place.rank, place.task.chunk, place.task.work as u32)
        }

        fn sending_s(&self, from: u32, to: u32) -> f64 {
            self.number(from, to, 5)
        }

        fn latency_s(&self, from: u32, to: u32) -> f64 {
            10.0 * self.number(from, to, 7)
        }
    }

    fn any_pipeline() -> impl Strategy<Value = Pipeline> {
        let schedule =
            prop_oneof![Just(Gpipe), Just(OneForwardOneBackward), Just(Interleaved), Just(ZeroBubble)];
        (schedule, 1u32..7, 1u32..4, 1u32..20, any::<bool>(), prop::collection::vec(1u32..20, 6)).prop_map(
            |(schedule, ranks, chunks, micro_batches, is_long, mut in_flight)| {
                let chunks = if schedule == Interleaved { chunks } else { 1 };
                in_flight.sort_unstable_by(|a, b| b.cmp(a));
                in_flight.truncate(if is_long && schedule == OneForwardOneBackward {
                    ranks as usize
                } else {
                    0
                });
                Pipeline { schedule, ranks, chunks, micro_batches, in_flight }
            },
        )
    }

    proptest! {
        #[test]
        fn whatever_takes_how_long_every_step_ends(
            pipeline in any_pipeline(),
            numbers in prop::collection::vec(0.01..10.0, 1..50),
        ) {
            let lists = pipeline.tasks().unwrap();
            let trace = trace(&pipeline, &lists, &Random(numbers)).unwrap();
            prop_assert!((0.0..1.0).contains(&trace.bubble()));
        }

        /// Each once, gradients in the order of micro-batches.
        #[test]
        fn every_micro_batch_goes_through_every_stage(pipeline in any_pipeline()) {
            let lists = pipeline.tasks().unwrap();
            for list in &lists {
                for chunk in 0..pipeline.chunks {
                    let of = |work: &[Work]| -> Vec<u32> {
                        let these = list.iter().filter(|task| task.chunk == chunk && work.contains(&task.work));
                        these.map(|task| task.micro_batch).collect()
                    };
                    let all: Vec<u32> = (0..pipeline.micro_batches).collect();
                    prop_assert_eq!(of(&[Work::Forward]), all.clone());
                    prop_assert_eq!(of(&[Work::Backward, Work::BackwardInput]), all.clone());
                    let weights = if pipeline.schedule == ZeroBubble { all } else { Vec::new() };
                    prop_assert_eq!(of(&[Work::BackwardWeight]), weights);
                }
            }
        }
    }
}
