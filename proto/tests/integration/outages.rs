//! Connections whose path or peer is lost and returns.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use longhaul_common::id::{FragmentId, Generation, Round, WorkerId};
use longhaul_proto::frame::{Frame, FrameKind, FrameMeta};
use longhaul_proto::transport::bulk::{BulkReceiver, BulkSender, ReceiveLimits};
use longhaul_proto::transport::{bind_udp, client_config, endpoint_that_resets};
use quinn::ConnectionError;
use tokio::net::UdpSocket;
use tokio::runtime::Runtime;
use tokio::sync::Notify;

use crate::loopback::{connect, listen, tls};

const ANY: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// A path for one client, which can be cut.
#[derive(Default)]
struct Path {
    is_cut: AtomicBool,
    /// Datagrams lost from the client.
    lost: AtomicU64,
    one_more: Notify,
}

impl Path {
    /// Returns the start of a path to `target`.
    async fn to(self: &Arc<Self>, target: SocketAddr) -> SocketAddr {
        let (outer, inner) = (
            UdpSocket::bind(ANY).await.expect("loopback works"),
            UdpSocket::bind(ANY).await.expect("loopback works"),
        );
        inner.connect(target).await.expect("loopback works");
        let (path, address) = (Arc::clone(self), outer.local_addr().expect("it is bound"));
        tokio::spawn(async move {
            let (mut there, mut back, mut client) = ([0; 2048], [0; 2048], ANY);
            loop {
                tokio::select! {
                    Ok((len, from)) = outer.recv_from(&mut there) => {
                        client = from;
                        if path.is_cut.load(Ordering::Relaxed) {
                            path.lost.fetch_add(1, Ordering::Relaxed);
                            path.one_more.notify_one();
                        } else {
                            inner.send(&there[..len]).await.expect("loopback works");
                        }
                    }
                    Ok(len) = inner.recv(&mut back) => {
                        if !path.is_cut.load(Ordering::Relaxed) {
                            outer.send_to(&back[..len], client).await.expect("loopback works");
                        }
                    }
                }
            }
        });
        address
    }
}

/// QUIC itself would wait longer each time: it would lose as many datagrams only after some minutes, long
/// after the connection has ended.
#[tokio::test]
async fn who_is_not_heard_goes_on_asking_and_is_heard_when_the_path_is_back() {
    let path = Arc::new(Path::default());
    let (server_tls, client_tls) = tls();
    let listening = listen(Some(server_tls));
    let address = path.to(listening.local_addr().unwrap()).await;
    let pair = connect(listening, listen(None), address, client_tls).await;
    let (receiver, mut frames) = BulkReceiver::new(ReceiveLimits::default(), |_| true);
    let server = pair.server.clone();
    tokio::spawn(async move { receiver.serve(&server).await });
    let sender = BulkSender::new(pair.client.clone());

    path.is_cut.store(true, Ordering::Relaxed);
    let meta = FrameMeta {
        kind: FrameKind::Result,
        generation: Generation(1),
        round: Round(2),
        fragment: FragmentId(3),
        sender: WorkerId(4),
        weight: 5,
        part: 6,
    };
    let frame = Frame::new(meta, vec![7; 100].into()).unwrap();
    let sent = tokio::spawn(async move { sender.send(&frame).await });
    while path.lost.load(Ordering::Relaxed) < 30 {
        path.one_more.notified().await;
        assert!(pair.client.close_reason().is_none());
    }
    path.is_cut.store(false, Ordering::Relaxed);
    sent.await.unwrap().unwrap();
    assert_eq!(frames.recv().await.unwrap().frame().body().len(), 100);
}

/// A process is killed, and another one takes over its address and its secret.
#[test]
fn who_speaks_to_a_process_that_was_started_anew_hears_so_at_once() {
    let (server_tls, client_tls) = tls();
    let start = |runtime: &Runtime, address: SocketAddr| {
        let _within = runtime.enter();
        let (socket, _) = bind_udp(address).unwrap();
        let (endpoint, key) = endpoint_that_resets(socket, Some(Arc::clone(&server_tls))).unwrap();
        key.set(&[3; 32]);
        endpoint
    };
    let (before, client_runtime) = (Runtime::new().unwrap(), Runtime::new().unwrap());
    let server = start(&before, ANY);
    let address = server.local_addr().unwrap();
    let accepting = before.spawn(async move { server.accept().await.unwrap().await.unwrap() });
    let connection = client_runtime.block_on(async {
        let connecting = listen(None).connect_with(client_config(client_tls), address, "localhost").unwrap();
        connecting.await.unwrap()
    });
    let accepted = before.block_on(accepting).unwrap();
    // As after a kill, no close is sent.
    before.shutdown_background();
    drop(accepted);

    let after = Runtime::new().unwrap();
    let mut bound = None;
    while bound.is_none() {
        let is_free = std::net::UdpSocket::bind(address).is_ok();
        bound = is_free.then(|| start(&after, address));
        std::thread::yield_now();
    }
    let ended = client_runtime.block_on(async {
        // A nudge may be answered before this write, which then fails for the expected reason.
        if let Ok(mut stream) = connection.open_uni().await {
            let _ = stream.write_all(b"are you there?").await;
        }
        connection.closed().await
    });
    assert_eq!(ended, ConnectionError::Reset);
}
