//! `coordinator up`

use std::io::IsTerminal as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::path::Path;

use anyhow::Context as _;
use longhaul_checkpoint::read_run;
use longhaul_common::config::{RunConfig, renamed_keys};

use super::{CliError, LogFormat, Up, print, progress};
use crate::history::Folder;
use crate::http::{ApiTokens, TOKEN_LIFE_S};
use crate::inbox::NewToken;
use crate::runtime::{
    Clock, Ended, Exports, FoundError, Founded, FreshFolder, Owner, OwnerError, RequestedRun, ServeError,
    Served, Standby, StandbyError, Taken, found, open_store, owner, serve,
};
use crate::store::etcd::{Candidate, EtcdAddress};
use crate::store::{API_TOKEN_FILE, HTTP_ADDRESS_FILE, Store, StoreError, write_private, write_public};
use longhaul_run::{Phase, Run, Suspended};

/// A token that is good for less is not printed again by a restarted coordinator, in seconds.
const TOKEN_REUSED_S: u64 = 3600;

pub(super) fn run(up: &Up) -> Result<(), CliError> {
    up.log_format.start();
    let config = read_config(&up.config, up.log_format)?;
    if up.print_config {
        print(config.to_toml().context("write the configuration")?.trim_end());
        return Ok(());
    }
    let runtime =
        tokio::runtime::Builder::new_multi_thread().enable_all().build().context("start the runtime")?;
    let exports = Exports::start();
    let wanted = RequestedRun { config, extend: up.extend };
    let result = runtime.block_on(coordinate(up, wanted, &exports));
    exports.end();
    result
}

pub(super) fn read_config(path: &Path, log_format: LogFormat) -> Result<RunConfig, CliError> {
    let shown = path.display();
    let text = std::fs::read_to_string(path)
        .map_err(|error| CliError::Misuse(format!("read the configuration {shown}: {error}")))?;
    for renamed in renamed_keys(&text) {
        log_format.say(&format!("note: {shown}: {renamed}"));
    }
    read_run(&text).map_err(|error| CliError::Misuse(format!("{shown}: {error}")))
}

async fn coordinate(up: &Up, mut wanted: RequestedRun, exports: &Exports) -> Result<(), CliError> {
    let mut interrupted = std::pin::pin!(interrupted().context("listen for signals")?);
    let clock = Clock::start();
    let address = state_address(up)?;
    // Records that are there are opened before ports are bound, so that a second coordinator hears that there is a first one. Others are made when both ports are bound.
    let opened = match &address {
        None if wanted.extend || is_there(up)? => Some(open_store(&up.state_dir, &wanted)?),
        _ => None,
    };
    let served = Served::bind(up.listen, up.http).await.map_err(anyhow::Error::new)?;
    let advertised = up.advertise.clone().unwrap_or_else(|| advertised(served.listen));
    let mut standby = match &address {
        None => None,
        Some(address) => {
            let candidate =
                Candidate::new(address.clone(), advertised.clone()).map_err(anyhow::Error::new)?;
            Some(Standby::new(candidate, wanted.clone(), clock))
        }
    };
    // Where anything fails until it runs, records are closed first (they are the later variable), and then what was made is taken away.
    let (mut fresh, mut only) = match (opened, &address) {
        (Some(store), _) => (None, Some(store)),
        (None, Some(_)) => {
            // Another coordinator may share it, so nothing in it is taken away.
            std::fs::create_dir_all(&up.state_dir).context("make the state directory")?;
            (None, None)
        }
        (None, None) => {
            let (fresh, store) = FreshFolder::with_records(&up.state_dir, &wanted)?;
            (Some(fresh), Some(store))
        }
    };
    write_public(&up.state_dir.join(HTTP_ADDRESS_FILE), &reachable(served.http_address).to_string())
        .context("write the HTTP address into the state directory")?;
    loop {
        let store = match (only.take(), &mut standby) {
            (Some(store), _) => store,
            (None, Some(standby)) => tokio::select! {
                store = standby.lead(&served) => store.map_err(not_leading)?,
                () = &mut interrupted => {
                    up.log_format.say("the coordinator stops; it did not lead");
                    return Ok(());
                }
            },
            // Without etcd nobody else can have taken over.
            (None, None) => return Ok(()),
        };
        // Once: who ends a run that was extended does not want the next one that leads to go on with it.
        wanted.extend &= !standby.as_ref().is_some_and(Standby::has_waited);
        let (served, advertised) = (&served, advertised.as_str());
        let turn = Turn { up, wanted: &wanted, clock, served, advertised, exports };
        let led = match turn.begin(store) {
            Ok(begun) => {
                if let Some(fresh) = fresh.take() {
                    fresh.keep();
                }
                Box::pin(turn.lead(begun, interrupted.as_mut())).await
            }
            Err(ending) => Err(ending),
        };
        wanted.extend = false;
        match led {
            Ok(said) => {
                up.log_format.say(&said);
                return Ok(());
            }
            Err(Ending::Deposed(why)) => {
                exports.rest();
                up.log_format.say(&format!("{why}; waiting to lead again"));
            }
            Err(Ending::Failed(error)) => return Err(error),
        }
    }
}

/// Whether the state directory has records.
fn is_there(up: &Up) -> Result<bool, CliError> {
    Ok(Store::is_in(&up.state_dir).map_err(FoundError::from)?)
}

/// Where `--state` says that the records are; none: in the state directory.
fn state_address(up: &Up) -> Result<Option<EtcdAddress>, CliError> {
    let Some(url) = &up.state else { return Ok(None) };
    let address = EtcdAddress::read(&url.0, |name| std::env::var(name).ok())
        .map_err(|error| CliError::Misuse(error.to_string()))?;
    if address.is_in_the_clear() {
        up.log_format
            .say("the run's keys travel to etcd unencrypted: on a shared network, use etcds:// in --state");
    }
    Ok(Some(address))
}

impl From<FoundError> for CliError {
    fn from(error: FoundError) -> Self {
        match error.is_misuse() {
            true => Self::Misuse(error.to_string()),
            false => anyhow::Error::new(error).into(),
        }
    }
}

fn not_leading(error: StandbyError) -> CliError {
    match error {
        StandbyError::Found(error) => error.into(),
        error => anyhow::Error::new(error).into(),
    }
}

/// Why a coordinator leads no more, other than for the better.
enum Ending {
    /// Another one may lead now.
    Deposed(String),
    /// A person must act.
    Failed(CliError),
}

impl From<anyhow::Error> for Ending {
    fn from(error: anyhow::Error) -> Self {
        Self::Failed(error.into())
    }
}

impl From<FoundError> for Ending {
    fn from(error: FoundError) -> Self {
        match error {
            FoundError::Store(error @ StoreError::Deposed { .. }) => Self::Deposed(error.to_string()),
            error => Self::Failed(error.into()),
        }
    }
}

impl From<OwnerError> for Ending {
    fn from(error: OwnerError) -> Self {
        match error {
            OwnerError::Deposed(error) => Self::Deposed(error.to_string()),
            error => anyhow::Error::new(error).into(),
        }
    }
}

impl From<ServeError> for Ending {
    fn from(error: ServeError) -> Self {
        match error {
            ServeError::Owner(error) => error.into(),
            error => anyhow::Error::new(error).into(),
        }
    }
}

/// What a coordinator needs while it leads.
struct Turn<'a> {
    up: &'a Up,
    wanted: &'a RequestedRun,
    clock: Clock,
    served: &'a Served,
    advertised: &'a str,
    exports: &'a Exports,
}

impl Turn<'_> {
    /// Takes up the run, or founds it, and tells people.
    fn begin(&self, store: Store) -> Result<(Owner, ApiTokens), Ending> {
        let Self { up, wanted, clock, served, advertised, exports } = *self;
        let Founded { state, issuer, api_tokens, taken } =
            found(&store, &up.state_dir, wanted, clock.unix_s())?;
        let config = &wanted.config;
        let (name, another) = (&config.run.name, store.place().another);
        let finished = state.phase == Phase::Finished;
        let mut run = Run::new(config.clone(), state, clock.now()).context("load the run")?;
        if let Taken::Extended { done } = taken {
            run.note_extension(done);
            Folder::renew_last(&up.state_dir, clock.unix_ms(), run.status(clock.started_unix_ms()))
                .context("write the run's records")?;
        }
        let mut owner = owner(run, issuer, store, &up.state_dir, clock, advertised.to_owned(), up.stay);
        owner.export(exports);
        if let Some(dir) = &up.tensorboard {
            owner
                .draw_curves(dir)
                .with_context(|| format!("write curves into {} (--tensorboard)", dir.display()))?;
        }
        if finished {
            up.log_format.say(&format!("run {name} is finished: `coordinator status` and `coordinator view` show its course. To train it further, use --extend with more run.steps (a stopped run needs no more); to begin another, use {another}"));
        } else {
            let token = join_token(&mut owner)?;
            if let Some(file) = &up.token_file {
                write_private(file, &format!("{}\n", token.command))
                    .with_context(|| format!("write the join line to {}", file.display()))?;
            }
            greet(up, name, taken, served, &token);
        }
        if !served.http_address.ip().is_loopback() {
            let file = up.state_dir.join(API_TOKEN_FILE);
            up.log_format.say(&format!(
                "the HTTP API is reachable from other machines: its bearer token is in {}",
                file.display()
            ));
        }
        Ok((owner, api_tokens))
    }

    /// Leads to the end of the run, or of the process; answers the last words for people.
    async fn lead(
        &self,
        (owner, api_tokens): (Owner, ApiTokens),
        interrupted: impl Future<Output = ()>,
    ) -> Result<String, Ending> {
        let Self { up, wanted, served, .. } = *self;
        let name = &wanted.config.run.name;
        let shown = progress::follow(owner.status.subscribe());
        let ended = tokio::select! {
            ended = serve(served, owner, api_tokens, interrupted) => ended?,
            never = shown => match never {},
        };
        Ok(match ended {
            Ended::Finished => format!("run {name} is finished"),
            Ended::Suspended(Suspended::Whole) => suspended(up, name),
            Ended::Suspended(Suspended::Short) => {
                let text = format!(
                    "run {name} stops for now, but not all of its state could be written: it goes on from an older checkpoint. The log names the workers"
                );
                return Err(anyhow::anyhow!(text).into());
            }
            Ended::Stopped => stopped(up, name),
        })
    }
}

fn suspended(up: &Up, name: &str) -> String {
    let state = match &up.state {
        Some(_) => String::new(),
        None => format!(" (--state-dir {})", up.state_dir.display()),
    };
    format!(
        "run {name} stops for now: its state is in checkpoints, and its workers have left. To continue, run the same commands again, here{state} and on each machine"
    )
}

fn stopped(up: &Up, name: &str) -> String {
    if up.state.is_some() {
        return format!(
            "the coordinator stops, but run {name} does not: its workers train on, and another coordinator takes over. \
             `coordinator stop` ends the run"
        );
    }
    format!(
        "the coordinator stops, but run {name} does not: its workers train on and wait for it. Continue with the same command \
         (--state-dir {}); `coordinator stop` ends the run",
        up.state_dir.display()
    )
}

fn join_token(owner: &mut Owner) -> Result<NewToken, Ending> {
    if let Some(token) = owner.reusable_token(TOKEN_REUSED_S) {
        return Ok(token);
    }
    let created = owner.create_token(TOKEN_LIFE_S, None)?;
    created.map_err(|reason| anyhow::anyhow!("make a join token: {reason}").into())
}

/// What a person needs first: the line to paste, or the file that it is in. What is no terminal is kept by somebody, as a journal or as a
/// cluster's logs, and a token in a file stays out of that.
fn greet(up: &Up, name: &str, taken: Taken, served: &Served, token: &NewToken) {
    let what = if taken == Taken::New { "begins" } else { "goes on with" };
    let from = match taken {
        Taken::Extended { done } => format!(", which was over after {done} steps"),
        Taken::New | Taken::Resumed => String::new(),
    };
    up.log_format.say(&format!(
        "longhaul {what} run {name}{from}: workers connect to {} (UDP), the dashboard is at http://{}/",
        served.listen,
        reachable(served.http_address)
    ));
    match up.token_file.as_deref().filter(|_| !std::io::stdout().is_terminal()) {
        Some(file) => print(&format!("on every machine that is to train: the line in {}", file.display())),
        None => {
            up.log_format.say("on every machine that is to train:");
            print(&token.command);
        }
    }
}

/// The address that the local command line dials.
fn reachable(address: SocketAddr) -> SocketAddr {
    match address.ip() {
        ip if !ip.is_unspecified() => address,
        IpAddr::V4(_) => SocketAddr::from(([127, 0, 0, 1], address.port())),
        IpAddr::V6(_) => SocketAddr::from(([0, 0, 0, 0, 0, 0, 0, 1], address.port())),
    }
}

/// What workers dial unless --advertise says better: the address of the interface that leads out.
fn advertised(listen: SocketAddr) -> String {
    let ip = if listen.ip().is_unspecified() { outward_ip() } else { listen.ip() };
    SocketAddr::new(ip, listen.port()).to_string()
}

fn outward_ip() -> IpAddr {
    // Connecting a UDP socket sends nothing: it only asks the routing table. These are nobody's (RFC 5737, RFC 3849).
    let ask = |from: IpAddr, to: IpAddr| -> std::io::Result<IpAddr> {
        let socket = UdpSocket::bind((from, 0))?;
        socket.connect((to, 9))?;
        Ok(socket.local_addr()?.ip())
    };
    let four = || ask(Ipv4Addr::UNSPECIFIED.into(), Ipv4Addr::new(192, 0, 2, 1).into());
    let six = || ask(Ipv6Addr::UNSPECIFIED.into(), Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).into());
    four().or_else(|_| six()).unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST))
}

/// Resolves at Ctrl-C or SIGTERM. It listens from the call on, not from the first poll, so that nobody who has seen the
/// join line is killed for asking politely.
pub(super) fn interrupted() -> std::io::Result<impl Future<Output = ()>> {
    #[cfg(unix)]
    let (mut terminate, mut interrupt) = {
        use tokio::signal::unix::{SignalKind, signal};
        (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?)
    };
    Ok(async move {
        #[cfg(unix)]
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        #[cfg(not(unix))]
        if tokio::signal::ctrl_c().await.is_err() {
            // Without signals the process ends when it is killed.
            std::future::pending::<()>().await;
        }
    })
}
