//! Power failures at every single write of a run: the file then holds the state before or after a transaction, and the run goes on from either.

mod storage;

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use longhaul_common::id::{Round, WorkerId};
use longhaul_proto::control::CertificateIssuer;
use longhaul_proto::control::message::{Join, ToCoordinator, ToWorker};
use longhaul_proto::identity::{Authority, Token, TokenRecord};

use super::*;
use longhaul_run::testing::{config, joining, ready, report};
use longhaul_run::{Command, ConnectionId, Event, Record, Run};
use storage::Storage;

const RUN: RunId = RunId([7; 16]);

fn opened(worker: WorkerId) -> Event {
    let address = IpAddr::V4(Ipv4Addr::LOCALHOST);
    Event::Opened { connection: ConnectionId(u64::from(worker.0)), worker, address }
}

fn said(worker: WorkerId, message: ToCoordinator) -> Event {
    Event::Message { connection: ConnectionId(u64::from(worker.0)), message }
}

/// Records of a run of two workers, from joining to the end.
fn written() -> Vec<Record> {
    let workers = [WorkerId(0), WorkerId(1)];
    let mut events: Vec<Event> = Vec::new();
    events.extend(workers.map(opened));
    events.extend(
        workers.map(|worker| said(worker, ToCoordinator::Join(joining(worker, &format!("site-{worker}"))))),
    );
    events.extend(workers.map(|worker| said(worker, ready(0, 1))));
    for round in 0..10 {
        events.extend(
            workers.map(|worker| said(worker, ToCoordinator::RoundApplied(report(round, round as u8)))),
        );
    }
    events.push(Event::Drain);
    let mut run = Run::new(config(), RunState::new(RUN, &config()), Duration::ZERO).unwrap();
    let mut records = Vec::new();
    for (second, event) in events.into_iter().enumerate() {
        for command in run.handle(Duration::from_secs(second as u64), event) {
            if let Command::Persist(record) = command {
                records.push(record);
            }
        }
    }
    records
}

fn is_state(record: &Record) -> bool {
    matches!(record, Record::State(_))
}

/// Founds a run and writes its records until it cannot; answers how many writes succeeded, the founding among them.
fn write_all(storage: &Storage, records: &[Record]) -> usize {
    let Ok(disk) = Disk::over(storage.clone()) else { return 0 };
    let store = Store::over(disk);
    let founding = Founding { run: RUN, config: config().to_toml().unwrap(), authority: "pem".to_owned() };
    if store.found(&founding, &RunState::new(RUN, &config()), &EnrolState::default()).is_err() {
        return 0;
    }
    let done = records.iter().take_while(|record| {
        let written = match record {
            Record::State(state) => store.put_state(state),
            Record::Round(summary) => store.push_round(summary),
        };
        written.is_ok()
    });
    1 + done.count()
}

/// The states that may be found after so many writes have succeeded: as of the last of them, or of the one that was under way.
fn allowed(records: &[Record], succeeded: usize) -> Vec<Option<RunState>> {
    let after = |writes: usize| match writes {
        0 => None,
        _ => records[..writes - 1].iter().rev().find(|record| is_state(record)).map_or_else(
            || Some(RunState::new(RUN, &config())),
            |record| match record {
                Record::State(state) => Some((**state).clone()),
                Record::Round(_) => None,
            },
        ),
    };
    vec![after(succeeded), after((succeeded + 1).min(records.len() + 1))]
}

/// A coordinator started on this state welcomes its members back in their roles.
fn goes_on(state: RunState) {
    let generation = state.generations.present.as_ref().map(|lineup| lineup.generation);
    let mut run = Run::new(config(), state, Duration::ZERO).unwrap();
    let worker = WorkerId(0);
    let held = generation.map(|generation| (generation, Round(0)));
    let mut commands = run.handle(Duration::ZERO, opened(worker));
    let join = Join { held, ..joining(worker, "site-w0") };
    commands.extend(run.handle(Duration::ZERO, said(worker, ToCoordinator::Join(join))));
    let welcome = commands.iter().find_map(|command| match command {
        Command::Send { message: ToWorker::Welcome(welcome), .. } => Some(welcome),
        _ => None,
    });
    assert_eq!(welcome.map(|welcome| welcome.resumed), Some(generation.is_some()), "{commands:?}");
}

/// A disk after its power has failed.
struct Crash {
    /// Description of the place.
    place: String,
    /// Writes that had succeeded before.
    succeeded: usize,
    /// Whether only a part of an unfinished write is present.
    is_torn: bool,
}

/// Fails the power at each operation of `write` (which returns the number of completed writes), and has `check` examine each possible disk.
fn at_each_crash(write: impl Fn(&Storage) -> usize, mut check: impl FnMut(Crash, &Store)) {
    let whole = Storage::new(None);
    write(&whole);
    // A file is made under another name, so that a crash meanwhile leaves none.
    let made = Storage::new(None);
    let _empty = Disk::over(made.clone()).unwrap();
    for operation in made.operations() + 1..=whole.operations() {
        let storage = Storage::new(Some(operation));
        let succeeded = write(&storage);
        for (image, left) in storage.images(operation).into_iter().enumerate() {
            let place = format!("operation {operation}, image {image}");
            let opened = Disk::over(Storage::holding(left));
            let store = Store::over(opened.unwrap_or_else(|error| panic!("{place}: {error}")));
            check(Crash { place, succeeded, is_torn: image > 1 }, &store);
        }
    }
}

/// Records of an enrolment desk: tokens that are made, and one that is revoked.
fn desks() -> Vec<EnrolState> {
    let authority = Authority::create(RUN, 0).unwrap();
    let tokens: Vec<Token> = (0..3).map(|_| Token::create(authority.fingerprint()).unwrap()).collect();
    let mut desk = CertificateIssuer::new(authority, EnrolState::default());
    let mut states = vec![desk.state().clone()];
    for token in &tokens {
        desk.add_token(TokenRecord::new(token, 3600, None), 0).unwrap();
        states.push(desk.state().clone());
    }
    assert!(desk.revoke_token(tokens[1].id), "it is there");
    states.push(desk.state().clone());
    states
}

/// Founds a run and writes these desks, and a secret before each; answers how many of them are written.
fn write_desks(storage: &Storage, desks: &[EnrolState]) -> usize {
    let Ok(disk) = Disk::over(storage.clone()) else { return 0 };
    let store = Store::over(disk);
    let founding = Founding { run: RUN, config: config().to_toml().unwrap(), authority: "pem".to_owned() };
    if store.found(&founding, &RunState::new(RUN, &config()), &desks[0]).is_err() {
        return 0;
    }
    let written = (1..desks.len()).take_while(|&number| {
        let secret = store.put_api_token(Key::ApiToken, &secret(number));
        secret.and_then(|()| store.put_enrolment(&desks[number])).is_ok()
    });
    1 + written.count()
}

fn secret(number: usize) -> String {
    format!("secret {number}")
}

#[test]
fn power_that_fails_while_a_token_is_made_or_revoked_leaves_all_that_was_or_is_known_of_tokens() {
    let desks = desks();
    assert_eq!(write_desks(&Storage::new(None), &desks), desks.len());
    let bytes = |desk: &EnrolState| postcard::to_stdvec(desk).unwrap();
    let mut revoked = [0, 0];
    at_each_crash(
        |storage| write_desks(storage, &desks),
        |crash, store| {
            let Crash { place, succeeded, .. } = crash;
            let found = store.load().unwrap().map(|(_, desk)| bytes(&desk));
            let before = succeeded.checked_sub(1).map(|last| bytes(&desks[last]));
            let under_way = desks.get(succeeded).map(bytes);
            assert!(found == before || found == under_way, "{place}: after {succeeded} writes it is neither");
            // The secret of a desk is written before it.
            let known = store.api_token(Key::ApiToken).unwrap();
            let number = desks.iter().position(|desk| Some(bytes(desk)) == found).unwrap_or_default();
            let may_be = [number, number + 1].map(|number| (number > 0).then(|| secret(number)));
            assert!(may_be.contains(&known), "{place}: {known:?} with desk {number}");
            if succeeded + 1 == desks.len() {
                revoked[usize::from(found == under_way)] += 1;
            }
        },
    );
    assert!(revoked.iter().all(|&times| times > 0), "{revoked:?}: both must be seen");
}

#[test]
fn power_that_fails_at_any_write_leaves_the_state_of_before_or_after_a_transaction() {
    let records = written();
    assert!(records.iter().filter(|record| is_state(record)).count() > 5 && !records.iter().all(is_state));
    assert_eq!(write_all(&Storage::new(None), &records), records.len() + 1);
    let (mut torn, mut befores, mut afters) = (0, 0, 0);
    at_each_crash(
        |storage| write_all(storage, &records),
        |crash, store| {
            let (place, succeeded) = (crash.place, crash.succeeded);
            let allowed = allowed(&records, succeeded);
            torn += usize::from(crash.is_torn);
            let found = store.load().unwrap().map(|(state, _)| state);
            assert!(allowed.contains(&found), "{place}: after {succeeded} writes it holds {found:?}");
            assert_eq!(store.founding().unwrap().is_some(), found.is_some(), "{place}");
            if allowed[0] != allowed[1] {
                befores += usize::from(found == allowed[0]);
                afters += usize::from(found == allowed[1]);
            }
            if let Some(state) = found {
                goes_on(state);
            }
        },
    );
    assert!(torn > 0 && befores > 0 && afters > 0, "{torn} torn, {befores} before, {afters} after");
}

/// The harness detects its target: storage that claims to have synced, and has not.
#[test]
fn storage_that_forgets_what_it_has_synced_is_found_out() {
    let records = written();
    let whole = Storage::new(None);
    write_all(&whole, &records);
    let storage = Storage::forgetful(whole.operations());
    let succeeded = write_all(&storage, &records);
    let left = storage.images(1).swap_remove(0);
    let found = Disk::over(Storage::holding(left))
        .ok()
        .and_then(|disk| Store::over(disk).load().ok().flatten().map(|(state, _)| state));
    assert!(succeeded > 3 && !allowed(&records, succeeded).contains(&found));
}
