//! A member of a site in its own process, which is killed (SIGKILL) or stopped (SIGSTOP) between two reductions and in the middle of one: the other two get a
//! typed error, and none hangs.

use std::io::{Write, stdin};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use longhaul_collective::{
    Collective, CollectiveError, Reduction, RingCollective, RingMember, RingSetup, Stop,
};
use longhaul_common::id::WorkerId;

use longhaul_tests::own_process;

use super::rig::{self, Credentials, PATIENT, RingStart, each};

/// The member with its own process.
const APART: usize = 2;

/// Values of a reduction: far more than sockets hold.
const VALUES: usize = 4 << 20;

/// State of the others at the event: between two reductions, or within one.
const WHEN: [&str; 2] = ["between", "within"];

#[test]
fn a_killed_member_is_lost_to_its_neighbours() {
    for when in WHEN {
        // A deadline would take a minute and give another error.
        let errors = with_member_apart(when, PATIENT, |child| child.kill().unwrap());
        let lost = errors.iter().map(|error| match error {
            CollectiveError::PeerLost { peer, .. } => peer.rank,
            other => panic!("{when}: {other}"),
        });
        assert!(lost.clone().any(|rank| rank == APART), "{when}: {errors:?}");
    }
}

#[test]
fn a_stopped_member_ends_the_wait_of_all_at_their_deadline() {
    for when in WHEN {
        let errors = with_member_apart(when, Duration::from_secs(2), |child| {
            let stopped = Command::new("kill").args(["-STOP", &child.id().to_string()]).status().unwrap();
            assert!(stopped.success());
        });
        let has_waited = errors.iter().any(|error| matches!(error, CollectiveError::TimedOut { .. }));
        assert!(has_waited, "{when}: {errors:?}");
    }
}

/// Members 0 and 1 reduce with the one apart until they fail; `act` is applied to it after the first, short reduction, while the others wait or go on. Returns their
/// errors.
fn with_member_apart(when: &str, call_max: Duration, act: impl FnOnce(&mut Child)) -> Vec<CollectiveError> {
    let (mut starts, mut credentials) = rig::starts_and_credentials(3);
    starts.iter_mut().for_each(|start| start.setup.call_max = call_max);
    let apart = starts.remove(APART);
    // The child binds the port again.
    drop(apart.listener);
    let mut child = start(&apart.setup, &credentials.remove(APART));
    let (reduced, acted) = (Barrier::new(3), Barrier::new(3));
    let errors = thread::scope(|scope| {
        let others = scope.spawn(|| {
            each(starts, |start| {
                let mut member = start.join().unwrap();
                // Of one value: on a busy machine it keeps the deadline.
                let first = reduce(&mut member, 1);
                reduced.wait();
                if when == "between" {
                    acted.wait();
                }
                first.unwrap();
                let error = loop {
                    if let Err(error) = reduce(&mut member, VALUES) {
                        break error;
                    }
                };
                let after = member.barrier().unwrap_err();
                assert!(matches!(after, CollectiveError::Broken { .. }), "{after}");
                error
            })
        });
        reduced.wait();
        act(&mut child);
        if when == "between" {
            acted.wait();
        }
        others.join().unwrap()
    });
    child.kill().unwrap();
    child.wait().unwrap();
    errors
}

fn reduce(member: &mut RingCollective, count: usize) -> Result<(), CollectiveError> {
    let mut values = vec![1.0; count];
    member.all_reduce(&mut values, Reduction::Sum)?;
    assert!(values.iter().all(|value| *value == 3.0));
    Ok(())
}

/// Passes identity, members and limits to the child on its standard input: none of it is a secret here.
fn start(setup: &RingSetup, credentials: &Credentials) -> Child {
    let mut test = own_process::of_test("processes::the_member_apart");
    let mut child = test.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    let mut told = child.stdin.take().unwrap();
    for der in credentials {
        let hex: String = der.iter().map(|byte| format!("{byte:02x}")).collect();
        writeln!(told, "{hex}").unwrap();
    }
    for member in &setup.members {
        writeln!(told, "{} {}", member.worker.0, member.address).unwrap();
    }
    child
}

/// The child: reduces until it fails or is ended.
#[test]
#[ignore = "the process that the tests before it start"]
fn the_member_apart() {
    let lines: Vec<String> = stdin().lines().map(Result::unwrap).collect();
    let bytes = |hex: &str| -> Vec<u8> {
        (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
    };
    let tls = rig::tls_of(&[bytes(&lines[0]), bytes(&lines[1]), bytes(&lines[2])]);
    let member = |line: &String| {
        let (worker, address) = line.split_once(' ').unwrap();
        RingMember { worker: WorkerId(worker.parse().unwrap()), address: address.parse().unwrap() }
    };
    let members: Vec<_> = lines[3..].iter().map(member).collect();
    let listener = TcpListener::bind(members[APART].address).unwrap();
    let setup = RingSetup {
        members,
        rank: APART,
        session: 1,
        tls,
        call_max: PATIENT,
        join_max: PATIENT,
        stop: Stop::default(),
    };
    let mut member = RingStart { setup, listener }.join().unwrap();
    let mut count = 1;
    while reduce(&mut member, count).is_ok() {
        count = VALUES;
    }
}
