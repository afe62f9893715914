//! The coordinator's sockets: QUIC for workers, HTTP for people.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use axum::Router;
use longhaul_proto::control::{Acceptor, CloseCode};
use longhaul_proto::identity::{Authority, TlsError, coordinator_server};
use longhaul_proto::transport::{
    BindError, ResetKey, SocketBuffers, bind_udp, endpoint_that_resets, transport_config,
};
use quinn::Endpoint;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::task::{AbortHandle, JoinHandle, JoinSet};
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::clock::Clock;
use super::connection::Reception;
use super::history_recorder::HistoryRecorder;
use super::owner::{Ended, Owner, OwnerError};
use crate::http::{Api, ApiTokens, Recorded, listen, router};
use crate::inbox::INPUTS_MAX;
use crate::journal::Journal;
use crate::record::Recorder;
use crate::slowdown::Slowdown;

/// How often the coordinator's own certificate is renewed, in seconds: well within its life.
const CERTIFICATE_INTERVAL: Duration = Duration::from_secs(3600);
/// How often it is looked whether the calendar has moved, in seconds.
const CALENDAR_INTERVAL_S: u64 = 2;
/// How long pollers can still read that the run is finished, in milliseconds.
const LINGER_MS: u64 = 1500;
/// How long open HTTP requests may take after that, in seconds.
const HTTP_SHUTDOWN_S: u64 = 2;

/// Why the coordinator does not serve.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The workers' port.
    #[error("{0}: choose another with --listen, or stop the program that uses it")]
    Bind(#[from] BindError),
    /// The HTTP port.
    #[error(
        "the HTTP API cannot listen on {address} ({source}): choose another with --http, or stop the program that uses it"
    )]
    Http {
        /// Where.
        address: SocketAddr,
        /// The system's error.
        source: std::io::Error,
    },
    /// TLS.
    #[error("set up TLS: {0}")]
    Tls(#[from] TlsError),
    /// The QUIC endpoint.
    #[error("open the QUIC endpoint: {0}")]
    Endpoint(std::io::Error),
    /// The owner's.
    #[error(transparent)]
    Owner(#[from] OwnerError),
}

/// Bound sockets, before anything is served: so that a port in use is noticed before anything is printed. They stay bound while coordinators take turns.
#[derive(Debug)]
pub struct Served {
    pub(super) endpoint: Endpoint,
    reset_key: ResetKey,
    http: std::net::TcpListener,
    /// Where workers connect.
    pub listen: SocketAddr,
    /// Where the HTTP API listens.
    pub http_address: SocketAddr,
}

impl Served {
    /// Binds both sockets. Call it within a tokio runtime.
    ///
    /// # Errors
    /// [`ServeError`] names the port and the remedy.
    pub async fn bind(listen: SocketAddr, http_address: SocketAddr) -> Result<Self, ServeError> {
        let (socket, _) = bind(listen)?;
        let (endpoint, reset_key) = endpoint_that_resets(socket, None).map_err(ServeError::Endpoint)?;
        let failed = |source| ServeError::Http { address: http_address, source };
        let http = TcpListener::bind(http_address).await.map_err(failed)?;
        let listen = endpoint.local_addr().unwrap_or(listen);
        let http_address = http.local_addr().map_err(failed)?;
        Ok(Self { endpoint, reset_key, http: http.into_std().map_err(failed)?, listen, http_address })
    }

    /// Serves these routes until `stopped` is set.
    pub(super) fn answer_http(
        &self,
        routes: Router,
        stopped: watch::Receiver<bool>,
    ) -> Result<JoinHandle<()>, ServeError> {
        let failed = |source| ServeError::Http { address: self.http_address, source };
        let listener = self.http.try_clone().and_then(TcpListener::from_std).map_err(failed)?;
        Ok(tokio::spawn(listen::serve(listener, routes, stopped)))
    }

    /// Uses a certificate of this run for connections from now on.
    pub(super) fn open(&self, authority: &Authority, now_unix_s: u64) -> Result<Acceptor, ServeError> {
        let acceptor = Acceptor::new(authority.run());
        self.reset_key.set(&authority.reset_secret());
        self.endpoint.set_server_config(Some(server_config(authority, &acceptor, now_unix_s)?));
        Ok(acceptor)
    }
}

fn server_config(
    authority: &Authority,
    acceptor: &Acceptor,
    now_unix_s: u64,
) -> Result<quinn::ServerConfig, TlsError> {
    let mut config = quinn::ServerConfig::with_crypto(coordinator_server(authority, now_unix_s)?);
    let mut transport = transport_config();
    acceptor.limit(&mut transport);
    config.transport_config(Arc::new(transport));
    Ok(config)
}

/// Serves until the run is finished or `stop` resolves.
///
/// # Errors
/// [`ServeError`]; after [`OwnerError::Deposed`] the sockets are still good.
pub async fn serve(
    served: &Served,
    owner: Owner,
    api_tokens: ApiTokens,
    stop: impl Future<Output = ()>,
) -> Result<Ended, ServeError> {
    let (endpoint, clock) = (&served.endpoint, owner.clock);
    let (inputs, queue) = mpsc::channel(INPUTS_MAX);
    let loopback = served.http_address.ip().is_loopback();
    let journal = Arc::clone(&owner.journal);
    let recorded = Recorded::new(owner.history.shared(), owner.history.state_dir());
    let api = Api::new(owner.status.subscribe(), inputs.clone(), journal, recorded, api_tokens, loopback);
    let (http_stop, stopped) = watch::channel(false);
    let serving = served.answer_http(router(api), stopped)?;
    let acceptor = served.open(owner.issuer.authority(), clock.unix_s())?;
    let (numbers, slowdown) = (Arc::new(AtomicU64::new(0)), Slowdown::default());
    let reception = Reception { acceptor: acceptor.clone(), inputs, numbers, slowdown };
    let accepting = AbortOnDrop(tokio::spawn(accept(endpoint.clone(), reception)).abort_handle());
    let authority = Authority::from_pem(&owner.issuer.authority().to_pem()).ok();
    let renewing =
        AbortOnDrop(tokio::spawn(renew(endpoint.clone(), acceptor, authority, clock)).abort_handle());

    let ended = owner.own(queue, stop).await;
    // With the tasks go their connections, as far as they are still open.
    drop((accepting, renewing));
    let deposed = matches!(ended, Err(OwnerError::Deposed(_)));
    if !deposed {
        endpoint.close(CloseCode::Done.into(), b"the coordinator stops");
    }
    // Waiting clients receive the end.
    if matches!(ended, Ok(Ended::Finished | Ended::Suspended(_))) {
        tokio::time::sleep(Duration::from_millis(LINGER_MS)).await;
    }
    // Both are courtesies to peers that may have left. Once HTTP no longer answers, all ports may be taken for free.
    if !deposed {
        let _ = timeout(Duration::from_secs(HTTP_SHUTDOWN_S), endpoint.wait_idle()).await;
    }
    http_stop.send_replace(true);
    let _ = timeout(Duration::from_secs(HTTP_SHUTDOWN_S), serving).await;
    Ok(ended?)
}

async fn accept(endpoint: Endpoint, reception: Reception) {
    // The door bounds how many strangers are inside, the owner how many workers.
    let mut tasks = JoinSet::new();
    loop {
        tokio::select! {
            incoming = endpoint.accept() => match incoming {
                Some(incoming) => {
                    tasks.spawn(reception.clone().receive(incoming));
                }
                None => return,
            },
            Some(_) = tasks.join_next() => {}
        }
    }
}

/// A socket for all addresses of IPv6 takes IPv4 as well. Where there is no IPv6, it is one for IPv4.
fn bind(listen: SocketAddr) -> Result<(std::net::UdpSocket, SocketBuffers), BindError> {
    let is_any = listen.is_ipv6() && listen.ip().is_unspecified();
    match bind_udp(listen) {
        Err(BindError::Io { .. }) if is_any => bind_udp((Ipv4Addr::UNSPECIFIED, listen.port()).into()),
        bound => bound,
    }
}

/// Keeps the coordinator's own certificate fresh: it is renewed when it is old, and at once when the calendar has moved.
async fn renew(endpoint: Endpoint, acceptor: Acceptor, authority: Option<Authority>, mut clock: Clock) {
    let Some(authority) = authority else { return };
    let mut look = interval(Duration::from_secs(CALENDAR_INTERVAL_S));
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut due = clock.now() + CERTIFICATE_INTERVAL;
    loop {
        look.tick().await;
        if clock.follow().is_none() && clock.now() < due {
            continue;
        }
        due = clock.now() + CERTIFICATE_INTERVAL;
        match server_config(&authority, &acceptor, clock.unix_s()) {
            Ok(config) => endpoint.set_server_config(Some(config)),
            Err(error) => tracing::error!(%error, "cannot renew the coordinator's certificate"),
        }
    }
}

pub(super) struct AbortOnDrop(pub AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// An owner with nothing open yet, which records its decisions in `folder`.
#[must_use]
pub fn owner(
    run: longhaul_run::Run,
    issuer: longhaul_proto::control::CertificateIssuer,
    store: crate::store::Store,
    folder: &std::path::Path,
    clock: Clock,
    advertised: String,
    stay: bool,
) -> Owner {
    let recorder = Recorder::start(folder, &run, clock.started_unix_ms());
    // Rounds that cannot be read are missed by the curves alone.
    let rounds = store.rounds().unwrap_or_default();
    let journal = Arc::new(Journal::new(clock.started_unix_ms()));
    let history = HistoryRecorder::start(folder, &run, &rounds, &journal, clock.unix_ms());
    let (status, _) = watch::channel(Arc::new(run.status(clock.started_unix_ms())));
    Owner {
        run,
        issuer,
        store,
        clock,
        recorder,
        history,
        advertised,
        journal,
        status,
        stay,
        open: BTreeMap::new(),
        farewells: JoinSet::new(),
        plans: JoinSet::new(),
    }
}
