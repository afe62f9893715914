//! Members that are late, lost, or unwanted. Processes that are killed or stopped: `processes.rs`.

use std::net::TcpStream;
use std::sync::Barrier;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use longhaul_collective::{Collective, CollectiveError, Reduction};
use longhaul_common::id::WorkerId;

use super::rig::{PATIENT, authority, credentials, each, ring, starts, tls_of};

/// For waits that are meant to be in vain.
const IMPATIENT: Duration = Duration::from_millis(500);

#[test]
fn a_member_that_joins_late_is_waited_for() {
    let mut starts = starts(3);
    // The late one's port is closed until the others have been refused there.
    let late = starts.pop().unwrap();
    let address = late.setup.members[2].address;
    drop(late.listener);
    let (begin, begun) = channel();
    thread::scope(|scope| {
        for start in starts {
            let begin = begin.clone();
            scope.spawn(move || {
                begin.send(()).unwrap();
                start.join().unwrap().barrier().unwrap();
            });
        }
        begun.recv().unwrap();
        begun.recv().unwrap();
        let listener = std::net::TcpListener::bind(address).unwrap();
        let late = super::rig::RingStart { setup: late.setup, listener };
        late.join().unwrap().barrier().unwrap();
    });
}

#[test]
fn a_member_that_never_comes_is_named_by_its_neighbours() {
    let mut starts = starts(3);
    starts.iter_mut().for_each(|start| start.setup.join_max = IMPATIENT);
    // It listens but does not join: its neighbour's connections stand half open.
    let _absent = starts.remove(1);
    for error in each(starts, |start| start.join().err().unwrap()) {
        let CollectiveError::NotJoined { peer, .. } = &error else { panic!("{error}") };
        assert_eq!(peer.rank, 1, "{error}");
    }
}

#[test]
fn when_a_member_goes_all_others_notice_without_waiting_for_the_deadline() {
    for size in [2, 3, 5] {
        let members = ring(size);
        let errors = each(members, |mut member| {
            member.all_reduce(&mut [1.0; 100], Reduction::Sum).unwrap();
            if member.rank() == 1 {
                return None;
            }
            Some(member.all_reduce(&mut vec![1.0; 1 << 20], Reduction::Sum).unwrap_err())
        });
        let lost: Vec<_> = errors
            .into_iter()
            .flatten()
            .map(|error| match error {
                CollectiveError::PeerLost { peer, .. } => peer.rank,
                other => panic!("{other}"),
            })
            .collect();
        assert!(lost.len() == size - 1 && lost.contains(&1), "{lost:?}");
    }
}

#[test]
fn a_member_that_does_nothing_ends_the_wait_of_all_at_their_deadline() {
    let mut starts = starts(3);
    starts.iter_mut().for_each(|start| start.setup.call_max = IMPATIENT);
    let mut members = each(starts, |start| start.join().unwrap());
    let idle = members.remove(1);
    let errors = each(members, |mut member| {
        let error = member.all_reduce(&mut vec![1.0; 1 << 20], Reduction::Sum).unwrap_err();
        let broken = member.all_reduce(&mut [], Reduction::Sum).unwrap_err();
        assert!(matches!(&broken, CollectiveError::Broken { cause } if *cause == error.to_string()));
        error
    });
    // The first waits in vain; the other does too, or notices that the first one left.
    assert!(errors.iter().any(|error| matches!(error, CollectiveError::TimedOut { .. })));
    drop(idle);
}

#[test]
fn a_member_that_is_told_to_stop_waits_no_longer_and_the_others_notice() {
    let starts = starts(3);
    let (stop, joined) = (starts[0].setup.stop.clone(), Barrier::new(3));
    // Those that wait, and the one that stays without making the call.
    let ends = each(starts, |start| {
        let mut member = start.join().unwrap();
        joined.wait();
        if member.rank() == 2 {
            stop.stop();
            return (None, Some(member));
        }
        (Some(member.barrier().unwrap_err()), None)
    });
    assert!(matches!(ends[0].0, Some(CollectiveError::Stopped)), "{:?}", ends[0].0);
    assert!(matches!(ends[1].0, Some(CollectiveError::PeerLost { .. })), "{:?}", ends[1].0);
}

#[test]
fn a_member_that_is_told_to_stop_does_not_go_on_joining() {
    let mut starts = starts(2);
    // It listens but does not join.
    let _absent = starts.remove(1);
    let stop = starts[0].setup.stop.clone();
    thread::scope(|scope| {
        let joining = scope.spawn(|| starts[0].join().err().unwrap());
        stop.stop();
        let error = joining.join().unwrap();
        assert!(matches!(error, CollectiveError::Stopped), "{error}");
    });
}

#[test]
fn ranges_that_cannot_be_end_the_call_for_all() {
    let errors = each(ring(2), |mut member| {
        let ranges = if member.rank() == 0 { [0..6, 5..10] } else { [0..5, 5..10] };
        member.all_gather(&mut [0.0; 10], &ranges).unwrap_err()
    });
    assert!(matches!(errors[0], CollectiveError::Ranges(_)), "{}", errors[0]);
    assert!(matches!(errors[1], CollectiveError::PeerLost { .. }), "{}", errors[1]);
}

#[test]
fn another_call_is_an_error_that_names_both() {
    let errors = each(ring(2), |mut member| match member.rank() {
        0 => member.barrier().unwrap_err(),
        _ => member.all_reduce(&mut [0.0; 10], Reduction::Sum).map(|_| ()).unwrap_err(),
    });
    assert!(errors[0].to_string().contains("says sum of 10 values"), "{}", errors[0]);
    assert!(errors[0].to_string().contains("this member says barrier"), "{}", errors[0]);
}

#[test]
fn members_of_another_session_or_another_run_are_not_let_in() {
    let refused = |change: fn(&mut super::rig::RingStart)| {
        let mut starts = starts(2);
        starts.iter_mut().for_each(|start| start.setup.join_max = 2 * IMPATIENT);
        change(&mut starts[1]);
        each(starts, |start| start.join().err().unwrap().to_string())
    };
    let other_session = refused(|start| start.setup.session = 2);
    assert!(other_session[0].contains("another session"), "{}", other_session[0]);
    // The same names from an untrusted authority.
    let other_run = refused(|start| start.setup.tls = tls_of(&credentials(&authority(), WorkerId(11))));
    assert!(other_run.iter().all(|why| why.contains("did not join")), "{other_run:?}");
    // Another worker of the run.
    let other_name = refused(|start| {
        let mut members = start.setup.members.clone();
        members[1].worker = WorkerId(99);
        start.setup.members = members;
    });
    assert!(other_name.iter().all(|why| why.contains("did not join")), "{other_name:?}");
}

#[test]
fn silent_strangers_do_not_keep_a_member_out() {
    let starts = starts(2);
    let strangers: Vec<_> =
        (0..40).map(|_| TcpStream::connect(starts[0].setup.members[0].address).unwrap()).collect();
    each(starts, |start| start.join().unwrap().barrier().unwrap());
    drop(strangers);
}

#[test]
fn a_listener_serves_one_session_after_the_other() {
    let mut starts = starts(2);
    for session in 5..8 {
        starts.iter_mut().for_each(|start| start.setup.session = session);
        each(starts.iter().collect(), |start| start.join().unwrap().barrier().unwrap());
    }
}

#[test]
fn lists_of_members_that_cannot_be_are_refused() {
    let start = &starts(2)[0];
    let refused = |change: fn(&mut longhaul_collective::RingSetup)| {
        let mut setup = start.setup.clone();
        change(&mut setup);
        let other = super::rig::RingStart { setup, listener: start.listener.try_clone().unwrap() };
        let error = other.join().err().unwrap();
        assert!(matches!(error, CollectiveError::Members(_)), "{error}");
    };
    refused(|setup| setup.rank = 2);
    refused(|setup| setup.members.clear());
    refused(|setup| setup.members[1].worker = setup.members[0].worker);
    refused(|setup| setup.members = vec![setup.members[0]; 2000]);
    assert_eq!(start.setup.call_max, PATIENT);
}
