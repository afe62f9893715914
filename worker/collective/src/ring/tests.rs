//! A member with a certificate that joins and then sends bad frames.

use std::io::Write;
use std::net::Shutdown;

use rustls::Stream;

use super::frame::Header;
use super::loopback::{PATIENT, pair};
use super::*;

/// Returns the error of an honest member 0 of two for a member 1 that joins, writes these bytes and hangs up.
fn verdict_on(bytes: &[u8]) -> CollectiveError {
    let [(honest, own_listener), (other, listener)] = pair();
    let identity = other.identity().unwrap();
    let until = Limit::of(PATIENT).until;
    thread::scope(|scope| {
        let joining = scope.spawn(move || RingCollective::join(&honest, &own_listener).err().unwrap());
        // Kept, so that the honest member's writes succeed.
        let accepting = scope.spawn(|| accept(&identity, &listener, until).unwrap());
        let mut next = dial(&identity, until).unwrap();
        let _previous = accepting.join().unwrap();
        let mut stream = Stream::new(&mut next.tls, &mut next.socket);
        stream.write_all(bytes).and_then(|()| stream.flush()).unwrap();
        next.socket.shutdown(Shutdown::Write).unwrap();
        joining.join().unwrap()
    })
}

/// The header of member 1's statement in the barrier that ends joining.
fn honest() -> Header {
    Header { sequence: 0, offset: 32, total: 64, payload: 32, kind: Kind::Agree as u8 }
}

fn frame(header: Header, payload: &[u8]) -> Vec<u8> {
    [header.to_bytes().as_slice(), payload].concat()
}

#[test]
fn a_length_beyond_any_frame_is_refused_before_it_is_read() {
    let error = verdict_on(&frame(Header { payload: u32::MAX, ..honest() }, &[0; 64]));
    assert!(
        matches!(&error, CollectiveError::PeerLost { reason, .. } if reason.contains("262144")),
        "{error}"
    );
}

#[test]
fn a_header_other_than_the_expected_one_is_an_error_that_says_both() {
    for wrong in [
        Header { sequence: 1, ..honest() },
        Header { offset: 0, ..honest() },
        Header { total: 96, ..honest() },
        Header { payload: 31, ..honest() },
        Header { kind: Kind::Reduce as u8, ..honest() },
    ] {
        let error = verdict_on(&frame(wrong, &[0; 32]));
        let CollectiveError::Disagree { peer, ours, theirs } = &error else { panic!("{error}") };
        assert_eq!((peer.rank, ours, theirs), (1, &honest().to_string(), &wrong.to_string()));
    }
}

#[test]
fn a_statement_that_nobody_makes_is_an_error_and_no_panic() {
    let error = verdict_on(&frame(honest(), &[0xff; 32]));
    assert!(error.to_string().contains("says unknown call 255 where this member says barrier"), "{error}");
}

#[test]
fn a_frame_that_is_cut_off_is_a_lost_peer() {
    for len in [0, 5, 32, 40] {
        let whole = frame(honest(), &[0; 32]);
        let error = verdict_on(&whole[..len]);
        assert!(matches!(&error, CollectiveError::PeerLost { peer, .. } if peer.rank == 1), "{error}");
    }
}
