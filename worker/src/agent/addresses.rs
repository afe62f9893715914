//! Selection of the address to dial for a host name, which may resolve to several, IPv4 and IPv6.

use std::net::SocketAddr;
use std::time::Duration;

use longhaul_proto::control::{Probe, ProbeError};
use quinn::Endpoint;
use tokio::task::JoinSet;
use tokio::time::sleep;

/// Delay before the next address is tried (RFC 8305, section 5); a failure ends it early.
const BETWEEN: Duration = Duration::from_millis(250);

/// Orders addresses for dialling: families alternate, IPv4 first. RFC 8305 starts with IPv6. Here peers dial the address that the coordinator observes, and
/// more of them have IPv4.
pub fn in_order(addresses: impl IntoIterator<Item = SocketAddr>) -> Vec<SocketAddr> {
    let (four, six): (Vec<_>, Vec<_>) = addresses.into_iter().partition(SocketAddr::is_ipv4);
    let (mut four, mut six) = (four.into_iter(), six.into_iter());
    let mut ordered = Vec::new();
    loop {
        let before = ordered.len();
        ordered.extend(four.next());
        ordered.extend(six.next());
        if ordered.len() == before {
            return ordered;
        }
    }
}

/// Returns the first address at which a coordinator answers; `None`: no address answers.
pub async fn first_that_answers(endpoint: &Endpoint, addresses: &[SocketAddr]) -> Option<SocketAddr> {
    let (mut left, mut asked) = (addresses.iter().copied(), JoinSet::new());
    let mut ask = |asked: &mut JoinSet<Option<SocketAddr>>| {
        let address = left.next()?;
        let endpoint = endpoint.clone();
        asked.spawn(async move {
            let dialled = Probe::dial(&endpoint, address, None).await;
            let answers = matches!(
                dialled,
                Ok(_) | Err(ProbeError::Busy | ProbeError::Version { .. } | ProbeError::OutOfDate)
            );
            answers.then_some(address)
        });
        Some(())
    };
    let mut has_more = ask(&mut asked).is_some();
    loop {
        tokio::select! {
            answered = asked.join_next() => match answered {
                Some(Ok(Some(address))) => return Some(address),
                Some(_) => has_more = has_more && ask(&mut asked).is_some(),
                None => return None,
            },
            () = sleep(BETWEEN), if has_more => has_more = ask(&mut asked).is_some(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::sync::Arc;

    use longhaul_common::id::RunId;
    use longhaul_proto::control::{Acceptor, AuthenticatedPeer, EnrolRefusal, EnrolReply, serve_enrol};
    use longhaul_proto::identity::{Authority, coordinator_server};
    use longhaul_proto::transport;
    use quinn::ServerConfig;

    use super::super::connection::unix_s;
    use super::*;

    #[test]
    fn kinds_take_turns_and_the_first_is_of_ipv4() {
        let parse =
            |text: &str| text.split(' ').map(|address| address.parse().unwrap()).collect::<Vec<SocketAddr>>();
        for (found, ordered) in [
            ("[::1]:1 [::2]:1 1.1.1.1:1", "1.1.1.1:1 [::1]:1 [::2]:1"),
            ("1.1.1.1:1 2.2.2.2:1 3.3.3.3:1 [::1]:1", "1.1.1.1:1 [::1]:1 2.2.2.2:1 3.3.3.3:1"),
            ("[::1]:1", "[::1]:1"),
        ] {
            assert_eq!(in_order(parse(found)), parse(ordered));
        }
        assert!(in_order([]).is_empty());
    }

    /// A coordinator that enrols no workers and answers probes.
    fn answering(run: RunId) -> Endpoint {
        let authority = Authority::create(run, unix_s()).unwrap();
        let mut config = ServerConfig::with_crypto(coordinator_server(&authority, unix_s()).unwrap());
        let acceptor = Acceptor::new(run);
        acceptor.limit(Arc::get_mut(&mut config.transport).unwrap());
        let endpoint = Endpoint::server(config, ([127, 0, 0, 1], 0).into()).unwrap();
        let accepting = endpoint.clone();
        tokio::spawn(async move {
            while let Some(incoming) = accepting.accept().await {
                let acceptor = acceptor.clone();
                tokio::spawn(async move {
                    if let Ok(AuthenticatedPeer::Applicant(applicant)) = acceptor.admit(incoming).await {
                        let nobody = async |_, _| EnrolReply::Refused(EnrolRefusal::Full);
                        let _ = serve_enrol(applicant, nobody).await;
                    }
                });
            }
        });
        endpoint
    }

    /// Far less than the timeout of an unresponsive address.
    const SOON: Duration = Duration::from_secs(4);

    #[tokio::test]
    async fn an_address_that_nobody_answers_at_holds_nobody_up() {
        let (socket, _) = transport::bind_udp("[::]:0".parse().unwrap())
            .or_else(|_| transport::bind_udp("0.0.0.0:0".parse().unwrap()))
            .unwrap();
        let dialling = transport::endpoint(socket, None).unwrap();
        let mute = UdpSocket::bind("127.0.0.1:0").unwrap();
        let silent = mute.local_addr().unwrap();
        let coordinator = answering(RunId([7; 16]));
        let answers = coordinator.local_addr().unwrap();
        // Dialling port 0 always fails.
        let nowhere: SocketAddr = "127.0.0.1:0".parse().unwrap();
        for addresses in
            [vec![answers], vec![silent, answers], vec![nowhere, silent, answers], vec![answers, silent]]
        {
            let found = tokio::time::timeout(SOON, first_that_answers(&dialling, &addresses)).await;
            assert_eq!(found, Ok(Some(answers)), "{addresses:?}");
        }
        assert_eq!(first_that_answers(&dialling, &[nowhere]).await, None);
        assert_eq!(first_that_answers(&dialling, &[]).await, None);
    }
}
