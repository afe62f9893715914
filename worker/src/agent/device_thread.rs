//! The thread that computes, as a session starts it.

use std::io;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::thread::JoinHandle;

use anyhow::{Context, Result};
use longhaul_common::config::{RunConfig, WithinSite};
use longhaul_common::explained::Explained;
use longhaul_common::id::{Round, WorkerId};
use longhaul_common::model::ModelSpec;
use tokio::sync::mpsc;

use super::join::Membership;
use crate::collective::NcclCollective;
use crate::data::{Dataset, Tokenizer};
use crate::engine::{Engine, LowRank, choose_device};
use crate::sync::SyncEvent;
use crate::train::device::Device;
use crate::train::gate::Gate;
use crate::train::message::{FromDevice, Prepared, ToDevice};
use crate::train::progress::Progress;

/// What the device thread is made of: the tensors themselves are made on it.
pub(super) struct DeviceThread {
    pub membership: Arc<Membership>,
    pub worker: WorkerId,
    pub config: Arc<RunConfig>,
    pub gate: Arc<Gate>,
    pub progress: Arc<Progress>,
    pub inbox: Receiver<ToDevice>,
    pub queue: mpsc::Sender<SyncEvent>,
}

impl DeviceThread {
    /// Starts the thread.
    ///
    /// # Errors
    /// The system has no thread to give.
    pub fn start(self) -> io::Result<JoinHandle<()>> {
        std::thread::Builder::new().name("device".into()).spawn(move || self.run())
    }

    /// Builds model and data, and trains until the session ends.
    fn run(self) {
        let queue = self.queue.clone();
        let outbox = {
            let queue = queue.clone();
            Box::new(move |message| queue.blocking_send(SyncEvent::Device(message)).is_ok())
        };
        let first = match self.prepare() {
            Ok((engine, low_rank, data, prepared)) => {
                let sent = queue.blocking_send(SyncEvent::Device(FromDevice::Prepared(prepared)));
                if sent.is_ok() {
                    let device = Device {
                        worker: self.worker,
                        config: (*self.config).clone(),
                        engine,
                        low_rank,
                        data,
                        gate: self.gate,
                        progress: self.progress,
                        inbox: self.inbox,
                        outbox,
                        next_round: Round(0),
                    };
                    device.run();
                }
                return;
            }
            Err(error) => FromDevice::Failed(Explained(&*error).to_string()),
        };
        // When the synchroniser is gone, the session is over.
        let _ = queue.blocking_send(SyncEvent::Device(first));
    }

    fn prepare(&self) -> Result<(Engine, Option<LowRank>, Dataset, Prepared)> {
        let (args, config) = (&self.membership.args, &*self.config);
        let tokenizer = Tokenizer::load(&config.data.tokenizer)?;
        let path = args.data.as_deref().unwrap_or(&config.data.path);
        let data = Dataset::open(&config.data, path, &tokenizer, &self.membership.cache_dir)?;
        let device = choose_device(&args.device)?;
        if config.sync.within_site == WithinSite::Nccl {
            NcclCollective::available(device)
                .context("sync.within_site = \"nccl\", where \"ring\" needs no GPU")?;
        }
        let spec = ModelSpec::resolve(&config.model, tokenizer.vocabulary())?;
        let threads = args.threads.and_then(|threads| NonZeroU32::new(u32::from(threads)));
        let run = &config.run;
        let engine = Engine::new(&spec, &config.train, run.steps, run.seed, device, threads)?;
        let mut parameters = Vec::new();
        engine.parameters_to_host(&mut parameters)?;
        let low_rank = (config.sync.rank > 0).then(|| LowRank::new(&spec, config.sync.rank, run.seed));
        let prepared = Prepared {
            exchanges: low_rank.as_ref().map(LowRank::lengths),
            device,
            spec,
            tokenizer: tokenizer.json(),
            parameters,
            samples: data.samples(),
            data_hash: data.data_hash(),
            cores: engine.cores(),
        };
        Ok((engine, low_rank, data, prepared))
    }
}
