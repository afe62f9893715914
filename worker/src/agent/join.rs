//! One `worker join`, from the first packet to the last.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use longhaul_checkpoint::{CheckpointStore, Unusable};
use longhaul_common::config::RunConfig;
use longhaul_common::explained::Explained;
use longhaul_engine::{claim_device, device_name};
use longhaul_flight::FlightLog;
use longhaul_proto::control::message::{CheckpointOffer, HANDOVER_MAX, Join};
use longhaul_proto::identity::{self, Identity};
use longhaul_proto::transport::{self, ResetKey};
use tokio::time::{Instant, sleep};

use super::connection::{Dialler, Found};
use super::departure::FAREWELL_MAX;
use super::ending::Ending;
use super::identity_slot::IdentitySlot;
use super::memory::{self, Room};
use super::offers::Offers;
use super::rejoins::Rejoins;
use super::session::Session;
use super::stop::StopSignal;
use super::survey::{Surveyed, attend};
use super::telemetry::Exports;
use super::twins::Twins;
use crate::cli::JoinArgs;

/// How long the last packets may take when this worker's part is over.
const HANG_UP_MAX: Duration = Duration::from_secs(5);
/// How long a worker may take to end after it was asked to (SIGTERM): to be dismissed, then to end the device's step, then to hang
/// up; longer where it alone has the run's state, or a part of it ([`HANDING_OVER_MAX`]). What starts workers waits longer before it kills them.
pub const LEAVING_MAX: Duration = FAREWELL_MAX.saturating_add(FAREWELL_MAX).saturating_add(HANG_UP_MAX);
/// The same where its checkpoint is to be written first, and copied. What kills workers sooner costs the run what only they had: it goes back to a checkpoint.
pub const HANDING_OVER_MAX: Duration = LEAVING_MAX.saturating_add(HANDOVER_MAX);

/// Joins a run and trains until it ends.
///
/// # Errors
/// What cannot be mended by waiting: a refused token, a missing device or text, a training that diverged.
pub async fn join(args: JoinArgs) -> Result<()> {
    let mut stop = StopSignal::listen()?;
    let token = args.join_token()?;
    // Asked for before anything else, so that a wrong device costs no use of the token.
    claim_device(&args.device)?;
    let cache_dir = cache_dir(args.cache_dir.clone())?;
    let slot = IdentitySlot::take(&cache_dir, &token.authority, &args.site)?;
    let flight = FlightLog::new(slot.folder().join(TRACES_FOLDER));
    flight.write_on_panic();
    flight.write_when_asked()?;
    let (socket, buffers) = longhaul_peer::bind(args.listen)?;
    let listens_at = socket.local_addr().context("ask for the socket's address")?.ip();
    if !buffers.are_full() {
        tracing::debug!(
            ?buffers,
            "the kernel grants smaller socket buffers; net.core.rmem_max and wmem_max limit them"
        );
    }
    let (endpoint, reset_key) =
        transport::endpoint_that_resets(socket, None).context("start the QUIC endpoint")?;
    let dialler = Dialler {
        endpoint,
        coordinators: args.coordinator.parse()?,
        token,
        folder: slot.folder().to_owned(),
        site: args.site.clone(),
    };

    tracing::info!(coordinator = args.coordinator, "looking for the coordinator");
    let identity = tokio::select! {
        identity = dialler.identity() => identity?,
        () = stop.asked() => return Ok(()),
    };
    let room = memory::room(&args);
    let unusable = Unusable::default();
    let exports = Exports::start();
    let member = Arc::new(Membership {
        args,
        cache_dir,
        slot,
        dialler,
        listens_at,
        reset_key,
        room,
        unusable,
        flight,
        exports,
        twins: Twins::default(),
    });
    let result = member.take_part(identity, &mut stop).await;
    if let Err(error) = &result {
        member.flight.write_and_tell(&Explained(&**error).to_string());
    }
    // Whatever was said last should arrive: the reason of a failure, a farewell. A peer that does not hang up is not waited for.
    let hung_up = tokio::time::timeout(HANG_UP_MAX, member.dialler.endpoint.wait_idle());
    tokio::select! {
        _ = async { tokio::join!(hung_up, member.exports.end()) } => {}
        () = stop.asked() => {}
    }
    result
}

/// This process as a member of the run, over all its sessions.
pub(super) struct Membership {
    pub args: JoinArgs,
    pub cache_dir: PathBuf,
    pub slot: IdentitySlot,
    pub dialler: Dialler,
    listens_at: IpAddr,
    reset_key: ResetKey,
    /// What the model may take, as it was before there was one.
    pub room: Room,
    /// Checkpoints in the run's archive that were found damaged.
    pub unusable: Unusable,
    /// What this process does.
    pub flight: Arc<FlightLog>,
    exports: Exports,
    twins: Twins,
}

impl Membership {
    async fn take_part(self: &Arc<Self>, mut identity: Identity, stop: &mut StopSignal) -> Result<()> {
        let (mut conversation, mut rejoins, mut too_late) = (None, Rejoins::default(), None);
        let mut is_part = false;
        loop {
            self.listen_as(&identity)?;
            self.flight.name(identity.worker(), &self.args.site);
            self.exports.follow(&self.flight, &identity, &self.args.site);
            let (join, welcomed) = match conversation.take() {
                Some(conversation) => conversation,
                None => {
                    let join = self.join_message(&identity, too_late.take())?;
                    let found = tokio::select! {
                        found = self.dialler.connect(&identity, || join.clone()) => found?,
                        () = stop.asked() => return Ok(()),
                    };
                    match found {
                        Found::Welcomed(conversation) => (join, conversation),
                        Found::Enrolled(new) => {
                            tracing::warn!(worker = %new.worker(), "the certificate had expired: this machine is now another worker");
                            identity = new;
                            continue;
                        }
                    }
                }
            };
            self.twins.welcomed(Instant::now());
            if !std::mem::replace(&mut is_part, true) {
                tracing::info!(worker = %identity.worker(), run = %identity.run(), "this machine is part of the run");
            }
            let config =
                RunConfig::parse(&welcomed.welcome.config).context("read the run's configuration")?;
            if config.is_plan_open() {
                match attend(self, &identity, config, welcomed, stop).await? {
                    Surveyed::Welcomed(planned) => conversation = Some((join, planned)),
                    Surveyed::Twin => match self.enrol_as_another(stop).await? {
                        Some(new) => identity = new,
                        None => return Ok(()),
                    },
                    Surveyed::Lost => tracing::warn!("the connection to the coordinator is lost"),
                    Surveyed::Over(reason) => {
                        tracing::info!(reason, "this worker's part is over");
                        return Ok(());
                    }
                }
                continue;
            }
            // That is said once.
            let join = Join { too_late_ms: None, ..join };
            let session = Session::start(Arc::clone(self), identity, config, &welcomed.welcome, join)?;
            let (ending, used) = session.converse(welcomed, stop).await?;
            identity = used;
            match ending {
                Ending::Over(reason) => {
                    tracing::info!(reason, "this worker's part is over");
                    return Ok(());
                }
                Ending::Again(reason, came_after) => {
                    too_late = came_after;
                    let pause = rejoins.pause(Instant::now());
                    tracing::warn!(reason, pause_ms = pause.as_millis() as u64, "joining again");
                    tokio::select! {
                        () = sleep(pause) => {}
                        () = stop.asked() => return Ok(()),
                    }
                }
                Ending::Replaced(join, next) => conversation = Some((join, *next)),
                Ending::Twin => match self.enrol_as_another(stop).await? {
                    Some(new) => identity = new,
                    None => return Ok(()),
                },
                Ending::Renamed(new) => {
                    tracing::warn!(worker = %new.worker(), "the certificate has expired: joining anew, as another worker");
                    identity = new;
                }
            }
        }
    }

    /// Another process has taken this one's place. Whether this one has to be another worker.
    pub(super) fn yields_to_a_twin(&self) -> bool {
        let folder = self.slot.folder().display();
        let yields = self.twins.must_yield(Instant::now());
        if !yields {
            tracing::warn!(
                "another process has this worker's identity and took its place: was the cache folder {folder} copied to another machine? This one reclaims it"
            );
        }
        yields
    }

    /// An identity of its own in the place of one that another process has; none: a stop was asked for.
    async fn enrol_as_another(&self, stop: &mut StopSignal) -> Result<Option<Identity>> {
        let folder = self.slot.folder().display();
        let enrolled = tokio::select! {
            enrolled = self.dialler.another_identity() => enrolled,
            () = stop.asked() => return Ok(None),
        };
        let identity = enrolled.with_context(|| {
            format!("another process has this worker's identity (was the cache folder copied?), and this one cannot enrol as another worker: give it another --cache-dir than that of {folder}, and a valid token")
        })?;
        tracing::warn!(worker = %identity.worker(), "another process has the identity in {folder} (was the cache folder copied?): this one is now another worker");
        Ok(Some(identity))
    }

    /// Data from peers is welcome under this identity.
    pub(super) fn listen_as(&self, identity: &Identity) -> Result<()> {
        let tls = identity::data_server(identity).context("use this worker's identity")?;
        self.reset_key.set(&identity.reset_secret());
        self.dialler.endpoint.set_server_config(Some(transport::server_config(tls)));
        Ok(())
    }

    /// A first message of a new session; `too_late`: in the last one it could not take part, after a state that took so long to come.
    fn join_message(&self, identity: &Identity, too_late: Option<Duration>) -> Result<Join> {
        let port = self.dialler.endpoint.local_addr().context("ask for the endpoint's port")?.port();
        let lan_address = SocketAddr::new(self.listens_at, port);
        Ok(Join {
            incarnation: rand::random(),
            site: self.args.site.clone(),
            lan_address,
            wan_address: self.args.advertise.unwrap_or(lan_address),
            device: self.describe(),
            memory_bytes: self.room.bytes,
            host_memory_bytes: self.room.host_bytes,
            held: None,
            too_late_ms: too_late.map(|took| u32::try_from(took.as_millis()).unwrap_or(u32::MAX)),
            checkpoints: self.offers(identity),
        })
    }

    fn describe(&self) -> String {
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let device = claim_device(&self.args.device).map_or_else(|_| self.args.device.clone(), device_name);
        format!("{} {device}", host.trim())
    }

    /// Checkpoints of this run that are complete and sound. The folder is known only with the run's configuration, so the one of the last session
    /// is remembered in the slot. A worker with a new slot has what it is given: another one may have written there.
    fn offers(&self, identity: &Identity) -> Vec<CheckpointOffer> {
        let noted = std::fs::read_to_string(self.slot.folder().join(CHECKPOINT_FOLDER)).map(PathBuf::from);
        let Some(folder) = noted.ok().or_else(|| self.args.checkpoint_dir.clone()) else {
            return Vec::new();
        };
        // `keep` only matters to a writer.
        let store = CheckpointStore::new(&folder, identity.run(), identity.worker(), 1);
        Offers::verified(store).current()
    }

    /// Where checkpoints of this run go on this machine.
    pub(super) fn checkpoint_dir(&self, config: &RunConfig) -> Result<PathBuf> {
        let folder = self.args.checkpoint_dir.clone().unwrap_or_else(|| config.checkpoint.dir.clone());
        let folder = std::path::absolute(folder).context("find the working directory")?;
        let note = self.slot.folder().join(CHECKPOINT_FOLDER);
        let text = folder.as_os_str().as_encoded_bytes();
        // On a full disk a note that is written anew is lost, and with it the way to the checkpoints.
        if !std::fs::read(&note).is_ok_and(|noted| noted == text) {
            std::fs::write(&note, text).with_context(|| format!("write {}", note.display()))?;
        }
        Ok(folder)
    }
}

/// The folder in the identity slot with traces of what this process did.
const TRACES_FOLDER: &str = "traces";
/// The file in the identity slot that remembers where checkpoints go.
const CHECKPOINT_FOLDER: &str = "checkpoint-folder";

/// The cache folder: as given, or where the desktop standard puts caches.
///
/// # Errors
/// There is no home folder, and none was given.
pub fn cache_dir(given: Option<PathBuf>) -> Result<PathBuf> {
    let of = |variable: &str| std::env::var_os(variable).filter(|value| !value.is_empty()).map(PathBuf::from);
    let base = of("XDG_CACHE_HOME").or_else(|| of("HOME").map(|home| home.join(".cache")));
    match given.or_else(|| base.map(|base| base.join("longhaul"))) {
        Some(folder) => std::path::absolute(folder).context("find the working directory"),
        None => bail!("neither HOME nor XDG_CACHE_HOME is set: give --cache-dir DIR"),
    }
}
