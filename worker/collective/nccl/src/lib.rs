//! Reduction between the GPUs of a site, by NCCL, with a ring beside it that agrees on each call.

#[cfg(feature = "nccl")]
mod communicator;
#[cfg(not(feature = "nccl"))]
#[path = "absent.rs"]
mod communicator;
#[cfg(feature = "nccl")]
mod library;
mod machine;

use std::ffi::c_void;
use std::ops::Range;
use std::time::Duration;

use longhaul_collective::beside::{Limit, Statement, objection, share};
use longhaul_collective::{
    Collective, CollectiveError, NcclError, Reduction, RingCollective, Word, even_ranges,
};
use tch::{Cuda, Device, Kind, TchError, Tensor};

use self::communicator::{Communicator, ID_BYTES, NcclLibrary};

/// Reach of NCCL's traffic, which is neither encrypted nor authenticated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NcclReach {
    /// All members are on one machine, so that no traffic leaves it; otherwise joining fails.
    OneMachine,
    /// Members share a fabric that is closed to others, as confirmed by the run's owner.
    TrustedFabric,
}

/// Returns the free bytes of a GPU's memory.
///
/// # Errors
/// The driver is missing or fails.
pub fn gpu_memory_bytes(device: usize) -> Result<u64, NcclError> {
    communicator::free_bytes(&*communicator::context(device)?)
}

/// Word of a member that cannot use NCCL, in place of the hash of its machine.
const NOT_HERE: Word = [0; 16];

/// A member that drives one GPU.
pub struct NcclCollective {
    ring: RingCollective,
    // None after a failure.
    communicator: Option<Communicator>,
    device: Device,
}

impl NcclCollective {
    /// Checks that NCCL can serve this device here.
    ///
    /// # Errors
    /// The missing component, and its installation.
    pub fn available(device: Device) -> Result<(), NcclError> {
        requirements(device).map(|_| ())
    }

    /// Reports whether NCCL can serve all members of a ring on one machine. All get the same answer; each logs its own obstacle.
    ///
    /// # Errors
    /// [`CollectiveError`], of the ring.
    pub fn can_serve(ring: &mut RingCollective, device: Device) -> Result<bool, CollectiveError> {
        let here = Self::available(device).and_then(|()| machine::this());
        let word = here.as_ref().copied().unwrap_or(NOT_HERE);
        if let Err(reason) = here {
            tracing::warn!(%reason, "the members of a tensor group use a ring");
        }
        let words = ring.exchange(word, ring.call_max())?;
        let together = words.iter().all(|other| *other == words[0] && *other != NOT_HERE);
        if !together && word != NOT_HERE {
            tracing::warn!(
                "not all members of a tensor group have NCCL on one machine: they use a ring; choose smaller groups (parallel.tensor), or sites of one machine each"
            );
        }
        Ok(together)
    }

    /// Joins NCCL's communicator with the members of a ring, each with its own device. Returns when all have.
    ///
    /// # Errors
    /// [`CollectiveError`]: no GPU, no NCCL, or as for any call. The ring is ended then.
    pub fn join(mut ring: RingCollective, device: Device, reach: NcclReach) -> Result<Self, CollectiveError> {
        match enter(&mut ring, device, reach) {
            Ok(communicator) => Ok(Self { ring, communicator: Some(communicator), device }),
            Err(error) => {
                ring.break_off(&error);
                Err(error)
            }
        }
    }

    /// [`Collective::all_reduce`] of values `[…]` that lie contiguously in the device's memory.
    ///
    /// # Errors
    /// [`CollectiveError`]
    pub fn all_reduce_on_device(
        &mut self,
        values: &mut Tensor,
        reduction: Reduction,
    ) -> Result<u64, CollectiveError> {
        let ranges = even_ranges(values.numel(), self.size());
        self.reduce(values, &ranges, reduction, true)
    }

    /// [`Collective::reduce_scatter`] of values `[…]` that lie contiguously in the device's memory.
    ///
    /// # Errors
    /// [`CollectiveError`]
    pub fn reduce_scatter_on_device(
        &mut self,
        values: &mut Tensor,
        ranges: &[Range<usize>],
        reduction: Reduction,
    ) -> Result<u64, CollectiveError> {
        self.reduce(values, ranges, reduction, false)
    }

    /// [`Collective::all_gather`] of values `[…]` that lie contiguously in the device's memory.
    ///
    /// # Errors
    /// [`CollectiveError`]
    pub fn all_gather_on_device(
        &mut self,
        values: &mut Tensor,
        ranges: &[Range<usize>],
    ) -> Result<(), CollectiveError> {
        self.call(|this, limit| {
            this.check(values, ranges)?;
            this.ring.agree_on(Statement::gather(values.numel(), ranges))?;
            this.transfer(values, |communicator, start| {
                // SAFETY: `transfer` supplies the start of checked values, and drains the device first.
                unsafe { communicator.gather(start, ranges, limit) }
            })
        })
    }

    fn reduce(
        &mut self,
        values: &mut Tensor,
        ranges: &[Range<usize>],
        reduction: Reduction,
        gather: bool,
    ) -> Result<u64, CollectiveError> {
        self.call(|this, limit| {
            this.check(values, ranges)?;
            let statements = this.ring.agree_on(Statement::reduce(reduction, values.numel(), ranges))?;
            let (share, samples) = share(reduction, &statements)?;
            weigh(values, share)?;
            this.transfer(values, |communicator, start| {
                // SAFETY: as for gathering; the second begins after the first has ended.
                unsafe {
                    communicator.reduce(start, ranges, limit)?;
                    if gather { communicator.gather(start, ranges, limit) } else { Ok(()) }
                }
            })?;
            Ok(samples)
        })
    }

    /// Agrees, works, and ends everything after a failure: afterwards NCCL uses the values no more.
    fn call<T>(
        &mut self,
        work: impl FnOnce(&mut Self, Limit) -> Result<T, CollectiveError>,
    ) -> Result<T, CollectiveError> {
        let limit = Limit::of(self.ring.call_max());
        let done = work(self, limit);
        if let Err(error) = &done {
            self.communicator = None;
            self.ring.break_off(error);
        }
        done
    }

    /// Passes the values to NCCL, ordered after earlier and before later work of libtorch.
    fn transfer(
        &mut self,
        values: &Tensor,
        work: impl FnOnce(&mut Communicator, *mut c_void) -> Result<(), NcclError>,
    ) -> Result<(), CollectiveError> {
        // Unreachable with a broken ring: the agreement has failed.
        if let Some(communicator) = &mut self.communicator {
            communicator.drain_device()?;
            work(communicator, values.data_ptr())?;
        }
        Ok(())
    }

    fn check(&self, values: &Tensor, ranges: &[Range<usize>]) -> Result<(), CollectiveError> {
        if values.device() != self.device || values.kind() != Kind::Float || !values.is_contiguous() {
            let device = named(self.device);
            let layout = if values.is_contiguous() { "contiguous" } else { "not contiguous" };
            let found = format!("{:?} on {}, {layout}", values.kind(), named(values.device()));
            return Err(NcclError::Tensor { device, found }.into());
        }
        objection(ranges, values.numel(), self.size()).map_or(Ok(()), |why| Err(CollectiveError::Ranges(why)))
    }

    /// Applies `work` to values on the host, by way of the device.
    fn by_device<T>(
        &mut self,
        values: &mut [f32],
        work: impl FnOnce(&mut Self, &mut Tensor) -> Result<T, CollectiveError>,
    ) -> Result<T, CollectiveError> {
        const WHAT: &str = "copy values to the device and back";
        let device = self.device;
        let on_device = Tensor::f_from_slice(values).and_then(|tensor| tensor.f_to(device));
        let mut on_device = self.call(|_, _| Ok(on_device.map_err(torch(WHAT))?))?;
        let done = work(self, &mut on_device)?;
        let copied = on_device.f_to(Device::Cpu).and_then(|host| host.f_copy_data(values, values.len()));
        self.call(|_, _| Ok(copied.map_err(torch(WHAT))?))?;
        Ok(done)
    }
}

/// Returns NCCL's requirements on this machine: a GPU that libtorch sees, and the library.
fn requirements(device: Device) -> Result<(usize, &'static NcclLibrary), NcclError> {
    let gpus = Cuda::device_count();
    match device {
        Device::Cuda(index) if i64::try_from(index).is_ok_and(|index| index < gpus) => {
            Ok((index, NcclLibrary::get()?))
        }
        _ => Err(NcclError::NoGpu { device: named(device), gpus }),
    }
}

/// Checks the requirements here before the agreement, then joins with the others.
fn enter(
    ring: &mut RingCollective,
    device: Device,
    reach: NcclReach,
) -> Result<Communicator, CollectiveError> {
    let (index, nccl) = requirements(device)?;
    let context = communicator::context(index)?;
    let machine = match reach {
        NcclReach::OneMachine => machine::this()?,
        NcclReach::TrustedFabric => [0; 16],
    };
    ring.agree_on(Statement::join_nccl(machine))?;
    let mut id = if ring.rank() == 0 { Communicator::new_id(nccl)?.to_vec() } else { Vec::new() };
    ring.broadcast(0, &mut id, ID_BYTES)?;
    let limit = Limit::of(ring.call_max());
    // A short id from the root is invalid.
    id.resize(ID_BYTES, 0);
    let id = std::array::from_fn(|at| id[at]);
    Ok(Communicator::join(nccl, context, &id, (ring.rank(), ring.size()), limit)?)
}

/// Multiplies this member's values by its share.
fn weigh(values: &mut Tensor, share: f32) -> Result<(), NcclError> {
    let weighed = tch::no_grad(|| match share {
        // The values may not be finite, and must not matter.
        0.0 => values.f_zero_(),
        1.0 => Ok(values.shallow_clone()),
        share => values.f_mul_scalar_(f64::from(share)),
    });
    weighed.map(|_| ()).map_err(torch("weigh this member's values"))
}

impl Collective for NcclCollective {
    fn rank(&self) -> usize {
        self.ring.rank()
    }

    fn size(&self) -> usize {
        self.ring.size()
    }

    fn all_reduce(&mut self, values: &mut [f32], reduction: Reduction) -> Result<u64, CollectiveError> {
        self.by_device(values, |this, values| this.all_reduce_on_device(values, reduction))
    }

    fn reduce_scatter(
        &mut self,
        values: &mut [f32],
        ranges: &[Range<usize>],
        reduction: Reduction,
    ) -> Result<u64, CollectiveError> {
        self.by_device(values, |this, values| this.reduce_scatter_on_device(values, ranges, reduction))
    }

    fn all_gather(&mut self, values: &mut [f32], ranges: &[Range<usize>]) -> Result<(), CollectiveError> {
        self.by_device(values, |this, values| this.all_gather_on_device(values, ranges))
    }

    /// Over the ring: bytes are on the host.
    fn broadcast(
        &mut self,
        root: usize,
        bytes: &mut Vec<u8>,
        bytes_max: usize,
    ) -> Result<(), CollectiveError> {
        self.call(|this, _| this.ring.broadcast(root, bytes, bytes_max))
    }

    /// Over the ring, as all words are.
    fn exchange(&mut self, word: Word, patience: Duration) -> Result<Vec<Word>, CollectiveError> {
        self.call(|this, _| this.ring.exchange(word, patience))
    }

    fn barrier(&mut self) -> Result<(), CollectiveError> {
        self.call(|this, _| this.ring.barrier())
    }
}

/// Returns `cuda:0`, or `cpu`.
fn named(device: Device) -> String {
    if let Device::Cuda(index) = device { format!("cuda:{index}") } else { "cpu".to_owned() }
}

fn torch(what: &'static str) -> impl FnOnce(TchError) -> NcclError {
    move |error| NcclError::Torch { what, reason: error.to_string() }
}
