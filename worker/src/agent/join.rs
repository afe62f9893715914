//! `worker join`, from the first packet to the last.

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

use super::base_model::OpenedOnce;
use super::connection::{Dialler, Found};
use super::departure::FAREWELL_MAX;
use super::ending::Ending;
use super::identity_slot::IdentitySlot;
use super::memory::{self, Room};
use super::offers::Offers;
use super::rejoins::Rejoins;
use super::session::Session;
use super::survey::{Surveyed, attend};
use super::telemetry::Exports;
use super::twins::Twins;
use crate::cli::JoinArgs;
use crate::stop::StopSignal;

/// Timeout for the last packets after this worker's part is over.
const HANG_UP_MAX: Duration = Duration::from_secs(5);
/// Limit on a worker's exit after SIGTERM: dismissal, the device's current step, the last packets. Longer if only it has the run's state or a part of it
/// ([`HANDING_OVER_MAX`]). Supervisors must wait longer before they kill a worker.
pub const LEAVING_MAX: Duration = FAREWELL_MAX.saturating_add(FAREWELL_MAX).saturating_add(HANG_UP_MAX);
/// Limit on an exit that first writes and copies a checkpoint. An earlier kill loses state that only this worker had; the run then goes back to a checkpoint.
pub const HANDING_OVER_MAX: Duration = LEAVING_MAX.saturating_add(HANDOVER_MAX);

/// Joins a run and trains until it ends.
///
/// # Errors
/// Failures that a retry cannot fix: a refused token, a missing device or text, diverged training.
pub async fn join(args: JoinArgs) -> Result<()> {
    let mut stop = StopSignal::listen()?;
    let token = args.join_token()?;
    // Checked first, so that a wrong device does not consume a use of the token.
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
    let member = Arc::new(JoinedRun {
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
        base_model: OpenedOnce::default(),
    });
    let result = member.take_part(identity, &mut stop).await;
    if let Err(error) = &result {
        member.flight.write_and_tell(&Explained(&**error).to_string());
    }
    // Delivers the last messages, such as a failure's reason or a farewell. A peer that never answered takes three seconds.
    tracing::info!("closing all connections");
    let hung_up = tokio::time::timeout(HANG_UP_MAX, member.dialler.endpoint.wait_idle());
    tokio::select! {
        _ = async { tokio::join!(hung_up, member.exports.end()) } => {}
        () = stop.asked() => {}
    }
    result
}

/// This process as a member of the run, across all its sessions.
pub(super) struct JoinedRun {
    pub args: JoinArgs,
    pub cache_dir: PathBuf,
    pub slot: IdentitySlot,
    pub dialler: Dialler,
    listens_at: IpAddr,
    reset_key: ResetKey,
    /// Memory available to the model, measured before it is built.
    pub room: Room,
    /// Damaged checkpoints in the run's archive.
    pub unusable: Unusable,
    /// The flight log of this process.
    pub flight: Arc<FlightLog>,
    exports: Exports,
    twins: Twins,
    /// The pretrained model that the run starts from.
    pub base_model: OpenedOnce,
}

impl JoinedRun {
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
            // Reported only once.
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

    /// Handles the takeover by another process; returns whether this one must become another worker.
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

    /// Enrols a new identity in place of a duplicated one; `None`: a stop was requested.
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

    /// Accepts data from peers under this identity.
    pub(super) fn listen_as(&self, identity: &Identity) -> Result<()> {
        let tls = identity::data_server(identity).context("use this worker's identity")?;
        self.reset_key.set(&identity.reset_secret());
        self.dialler.endpoint.set_server_config(Some(transport::server_config(tls)));
        Ok(())
    }

    /// Builds the first message of a session. `too_late`: the time that the state took in the last session, in which the worker could not take part.
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

    /// Returns the complete and sound checkpoints of this run. The folder is known only with the configuration, so the slot remembers that of the last session.
    /// A new slot uses the given folder, in which another worker may have written.
    fn offers(&self, identity: &Identity) -> Vec<CheckpointOffer> {
        let noted = std::fs::read_to_string(self.slot.folder().join(CHECKPOINT_FOLDER)).map(PathBuf::from);
        let Some(folder) = noted.ok().or_else(|| self.args.checkpoint_dir.clone()) else {
            return Vec::new();
        };
        // `keep` matters only to a writer.
        let store = CheckpointStore::new(&folder, identity.run(), identity.worker(), 1);
        Offers::verified(store).current()
    }

    /// Returns this machine's checkpoint folder for the run.
    pub(super) fn checkpoint_dir(&self, config: &RunConfig) -> Result<PathBuf> {
        let folder = self.args.checkpoint_dir.clone().unwrap_or_else(|| config.checkpoint.dir.clone());
        let folder = std::path::absolute(folder).context("find the working directory")?;
        let note = self.slot.folder().join(CHECKPOINT_FOLDER);
        let text = folder.as_os_str().as_encoded_bytes();
        // Rewriting the note on a full disk would lose it, and with it the path of the checkpoints.
        if !std::fs::read(&note).is_ok_and(|noted| noted == text) {
            std::fs::write(&note, text).with_context(|| format!("write {}", note.display()))?;
        }
        Ok(folder)
    }
}

/// Folder of flight traces in the identity slot.
const TRACES_FOLDER: &str = "traces";
/// File in the identity slot with the path of the checkpoint folder.
const CHECKPOINT_FOLDER: &str = "checkpoint-folder";

/// Returns the cache folder: the given one, else that of the XDG base directory specification.
///
/// # Errors
/// No folder is given and no home folder exists.
pub fn cache_dir(given: Option<PathBuf>) -> Result<PathBuf> {
    let of = |variable: &str| std::env::var_os(variable).filter(|value| !value.is_empty()).map(PathBuf::from);
    let base = of("XDG_CACHE_HOME").or_else(|| of("HOME").map(|home| home.join(".cache")));
    match given.or_else(|| base.map(|base| base.join("longhaul"))) {
        Some(folder) => std::path::absolute(folder).context("find the working directory"),
        None => bail!("neither HOME nor XDG_CACHE_HOME is set: give --cache-dir DIR"),
    }
}
