//! Waits for file descriptors and for a point in time, to the microsecond.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::io::Errno;

use super::clock;

/// Wake-ups come at most this often, so that a busy link costs the same few thousand of them whatever its rate.
/// It is also what packets on a busy link may arrive late by.
const WAKE_INTERVAL_MIN: Duration = Duration::from_micros(100);

/// How late the kernel may fire a timer to save power; its default of 50 µs would be half our interval.
const TIMER_SLACK_NANOS: u64 = 1000;

/// Descriptors reported by one wake-up; more wait for the next.
const EVENTS_MAX: usize = 64;

const ZERO: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

/// An epoll instance with a fine timer.
#[derive(Debug)]
pub(super) struct Waiter {
    epoll: OwnedFd,
    next_token: u64,
    last_wake: Duration,
}

impl Waiter {
    pub(super) fn new() -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        Ok(Self { epoll, next_token: 0, last_wake: Duration::ZERO })
    }

    /// Makes the calling thread's timers precise; call it once on the thread that waits.
    pub(super) fn sharpen_timers() -> io::Result<()> {
        rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(TIMER_SLACK_NANOS))?;
        Ok(())
    }

    /// Reports when `source` can be read, from now until it is closed, under the token returned: never one that
    /// was used before.
    pub(super) fn watch(&mut self, source: BorrowedFd<'_>) -> io::Result<u64> {
        let token = self.next_token;
        epoll::add(&self.epoll, source, epoll::EventData::new_u64(token), epoll::EventFlags::IN)?;
        self.next_token += 1;
        Ok(token)
    }

    /// Waits until `deadline` or until a source can be read, and puts the tokens of those that can into `ready`.
    pub(super) fn wait(&mut self, deadline: Duration, ready: &mut Vec<u64>) -> io::Result<()> {
        let rest = (self.last_wake + WAKE_INTERVAL_MIN).saturating_sub(clock::now());
        if !rest.is_zero() {
            sleep(rest);
        }
        let timeout = deadline.saturating_sub(clock::now());
        if !timeout.is_zero() {
            // epoll's own timeout counts milliseconds before Linux 5.11; ppoll's counts nanoseconds on all.
            let mut descriptors = [PollFd::new(&self.epoll, PollFlags::IN)];
            uninterrupted(poll(&mut descriptors, timespec(timeout).as_ref()))?;
        }
        let mut events = [const { MaybeUninit::uninit() }; EVENTS_MAX];
        if let Some((events, _)) = uninterrupted(epoll::wait(&self.epoll, &mut events, Some(&ZERO)))? {
            ready.extend(events.iter().map(|event| event.data.u64()));
        }
        self.last_wake = clock::now();
        Ok(())
    }
}

/// `None`, which waits for ever, for what is beyond the kernel's range.
fn timespec(time: Duration) -> Option<Timespec> {
    Timespec::try_from(time).ok()
}

/// `None` for a call that a signal cut short.
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
