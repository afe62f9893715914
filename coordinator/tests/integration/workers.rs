//! The `coordinator` binary and workers over real QUIC; the workers speak the protocol and train nothing.

use std::net::{Ipv4Addr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use longhaul_common::id::Round;
use longhaul_proto::control::message::{
    GenerationStart, Heartbeat, Ready, RoundReport, Settled, ToCoordinator, ToWorker, Traffic,
};
use longhaul_proto::control::{EnrolError, enrol, renew};
use longhaul_proto::identity::{PeerName, Token, control_client};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::running::Site;
use crate::running::worker::{Control, Worker, dialler, parts};

/// Rounds of the run in `running::run_toml`.
const ROUNDS: u64 = 3;

impl Control {
    /// Answers until the first generation begins.
    async fn begin(&mut self) -> Arc<GenerationStart> {
        loop {
            match self.hear().await {
                ToWorker::Welcome(welcome) => assert!(welcome.config.contains("name = \"tested\"")),
                ToWorker::Prepare(_) => self.say(ToCoordinator::Ready(Ready {
                    next_round: Round(0),
                    rank: 0,
                    state_hash: [1; 32],
                    parameters: 1000,
                    samples: 500,
                    data_hash: [2; 32],
                    evaluation: Default::default(),
                })),
                ToWorker::Begin(start) => return start,
                other => panic!("unexpected: {other:?}"),
            }
        }
    }

    fn apply(&self, start: &GenerationStart, round: u64) {
        self.say(ToCoordinator::RoundApplied(RoundReport {
            generation: start.membership.generation,
            round: Round(round),
            loss: Some(2.5),
            gradient_norm: Some(0.5),
            samples: 4,
            sites: start.membership.sites().collect(),
            residual_ratio: None,
            state_hash: [round as u8; 32],
            skipped: Vec::new(),
            validation_loss: None,
            validation_accuracy: None,
            refused: Vec::new(),
            refused_beyond: 0,
            measured: None,
            audit: Default::default(),
        }));
    }

    /// Says that all is done, and waits to be dismissed.
    async fn finish(mut self) -> String {
        self.say(ToCoordinator::Finished {
            next_round: Round(ROUNDS),
            validation_loss: Some(3.5),
            validation_accuracy: None,
        });
        loop {
            match self.hear().await {
                ToWorker::Dismiss { reason } => return reason,
                ToWorker::Settle { generation } => {
                    let (open_round, computing) = (Round(ROUNDS), Round(ROUNDS - 1));
                    self.say(ToCoordinator::Settled(Settled {
                        generation,
                        open_round,
                        computing,
                        results: Vec::new(),
                    }));
                }
                ToWorker::Begin(_) => self.say(ToCoordinator::Finished {
                    next_round: Round(ROUNDS),
                    validation_loss: Some(3.5),
                    validation_accuracy: None,
                }),
                other => panic!("unexpected: {other:?}"),
            }
        }
    }
}

async fn train(worker: Worker) -> String {
    let mut control = worker.join(None).await.unwrap();
    let start = control.begin().await;
    (0..ROUNDS).for_each(|round| control.apply(&start, round));
    let traffic = Traffic { wan_sent_bytes: 10, dense_bytes: 40, ..Traffic::default() };
    let sent = Heartbeat { tokens: 100, traffic, ..Heartbeat::default() };
    control.say(ToCoordinator::Heartbeat(sent));
    control.finish().await
}

#[tokio::test(flavor = "multi_thread")]
async fn two_workers_enrol_train_and_are_dismissed() {
    let site = Site::new();
    let running = site.start(&["--stay"]);
    let (one, two) = (Worker::enrol(&running, "north").await, Worker::enrol(&running, "south").await);
    assert_ne!(one.identity.worker(), two.identity.worker());
    let (one, two) = tokio::join!(train(one), train(two));
    assert!(one.contains("the run is finished") && two.contains("the run is finished"));
    let status = site.status();
    assert_eq!((&status["phase"], &status["round"]), (&"finished".into(), &ROUNDS.into()));
    assert_eq!((status["parity"]["equal"].as_bool(), status["loss"].as_f64()), (Some(true), Some(2.5)));
    assert_eq!(status["samples_counted"], 6 * 4);
    assert_eq!(status["validation_loss"], 3.5);
    assert_eq!((&status["tokens"], &status["bytes_ratio"]), (&200.into(), &4.0.into()));
    assert!(status["tokens_per_s_mean"].as_f64().is_some_and(|speed| speed > 0.0), "{status:#}");
    assert_eq!(
        status["ledger"],
        serde_json::json!({ "positions_applied": 24, "duplicates": 0, "pending": 0, "given_out": 24, "waiting": 0 })
    );
    let members = status["members"].as_array().unwrap();
    assert!(members.len() == 2 && members.iter().all(|member| member["state"] == "finished"), "{status:#}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_was_revoked_lets_nobody_in() {
    let site = Site::new();
    let running = site.start(&[]);
    let (coordinator, token) = parts(&running.join_line);
    site.told(&["token", "revoke", &token.id.to_string()]);
    let refused = enrol(&dialler(), coordinator, &token, "north").await.unwrap_err();
    assert!(matches!(refused, EnrolError::Refused(_)), "{refused}");
    assert!(refused.to_string().contains("revoked"), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn guesses_of_a_join_token_are_answered_one_after_the_other() {
    const GUESSES: u32 = 6;
    let site = Site::new();
    let running = site.start(&[]);
    let (coordinator, token) = parts(&running.join_line);
    let began = Instant::now();
    let mut guesses = JoinSet::new();
    for _ in 0..GUESSES {
        let guess = Token { id: token.id, ..Token::create(token.authority).unwrap() };
        guesses.spawn(async move {
            let refused = enrol(&dialler(), coordinator, &guess, "north").await.unwrap_err();
            assert!(refused.to_string().contains("secret is wrong"), "{refused}");
        });
    }
    enrol(&dialler(), coordinator, &token, "north").await.unwrap();
    guesses.join_all().await;
    assert!(began.elapsed() >= GUESSES * Duration::from_millis(500), "{:?}", began.elapsed());
}

/// A laptop that goes from one network to another, or a machine whose lease has ended.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_whose_address_changes_goes_on_and_the_others_hear_where_it_is() {
    let site = Site::new();
    let running = site.start(&[]);
    let workers = [Worker::enrol(&running, "north").await, Worker::enrol(&running, "south").await];
    let mut first = workers[0].join(None).await.unwrap();
    let mut second = workers[1].join(None).await.unwrap();
    tokio::join!(first.begin(), second.begin());
    let elsewhere = Ipv4Addr::new(127, 0, 0, 77);
    workers[1].endpoint.rebind(UdpSocket::bind((elsewhere, 0)).unwrap()).unwrap();
    let settle = async |control: &mut Control| {
        let ToWorker::Settle { generation } = control.hear().await else { panic!("no generation begins") };
        let results = Vec::new();
        let (open_round, computing) = (Round(0), Round(0));
        control.say(ToCoordinator::Settled(Settled { generation, open_round, computing, results }));
        match control.hear().await {
            ToWorker::Begin(start) => start,
            other => panic!("unexpected: {other:?}"),
        }
    };
    let (start, _) = tokio::join!(settle(&mut first), settle(&mut second));
    let here = |worker: &Worker| {
        let member =
            start.membership.members().iter().find(|member| member.worker == worker.identity.worker());
        member.map(|member| member.wan_address.ip())
    };
    assert_eq!(here(&workers[0]), Some(Ipv4Addr::LOCALHOST.into()));
    assert_eq!(here(&workers[1]), Some(elsewhere.into()));
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_go_on_when_the_coordinator_is_killed_and_comes_back() {
    let site = Site::new();
    let port = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().to_string();
    let listen = ["--listen", port.as_str()];
    let running = site.start(&listen);
    let workers = [Worker::enrol(&running, "north").await, Worker::enrol(&running, "south").await];
    let mut controls = Vec::new();
    for worker in &workers {
        controls.push(worker.join(None).await.unwrap());
    }
    let [mut first, mut second] = <[Control; 2]>::try_from(controls).ok().unwrap();
    let (start, _) = tokio::join!(first.begin(), second.begin());
    running.kill();
    // The old connections are of no use any more.
    first.connection.close(0u32.into(), b"");
    second.connection.close(0u32.into(), b"");

    let _again = site.start(&listen);
    let held = Some((start.membership.generation, Round(0)));
    let finish = async |worker: &Worker| {
        let mut control = worker.join_again(held).await;
        match control.hear().await {
            ToWorker::Welcome(welcome) => assert!(welcome.resumed, "a member with its memory goes on"),
            other => panic!("unexpected: {other:?}"),
        }
        (0..ROUNDS).for_each(|round| control.apply(&start, round));
        control.finish().await
    };
    let (one, two) = tokio::join!(finish(&workers[0]), finish(&workers[1]));
    assert!(one.contains("the run is finished") && two.contains("the run is finished"));
}

#[tokio::test(flavor = "multi_thread")]
async fn silent_connections_do_not_hold_the_others_up() {
    let site = Site::new();
    let running = site.start(&[]);
    let (one, two) = (Worker::enrol(&running, "north").await, Worker::enrol(&running, "south").await);
    // They show a certificate, and then never say a word.
    let mut silent = Vec::new();
    for _ in 0..40 {
        let config = quinn::ClientConfig::new(control_client(&one.identity).unwrap());
        let name = PeerName::Coordinator.in_run(one.identity.run());
        silent.push(one.endpoint.connect_with(config, one.coordinator, &name).unwrap().await.unwrap());
    }
    let (one, two) = tokio::join!(train(one), train(two));
    assert!(one.contains("the run is finished") && two.contains("the run is finished"));
    assert_eq!(silent.len(), 40);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kicked_worker_is_told_why_cut_off_and_certified_no_more() {
    let site = Site::new();
    let running = site.start(&[]);
    let (one, two) = (Worker::enrol(&running, "north").await, Worker::enrol(&running, "south").await);
    let mut first = one.join(None).await.unwrap();
    let mut second = two.join(None).await.unwrap();
    tokio::join!(first.begin(), second.begin());
    let name = two.identity.worker().to_string();
    let said = site.told(&["kick", &name, "--json"]);
    let kicked: serde_json::Value = serde_json::from_str(&said).unwrap();
    let (_, token) = parts(&running.join_line);
    assert_eq!(
        kicked,
        serde_json::json!({ "id": name, "token": token.id.to_string(), "token_is_valid": true })
    );
    let told = first.hear().await;
    assert_eq!(told, ToWorker::Revoked { workers: vec![two.identity.worker()] });
    match second.hear().await {
        ToWorker::Refused { reason } => assert!(reason.contains("its certificate is revoked"), "{reason}"),
        other => panic!("unexpected: {other:?}"),
    }
    second.connection.closed().await;
    // Neither joined again, whether it is hung up on before its hello or after it, nor renewed.
    if let Some(mut again) = two.join(None).await {
        let refused = again.receiver.receive().await.unwrap_err();
        assert!(refused.is_stranger(), "{refused}");
    }
    let refused = renew(&two.endpoint, two.coordinator, &two.identity, "south").await.unwrap_err();
    assert!(refused.to_string().contains("revoked"), "{refused}");
    let page = site.told(&["members"]);
    assert!(page.lines().any(|line| line.starts_with(&name) && line.contains("kicked")), "{page}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drained_worker_is_dismissed_and_an_unknown_one_is_named_with_those_who_are_here() {
    let site = Site::new();
    let running = site.start(&[]);
    let (one, two) = (Worker::enrol(&running, "north").await, Worker::enrol(&running, "south").await);
    let mut first = one.join(None).await.unwrap();
    let mut second = two.join(None).await.unwrap();
    tokio::join!(first.begin(), second.begin());
    for what in ["drain", "kick"] {
        let unknown = site.ask(&[what, "w77"]);
        let said = String::from_utf8_lossy(&unknown.stderr).into_owned();
        assert_eq!(unknown.status.code(), Some(1));
        assert!(said.contains("w77") && said.contains("here are w0, w1"), "{said}");
        let odd = site.ask(&[what, "../stop"]);
        assert!(String::from_utf8_lossy(&odd.stderr).contains("is no worker id"));
    }
    site.told(&["drain", &two.identity.worker().to_string()]);
    assert!(matches!(second.hear().await, ToWorker::Dismiss { reason } if reason.contains("operator")));
    assert!(matches!(first.hear().await, ToWorker::Settle { .. }));
    let members: serde_json::Value = serde_json::from_str(&site.told(&["members", "--json"])).unwrap();
    assert_eq!((&members[0]["state"], &members[1]["state"]), (&"training".into(), &"left".into()));
    assert!(members[1]["why"].as_str().unwrap().contains("operator"), "{members:#}");
    let page = site.told(&["status"]);
    assert!(page.contains(&format!("not here   1 left ({})", two.identity.worker())), "{page}");
}
