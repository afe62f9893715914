//! Waiting for other workers, and its limits.

use std::future::ready;

use longhaul_proto::transport::bulk::ReceiveError;

use super::super::route::{PeerLocation, is_keeper};
use super::*;

/// Reports whether a peer refused, rather than not answering.
fn is_refusal(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| cause.downcast_ref::<ReceiveError>().is_some_and(ReceiveError::is_refusal))
}

#[tokio::test(flavor = "multi_thread")]
async fn where_all_who_have_it_are_gone_it_waits_and_goes_on_with_another_one() {
    let (authority, text) = (authority(), Text::new());
    let first = holder(&authority, 9, &text);
    let remote = Remote::new(&authority, 1, SiteId(1), &text);
    let own = [remote.worker.member.clone()];
    remote.told(text.holders(from_ref(&first.member), &own));
    let blocks = text.blocks();
    timeout(PATIENCE, remote.waiting(blocks[0])).await.unwrap().unwrap().unwrap();
    // It hangs up on all peers and answers none.
    first.network.endpoint.close(0u32.into(), b"dead");
    first.network.stop();
    remote.told(text.holders(&[], &own));
    let waiting = remote.waiting(blocks[1]);
    remote.until_failed(blocks[1], 2).await;
    assert!(!waiting.is_finished());
    let second = holder(&authority, 8, &text);
    remote.told(text.holders(from_ref(&second.member), &own));
    timeout(PATIENCE, waiting).await.unwrap().unwrap().unwrap();
    // The end of a session ends all waiting.
    remote.told(text.holders(&[], &own));
    let waiting = remote.waiting(blocks[2]);
    remote.until_failed(blocks[2], 2).await;
    assert!(!waiting.is_finished());
    remote.worker.network.stop();
    let ended = timeout(PATIENCE, waiting).await.unwrap().unwrap();
    assert!(matches!(ended, Err(DataError::Stopped)), "{ended:?}");
    // Blocks outside the run's data are never requested.
    let unknown = BlockName { shard: [1; 32], block: 0 };
    assert!(matches!(remote.supplier.until_here(unknown).await, Err(DataError::NotKept { .. })));
}

#[tokio::test(flavor = "multi_thread")]
async fn two_sites_that_have_only_fetched_some_do_not_wait_for_each_other() {
    let (authority, text) = (authority(), Text::new());
    let remotes = [1, 2].map(|number| Remote::new(&authority, number, SiteId(number), &text));
    let members = remotes.each_ref().map(|remote| remote.worker.member.clone());
    for (remote, own) in remotes.iter().zip(&members) {
        remote.told(text.holders(&members, from_ref(own)));
    }
    let name = text.blocks()[0];
    let waiting = remotes.each_ref().map(|remote| remote.waiting(name));
    for (remote, other) in remotes.iter().zip([&members[1], &members[0]]) {
        remote.until_failed(name, 3).await;
        // It refused each time.
        let is_slow = remote.supplier.donors().is_passed_over(other.worker, tokio::time::Instant::now());
        assert!(!is_slow, "{} and this worker wait for each other", other.worker);
    }
    let holder = holder(&authority, 9, &text);
    let all = [&members[..], from_ref(&holder.member)].concat();
    for (remote, own) in remotes.iter().zip(&members) {
        remote.told(text.holders(&all, from_ref(own)));
    }
    for waiting in waiting {
        timeout(PATIENCE, waiting).await.unwrap().unwrap().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_fetches_for_its_neighbours_alone_and_says_so_when_nobody_has_it() {
    let (authority, text) = (authority(), Text::new());
    let far = holder(&authority, 9, &text);
    let keeper = Remote::new(&authority, 1, SiteId(1), &text);
    let neighbour = Worker::start_at(&authority, 2, SiteId(1), ReceiveLimits::default());
    let stranger = Worker::start(&authority, 3, ReceiveLimits::default());
    let own = from_ref(&keeper.worker.member);
    let name = text.blocks()[0];
    // By this list it is the keeper of all, and the only neighbour.
    keeper.told(text.holders(from_ref(&far.member), own));
    for worker in [&stranger, &neighbour] {
        let answer = keeper.asked(worker, name, true).await.unwrap_err();
        assert!(is_refusal(&answer), "{answer:#}");
    }
    assert_eq!(keeper.fetched(), (0, 0), "another worker made it fetch");
    let neighbours = [keeper.worker.member.clone(), neighbour.member.clone()];
    let place = PeerLocation { worker: WorkerId(1), site: SiteId(1) };
    let is_own = |name: BlockName| is_keeper(&text.holders(&[], &neighbours), place, name);
    let name = text.blocks().into_iter().find(|name| is_own(*name)).unwrap();
    // An unsuccessful worker refuses, and stops fetching.
    keeper.told(text.holders(&[], &neighbours));
    let answer = keeper.asked(&neighbour, name, true).await.unwrap_err();
    assert!(is_refusal(&answer), "{answer:#}");
    assert!(keeper.supplier.open(name).is_none());
    keeper.told(text.holders(from_ref(&far.member), &neighbours));
    let answer = keeper.asked(&stranger, name, true).await.unwrap_err();
    assert!(is_refusal(&answer), "{answer:#}");
    keeper.asked(&neighbour, name, true).await.unwrap();
    assert!(keeper.fetched().0 > 0);
    // Others get present blocks.
    keeper.asked(&stranger, name, false).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn who_is_not_named_has_left_only_if_others_are() {
    let (authority, text) = (authority(), Text::new());
    let worker = Worker::start(&authority, 1, ReceiveLimits::default());
    let of = |number| member(number, ([127, 0, 0, 1], 9).into());
    let has_left = async |holders: DataHolders| {
        worker.network.note_data_holders(&holders);
        tokio::select! {
            biased;
            () = worker.network.peer_data.until_left(WorkerId(9)) => true,
            () = ready(()) => false,
        }
    };
    assert!(!has_left(text.holders(&[of(8), of(9)], &[])).await);
    assert!(!has_left(text.holders(&[of(8)], &[of(9)])).await);
    // A restarted coordinator knows no worker yet.
    assert!(!has_left(DataHolders::default()).await);
    assert!(!has_left(text.holders(&[], &[])).await);
    assert!(has_left(text.holders(&[of(8)], &[])).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_has_nothing_waits_for_somebody_who_says_what_there_is() {
    let (authority, text) = (authority(), Text::new());
    let worker = Worker::start(&authority, 1, ReceiveLimits::default());
    let searching = Arc::clone(&worker.network);
    let useless = DataName { data: [4; 32], catalogue: [4; 32] };
    let found = spawn_blocking(move || searching.find_data(&[useless]));
    let mut at = worker.network.data_at();
    timeout(PATIENCE, at.wait_for(|at| *at == Some(DataAt::Nowhere))).await.unwrap().unwrap();
    let honest = holder(&authority, 9, &text);
    let named = |name| DataHolders { name: Some(name), ..text.holders(from_ref(&honest.member), &[]) };
    // Refused data is not requested again; a holder has another catalogue than the coordinator's; and then the one that it has.
    worker.network.note_data_holders(&named(useless));
    worker.network.note_data_holders(&named(DataName { catalogue: [5; 32], ..text.name }));
    worker.network.note_data_holders(&named(text.name));
    let found = timeout(PATIENCE, found).await.unwrap().unwrap().unwrap();
    assert_eq!((found.name, found.tokenizer), (text.name, None));
    assert_eq!(found.catalogue.to_bytes().unwrap(), *text.provider.catalogue);
    // The end of a session ends the wait.
    let (searching, network) = (Arc::clone(&worker.network), Arc::clone(&worker.network));
    worker.network.note_data_holders(&DataHolders::default());
    let found = spawn_blocking(move || searching.find_data(&[]));
    network.stop();
    assert!(timeout(PATIENCE, found).await.unwrap().unwrap().is_err());
}
