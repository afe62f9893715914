//! What the synchroniser does beyond its own state.

use std::any::Any;
use std::io;
use std::time::Duration;

use anyhow::Result;
use bytes::Bytes;
use longhaul_checkpoint::CheckpointStore;
use longhaul_common::id::{FragmentId, Generation, Round, WorkerId};
use longhaul_common::model::ModelSpec;
use longhaul_common::plan::Member;
use longhaul_proto::control::message::{Encoding, Hash, Heartbeat, HeldPart, ToCoordinator};
use longhaul_proto::round::FrameHeader;

use crate::activity::Activity;
use crate::event::SyncEvent;
use crate::message::ToDevice;
use crate::site::SiteJob;
use crate::step_barrier::StepBarrier;

/// What lasts until it is dropped.
pub type Ongoing = Box<dyn Any + Send>;

/// A piece of work beside the synchroniser, and the event that it ends with.
pub type Background = Box<dyn FnOnce() -> SyncEvent + Send>;

/// Peers, device, coordinator, disks and clock, as the synchroniser sees them: real ones in the worker, virtual ones in a test. Nothing here waits; an answer is an event.
/// Calls have effect in their order: what the device is told before the barrier lets it on, it has first.
pub trait Outside: Send {
    /// Time since the session began.
    fn now(&self) -> Duration;

    /// From now on, these are the others. `model_bytes`: a round's update of the whole model in f32.
    fn set_members(&self, members: &[Member], model_bytes: usize);
    /// From now on, this worker computes in this copy of the model.
    fn join_replica(&self, session: Generation, workers: Vec<WorkerId>);
    /// Queues a frame of the round protocol, with the hash of its body where that is known.
    fn send(&self, to: WorkerId, header: FrameHeader, body: Bytes, hash: Option<Hash>);
    /// Asks a peer for a result. Answer: [`SyncEvent::Pulled`].
    fn pull(&self, from: WorkerId, round: Round, fragment: FragmentId, hash: Option<Hash>);
    /// Fetches the state of the run from one of these donors, as `buffers` vectors of `values`. Answer: [`SyncEvent::Healed`].
    fn heal(&self, attempt: u64, donors: Vec<Member>, buffers: usize, values: usize);
    /// No such answer is wanted any more.
    fn stop_healing(&self);
    /// Fetches parts of a checkpoint from those who hold them. Answer: [`SyncEvent::CopiesHere`].
    fn fetch_parts(&self, attempt: u64, store: CheckpointStore, parts: Vec<HeldPart>, wanted: ModelSpec);
    /// Copies another worker's checkpoint. Answer: [`SyncEvent::Kept`].
    fn keep(&self, store: CheckpointStore, part: HeldPart);
    /// Fetches the secrets of masks. Answer: [`SyncEvent::MaskSecret`], for each.
    fn fetch_mask_secrets(&self, generation: Generation, from: Vec<WorkerId>);
    /// The longest round trip to a worker of another site.
    fn round_trip(&self) -> Duration;
    /// Reduces with the members of this site, when the job of the generation before has ended. It tells [`SyncEvent::Site`].
    ///
    /// # Errors
    /// The system has no thread to give.
    fn start_site(&self, job: SiteJob) -> io::Result<()>;

    /// Tells the device.
    ///
    /// # Errors
    /// It is gone, or takes nothing any more.
    fn tell_device(&self, message: ToDevice) -> Result<()>;
    /// Where the device asks whether it may go on.
    fn barrier(&self) -> &StepBarrier;

    /// Tells the coordinator; while that is away, what can be kept is.
    fn report(&self, message: ToCoordinator);
    /// The present counts.
    fn heartbeat(&self) -> Heartbeat;

    /// Does something that waits for a disk or an archive.
    ///
    /// # Errors
    /// The system has no thread to give.
    fn in_background(&self, name: &str, job: Background) -> io::Result<()>;

    /// Something begins that is recorded, until what is returned is dropped.
    fn begin(&self, activity: Activity) -> Ongoing;
    /// The same of encoding and decoding, which is also counted.
    fn begin_coding(&self, activity: Activity) -> Ongoing;
    /// How what goes to other sites is encoded now.
    fn encodes(&self, encoding: Option<Encoding>);
    /// What a dense f32 exchange would have sent to other sites in place of a frame that was sent.
    fn dense_equivalent(&self, bytes: u64);
}
