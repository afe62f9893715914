//! The relays with real sockets. The tests check arrivals and counts, not times.

use std::net::{Ipv4Addr, UdpSocket};
use std::time::Duration;

use super::*;

/// Longer than any machine takes for a few datagrams over loopback: reached only by a failure.
const PATIENCE: Duration = Duration::from_secs(20);

fn socket() -> UdpSocket {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket
}

fn link(name: &str, notation: &str) -> Link {
    Link::new(name, notation.parse().unwrap(), 1).unwrap()
}

fn relay(relays: &Relays, target: &UdpSocket, forward: &Link, reverse: &Link) -> SocketAddr {
    relay_for(BTreeMap::new(), relays, target, forward, reverse)
}

fn relay_for(
    clients: BTreeMap<SocketAddr, Access>,
    relays: &Relays,
    target: &UdpSocket,
    forward: &Link,
    reverse: &Link,
) -> SocketAddr {
    let config = RelayConfig {
        listen: (Ipv4Addr::LOCALHOST, 0).into(),
        target: target.local_addr().unwrap(),
        forward: forward.clone(),
        reverse: reverse.clone(),
        clients: clients.into(),
    };
    relays.add(config).unwrap()
}

#[test]
fn a_client_with_links_of_its_own_crosses_them_first_and_its_replies_cross_them_last() {
    let (server, client, other) = (socket(), socket(), socket());
    let [into, out_of, forward, reverse] = ["into", "out", "forward", "reverse"].map(|name| link(name, ""));
    let not_to = NotTo::default();
    let access = Access { into: into.clone(), out_of: out_of.clone(), not_to: not_to.clone() };
    let clients = BTreeMap::from([(client.local_addr().unwrap(), access)]);
    let relays = Relays::start().unwrap();
    let address = relay_for(clients, &relays, &server, &forward, &reverse);
    let mut buffer = [0; 2000];
    let mut ask = |client: &UdpSocket, what: &[u8]| {
        client.send_to(what, address).unwrap();
        let (len, from) = server.recv_from(&mut buffer).unwrap();
        assert_eq!(&buffer[..len], what);
        server.send_to(&[9; 100], from).unwrap();
        assert_eq!(client.recv_from(&mut buffer).unwrap().0, 100);
    };

    ask(&client, b"one");
    ask(&other, b"two");
    let delivered = |link: &Link| link.stats().delivered.packets;
    assert_eq!([&out_of, &forward, &reverse, &into].map(delivered), [1, 2, 2, 1]);

    out_of.partition();
    client.send_to(b"lost", address).unwrap();
    ask(&other, b"three");
    out_of.heal();
    ask(&client, b"four");
    assert_eq!([&out_of, &forward, &reverse, &into].map(delivered), [2, 4, 4, 2]);

    not_to.set([server.local_addr().unwrap()]);
    client.send_to(b"nowhere", address).unwrap();
    ask(&other, b"five");
    not_to.set([]);
    ask(&client, b"six");
    assert_eq!([&out_of, &forward, &reverse, &into].map(delivered), [3, 6, 6, 3]);
}

#[test]
fn datagrams_cross_in_order_replies_find_their_client_and_both_are_counted() {
    let server = socket();
    let (forward, reverse) = (link("a-b", "rate_mbit=100,delay_ms=2"), link("b-a", "rate_mbit=100"));
    let relays = Relays::start().unwrap();
    let address = relay(&relays, &server, &forward, &reverse);
    let clients = [socket(), socket()];
    let mut buffer = [0; 2000];

    for (number, client) in clients.iter().enumerate() {
        for sequence in 0..10 {
            client.send_to(&[number as u8, sequence], address).unwrap();
        }
        let mut from = None;
        for sequence in 0..10 {
            let (len, address) = server.recv_from(&mut buffer).unwrap();
            assert_eq!(buffer[..len], [number as u8, sequence]);
            from = Some(address);
        }
        server.send_to(&[0xb0 + number as u8; 1000], from.unwrap()).unwrap();
    }
    for (number, client) in clients.iter().enumerate() {
        let (len, from) = client.recv_from(&mut buffer).unwrap();
        assert_eq!(buffer[..len], [0xb0 + number as u8; 1000]);
        assert_eq!(from, address);
    }

    assert_eq!(forward.stats().delivered, crate::Count { packets: 20, bytes: 20 * (2 + 28) });
    assert_eq!(reverse.stats().delivered, crate::Count { packets: 2, bytes: 2 * (1000 + 28) });
    assert_eq!(relays.stats(), RelayStats::default());
}

#[test]
fn a_partition_lets_nothing_through_and_the_next_datagram_after_it_crosses() {
    let server = socket();
    let wan = link("wan", "");
    let relays = Relays::start().unwrap();
    let first = relay(&relays, &server, &wan, &wan);
    let second = relay(&relays, &server, &wan, &wan);
    let client = socket();
    let mut buffer = [0; 2000];

    client.send_to(b"before", first).unwrap();
    assert_eq!(server.recv(&mut buffer).unwrap(), 6);
    wan.partition();
    // Both relays share the link; the counter shows when it has seen them.
    client.send_to(b"during", first).unwrap();
    client.send_to(b"during", second).unwrap();
    while wan.stats().partition_dropped.packets < 2 {
        std::thread::yield_now();
    }
    wan.heal();
    client.send_to(b"after", second).unwrap();
    let len = server.recv(&mut buffer).unwrap();
    assert_eq!(&buffer[..len], b"after");
}
