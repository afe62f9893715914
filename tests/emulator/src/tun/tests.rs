//! The TUN pair with real namespaces, if this user may create them.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

use longhaul_tests::tools::skipped;

use super::*;
use crate::Link;

fn link(name: &str) -> Link {
    Link::new(name, "rate_mbit=100,delay_ms=1".parse().unwrap(), 1).unwrap()
}

#[test]
fn addresses_are_read_with_their_prefix() {
    let side = SideConfig::new("wan-a", "10.77.0.1/24").unwrap();
    assert_eq!((side.address, side.prefix_len), (Ipv4Addr::new(10, 77, 0, 1), 24));
    for address in ["10.77.0.1", "10.77.0/24", "10.77.0.1/31", "wan/24"] {
        assert!(SideConfig::new("wan-a", address).is_err(), "{address}");
    }
}

#[test]
fn a_tcp_connection_between_the_namespaces_crosses_both_links() {
    const SENT_BYTES: usize = 100_000;
    let side = |letter: &str, address| {
        SideConfig::new(&format!("longhaul-{letter}-{}", std::process::id()), address).unwrap()
    };
    let (a, b) = (side("a", "10.78.0.1/24"), side("b", "10.78.0.2/24"));
    let (forward, reverse) = (link("a-b"), link("b-a"));
    let pair = match TunPair::start(&a, &b, forward.clone(), reverse.clone()) {
        Ok(pair) => pair,
        Err(error @ TunError::Unavailable { .. }) => return skipped(&error.to_string()),
        Err(error) => panic!("{error}"),
    };

    let listener = b.within(|| TcpListener::bind((b.address, 0)).unwrap()).unwrap();
    let address: SocketAddr = listener.local_addr().unwrap();
    let mut client = a.within(|| TcpStream::connect(address).unwrap()).unwrap();
    let (mut server, peer) = listener.accept().unwrap();
    assert_eq!(peer.ip(), a.address);
    client.write_all(&[7; SENT_BYTES]).unwrap();
    client.shutdown(std::net::Shutdown::Write).unwrap();
    let mut received = Vec::new();
    server.read_to_end(&mut received).unwrap();

    assert_eq!(received, [7; SENT_BYTES]);
    assert!(forward.stats().delivered.bytes > SENT_BYTES as u64, "contents and headers");
    assert!(reverse.stats().delivered.packets > 0, "acknowledgements");
    drop(pair);
    assert!(!std::path::Path::new(&format!("/var/run/netns/{}", a.netns)).exists());
}
