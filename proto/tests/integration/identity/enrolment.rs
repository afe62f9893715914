//! From token to certificate to connections.

use longhaul_common::id::WorkerId;
use longhaul_proto::control::{EnrolError, EnrolRefusal, enrol, renew};
use longhaul_proto::identity::{
    Authority, Fingerprint, PeerName, Token, TokenId, TokenRefusal, data_client, peer_worker,
};
use quinn::ClientConfig;

use super::net::{DAY_S, Front, RUN, client_endpoint, data_endpoint, now_unix_s};

#[tokio::test]
async fn a_token_leads_to_a_certificate_to_the_control_channel_and_to_other_workers() {
    let mut front = Front::open(now_unix_s());
    // As a user would: through the text form.
    let token: Token = front.token(Some(2)).to_string().parse().unwrap();
    let endpoint = client_endpoint();
    let one = enrol(&endpoint, front.address, &token, "amsterdam").await.unwrap();
    let two = enrol(&endpoint, front.address, &token, "bratislava").await.unwrap();
    assert_eq!((one.worker(), two.worker(), one.run()), (WorkerId(0), WorkerId(1), RUN));
    front.connect(&one).await;
    front.connect(&two).await;

    let (listener, address) = data_endpoint(&two);
    let serve = async {
        let connection = listener.accept().await.unwrap().await.unwrap();
        let mut stream = connection.accept_uni().await.unwrap();
        let bytes = stream.read_to_end(100).await.unwrap();
        (peer_worker(&connection, RUN), bytes)
    };
    let dial = async {
        let name = PeerName::Worker(two.worker()).in_run(RUN);
        let config = ClientConfig::new(data_client(&one).unwrap());
        let connection = endpoint.connect_with(config, address, &name).unwrap().await.unwrap();
        let mut stream = connection.open_uni().await.unwrap();
        stream.write_all(b"an update").await.unwrap();
        stream.finish().unwrap();
        stream.stopped().await.unwrap();
        peer_worker(&connection, RUN)
    };
    let ((dialler, bytes), listener_name) = tokio::join!(serve, dial);
    assert_eq!((dialler, &bytes[..], listener_name), (Ok(WorkerId(0)), &b"an update"[..], Ok(WorkerId(1))));
}

#[tokio::test]
async fn a_renewed_certificate_names_the_same_worker_and_opens_the_same_doors() {
    let mut front = Front::open(now_unix_s() + 3600);
    let endpoint = client_endpoint();
    let first = enrol(&endpoint, front.address, &front.token(Some(1)), "amsterdam").await.unwrap();
    let second = renew(&endpoint, front.address, &first, "amsterdam").await.unwrap();
    assert_eq!(second.worker(), first.worker());
    front.connect(&second).await;
    assert!(front.issuer.lock().unwrap().revoke_worker(first.worker()));
    let refused = renew(&endpoint, front.address, &second, "amsterdam").await.unwrap_err();
    assert!(matches!(refused, EnrolError::Refused(EnrolRefusal::Revoked)), "{refused}");
}

/// Enrols and expects a refusal of the token.
async fn refusal(front: &Front, token: &Token) -> TokenRefusal {
    match enrol(&client_endpoint(), front.address, token, "amsterdam").await {
        Err(error @ EnrolError::Refused(EnrolRefusal::Token(refusal))) => {
            assert!(error.is_final());
            refusal
        }
        other => panic!("not refused for its token: {other:?}"),
    }
}

#[tokio::test]
async fn a_token_with_the_wrong_secret_or_an_unknown_id_is_refused() {
    let front = Front::open(now_unix_s());
    let token = front.token(None);
    let stolen_id = Token { secret: Token::create(token.authority).unwrap().secret, ..token.clone() };
    assert_eq!(refusal(&front, &stolen_id).await, TokenRefusal::WrongSecret);
    let unknown = Token { id: TokenId([0; 8]), ..token };
    assert_eq!(refusal(&front, &unknown).await, TokenRefusal::Unknown);
}

#[tokio::test]
async fn an_expired_token_is_refused() {
    let front = Front::open(now_unix_s() + 2 * DAY_S);
    assert_eq!(refusal(&front, &front.token(None)).await, TokenRefusal::Expired);
}

#[tokio::test]
async fn a_used_up_token_is_refused() {
    let front = Front::open(now_unix_s());
    let token = front.token(Some(1));
    enrol(&client_endpoint(), front.address, &token, "amsterdam").await.unwrap();
    assert_eq!(refusal(&front, &token).await, TokenRefusal::UsedUp);
}

#[tokio::test]
async fn a_revoked_token_is_refused() {
    let front = Front::open(now_unix_s());
    let token = front.token(None);
    front.issuer.lock().unwrap().revoke_token(token.id);
    assert_eq!(refusal(&front, &token).await, TokenRefusal::Revoked);
}

#[tokio::test]
async fn a_worker_turns_away_from_a_coordinator_with_another_authority() {
    let mut front = Front::open(now_unix_s());
    let elsewhere = Authority::create(RUN, now_unix_s()).unwrap().fingerprint();
    for fingerprint in [elsewhere, Fingerprint([0; 32])] {
        let token = Token { authority: fingerprint, ..front.token(None) };
        let refused = enrol(&client_endpoint(), front.address, &token, "amsterdam").await.unwrap_err();
        assert!(matches!(refused, EnrolError::WrongCoordinator { .. }), "{refused}");
        assert!(refused.is_final());
        // The coordinator saw a failed handshake, and no request.
        front.turned_away.recv().await.unwrap();
    }
    assert_eq!(front.issuer.lock().unwrap().workers().count(), 0);
}
