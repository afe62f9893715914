//! Waits for file descriptors and for a time, to the microsecond.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::io::Errno;

use super::clock;

/// Minimum interval of wake-ups on a busy link, so that it costs the same few thousand per second at any
/// rate. Packets may be noticed, and again be sent, late by this much.
const WAKE_INTERVAL: Duration = Duration::from_micros(200);

/// Consecutive wake-ups that may come sooner after a rest: a request and its reply on an idle link do not
/// wait.
const WAKE_BURST: u32 = 4;

/// Maximum lateness of the kernel's timers, for saving power; its default is 50 µs.
const TIMER_SLACK_NANOS: u64 = 1000;

/// Descriptors reported per wake-up; more wait for the next.
const EVENTS_MAX: usize = 64;

const ZERO: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

/// An epoll instance with a fine timer.
#[derive(Debug)]
pub(super) struct Waiter {
    epoll: OwnedFd,
    next_token: u64,
    /// Grows by an interval with each wake-up and never falls behind the clock (the generic cell rate
    /// algorithm of ITU-T I.371). A wake-up waits until this is at most a burst ahead.
    paced_until: Duration,
}

impl Waiter {
    pub(super) fn new() -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        Ok(Self { epoll, next_token: 0, paced_until: Duration::ZERO })
    }

    /// Makes the calling thread's timers precise; call it once on the waiting thread.
    pub(super) fn sharpen_timers() -> io::Result<()> {
        rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(TIMER_SLACK_NANOS))?;
        Ok(())
    }

    /// Reports when `source` is readable, from now until it is closed, under the returned token, which is
    /// never reused.
    pub(super) fn watch(&mut self, source: BorrowedFd<'_>) -> io::Result<u64> {
        let token = self.next_token;
        epoll::add(&self.epoll, source, epoll::EventData::new_u64(token), epoll::EventFlags::IN)?;
        self.next_token += 1;
        Ok(token)
    }

    /// Waits until `deadline` or until a source is readable; writes the tokens of readable sources to
    /// `ready`.
    pub(super) fn wait(&mut self, deadline: Duration, ready: &mut Vec<u64>) -> io::Result<()> {
        let earliest = self.paced_until.saturating_sub(WAKE_INTERVAL * WAKE_BURST);
        let rest = earliest.saturating_sub(clock::now());
        if !rest.is_zero() {
            sleep(rest);
        }
        let timeout = deadline.saturating_sub(clock::now());
        if !timeout.is_zero() {
            // epoll's own timeout counts milliseconds before Linux 5.11; ppoll's counts nanoseconds on all
            // versions.
            let mut descriptors = [PollFd::new(&self.epoll, PollFlags::IN)];
            uninterrupted(poll(&mut descriptors, timespec(timeout).as_ref()))?;
        }
        let mut events = [const { MaybeUninit::uninit() }; EVENTS_MAX];
        if let Some((events, _)) = uninterrupted(epoll::wait(&self.epoll, &mut events, Some(&ZERO)))? {
            ready.extend(events.iter().map(|event| event.data.u64()));
        }
        self.paced_until = self.paced_until.max(clock::now()) + WAKE_INTERVAL;
        Ok(())
    }
}

/// `None`, which waits for ever, for times beyond the kernel's range.
fn timespec(time: Duration) -> Option<Timespec> {
    Timespec::try_from(time).ok()
}

/// `None` for a call interrupted by a signal.
fn uninterrupted<T>(result: rustix::io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(Errno::INTR) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

#[allow(clippy::disallowed_methods, reason = "it bounds the rate of wake-ups; nothing is awaited by it")]
fn sleep(time: Duration) {
    std::thread::sleep(time);
}
