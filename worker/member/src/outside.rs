//! The synchroniser's interface to its environment.

use std::any::Any;
use std::io;
use std::time::Duration;

use anyhow::Result;
use bytes::Bytes;
use longhaul_checkpoint::CheckpointStore;
use longhaul_common::id::{FragmentId, Generation, Round, WorkerId};
use longhaul_common::model::ModelSpec;
use longhaul_common::plan::{Member, Membership};
use longhaul_proto::control::message::{Encoding, Hash, Heartbeat, HeldPart, ToCoordinator};
use longhaul_proto::round::{Command, Event, FrameHeader};

use crate::activity::Activity;
use crate::event::SyncEvent;
use crate::message::ToDevice;
use crate::site::SiteJob;
use crate::step_barrier::StepBarrier;

/// A guard of something that lasts until it is dropped.
pub type Ongoing = Box<dyn Any + Send>;

/// Background work, and its final event.
pub type Background = Box<dyn FnOnce() -> SyncEvent + Send>;

/// Peers, device, coordinator, disks and clock: real in the worker, virtual in tests. No call blocks; answers are events. Calls take effect in order: a
/// message to the device precedes a later release by the barrier.
pub trait Outside: Send {
    /// Returns the time since the session began.
    fn now(&self) -> Duration;

    /// Replaces the other members, and the `others` of this worker's replica. `model_bytes`: a round's update of the whole model in f32.
    fn set_members(&self, members: &Membership, others: &[Member], model_bytes: usize);
    /// Joins this replica for computation.
    fn join_replica(&self, session: Generation, workers: Vec<WorkerId>);
    /// Queues a frame of the round protocol, with the hash of its body if known.
    fn send(&self, to: WorkerId, header: FrameHeader, body: Bytes, hash: Option<Hash>);
    /// Requests a result from a peer. Answer: [`SyncEvent::Pulled`].
    fn pull(&self, from: WorkerId, round: Round, fragment: FragmentId, hash: Option<Hash>);
    /// Fetches the run's state from one of these donors, as `buffers` vectors of `values`. Answer: [`SyncEvent::Healed`].
    fn heal(&self, attempt: u64, donors: Vec<Member>, buffers: usize, values: usize);
    /// Cancels that fetch.
    fn stop_healing(&self);
    /// Fetches parts of a checkpoint from their holders. Answer: [`SyncEvent::CopiesHere`].
    fn fetch_parts(&self, attempt: u64, store: CheckpointStore, parts: Vec<HeldPart>, wanted: ModelSpec);
    /// Copies another worker's checkpoint. Answer: [`SyncEvent::Kept`].
    fn keep(&self, store: CheckpointStore, part: HeldPart);
    /// Fetches the secrets of masks. Answer: [`SyncEvent::MaskSecret`], for each.
    fn fetch_mask_secrets(&self, generation: Generation, from: Vec<WorkerId>);
    /// Returns the longest round trip to a worker of another site.
    fn round_trip(&self) -> Duration;
    /// Reduces with the members of this site, once the previous generation's job has ended. Reports [`SyncEvent::Site`].
    ///
    /// # Errors
    /// The system provides no thread.
    fn start_site(&self, job: SiteJob) -> io::Result<()>;

    /// Sends a message to the device.
    ///
    /// # Errors
    /// The device has ended or accepts no more messages.
    fn tell_device(&self, message: ToDevice) -> Result<()>;
    /// Returns the barrier at which the device asks for permission.
    fn barrier(&self) -> &StepBarrier;

    /// Sends a message to the coordinator; during an outage, messages are kept where possible.
    fn report(&self, message: ToCoordinator);
    /// Returns the present counts.
    fn heartbeat(&self) -> Heartbeat;

    /// Runs work that waits for a disk or an archive.
    ///
    /// # Errors
    /// The system provides no thread.
    fn in_background(&self, name: &str, job: Background) -> io::Result<()>;

    /// Records an activity until the returned guard is dropped.
    fn begin(&self, activity: Activity) -> Ongoing;
    /// The same for encoding and decoding, which are also counted.
    fn begin_coding(&self, activity: Activity) -> Ongoing;
    /// Notes the present encoding of traffic to other sites.
    fn encodes(&self, encoding: Option<Encoding>);
    /// Counts the bytes of a dense f32 exchange in place of a frame sent to another site.
    fn dense_equivalent(&self, bytes: u64);

    /// Notes what the round protocol is about to handle. For simulations, which keep their own accounts.
    fn hears(&self, _: &Event) {}
    /// Notes what it decides.
    fn decides(&self, _: &Command) {}
}
