//! The device thread of a session.

use std::io;
use std::num::NonZeroU32;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::thread::JoinHandle;

use anyhow::{Context, Result, ensure};
use longhaul_checkpoint::{BaseModel, Companions, end_tokens};
use longhaul_common::config::{RunConfig, SelectionRule, TaskKind, TasksConfig, WithinSite};
use longhaul_common::explained::Explained;
use longhaul_common::id::{Round, WorkerId};
use longhaul_common::model::{ModelSpec, SynchronisedLayout};
use longhaul_data::tasks::TaskFile;
use longhaul_data::{BlockProvider, BlockStore, DataError, Dataset, ReadAhead, TextEnds, Tokenizer, Work};
use longhaul_engine::{Batch, Engine, LowRank, claim_device, read_ahead};
use longhaul_flight::Progress;
use longhaul_member::SyncEvent;
use longhaul_member::message::{FromDevice, Prepared, ToDevice};
use longhaul_member::step_barrier::StepBarrier;
use longhaul_nccl::NcclCollective;
use longhaul_peer::{FoundData, Network};
use longhaul_proto::control::message::EvaluationData;
use tokio::sync::mpsc;

use super::base_model::{self, ModelPlaces};
use super::join::JoinedRun;
use super::memory;
use crate::data_progress::{self, Far};
use crate::epochs::{EPOCHS_TOLD_MIN, times};
use crate::evaluate::Reading;
use crate::train::device::{Device, DeviceSender, RunTasks};
use crate::train::first_state;
use crate::train::selection::Selector;

/// Inputs of the device thread, which creates the tensors itself.
pub(super) struct DeviceThread {
    pub membership: Arc<JoinedRun>,
    pub worker: WorkerId,
    pub config: Arc<RunConfig>,
    pub network: Arc<Network>,
    pub barrier: Arc<StepBarrier>,
    pub progress: Arc<Progress>,
    pub inbox: Receiver<ToDevice>,
    pub queue: mpsc::Sender<SyncEvent>,
}

impl DeviceThread {
    /// Starts the thread.
    ///
    /// # Errors
    /// The system cannot create a thread.
    pub fn start(self) -> io::Result<JoinHandle<()>> {
        std::thread::Builder::new().name("device".into()).spawn(move || self.run())
    }

    /// Opens the data, builds the model and trains until the session ends.
    fn run(self) {
        let queue = self.queue.clone();
        let outbox: DeviceSender =
            Box::new(move |message| queue.blocking_send(SyncEvent::Device(message)).is_ok());
        if let Err(error) = self.serve(&outbox) {
            // A closed queue means that the session is over.
            let _ = outbox(FromDevice::Failed(Explained(&*error).to_string()));
        }
    }

    /// Builds and trains each assigned part of the model in turn. An undivided model needs no assignment.
    fn serve(&self, outbox: &DeviceSender) -> Result<()> {
        let text = self.open()?;
        let mut next = (!self.config.parallel.is_divided()).then_some(0);
        while let Some(rank) = next.or_else(|| self.told()) {
            let (engine, low_rank, prepared) = self.build(&text, rank)?;
            let share = SynchronisedLayout::new(&prepared.spec);
            let selective = self.config.train.selective_backward.as_ref();
            let (seed, samples) = (self.config.run.seed, text.data.samples());
            let selector = selective.map(|config| Selector::new(config, seed, samples));
            if !outbox(FromDevice::Prepared(Box::new(prepared))) {
                break;
            }
            let device = Device {
                worker: self.worker,
                config: (*self.config).clone(),
                engine,
                share,
                low_rank,
                selector,
                data: &text.data,
                tasks: text.tasks.clone(),
                read_ahead: &text.read_ahead,
                network: Some(Arc::clone(&self.network)),
                barrier: Arc::clone(&self.barrier),
                progress: Arc::clone(&self.progress),
                inbox: &self.inbox,
                outbox,
                next_round: Round(0),
            };
            next = device.run();
            if next.is_none() {
                break;
            }
        }
        Ok(())
    }

    /// Waits for the part to build; `None`: the synchroniser has stopped.
    fn told(&self) -> Option<u32> {
        // Without a part, no other message matters.
        self.inbox.iter().find_map(|message| match message {
            ToDevice::Build { rank } => Some(rank),
            ToDevice::Enter(_) | ToDevice::Apply { .. } | ToDevice::Export => None,
        })
    }

    fn open(&self) -> Result<Text> {
        let (args, config) = (&self.membership.args, &*self.config);
        // Before the preparation of data, which may take hours.
        let device = claim_device(&args.device)?;
        if config.sync.within_site == WithinSite::Nccl {
            NcclCollective::available(device)
                .context("sync.within_site = \"nccl\", where \"ring\" needs no GPU")?;
        }
        let files = read_tasks(&config.evaluate.tasks)?;
        let slot = self.membership.slot.folder();
        let places =
            ModelPlaces { given: args.model.as_deref(), cache_dir: &self.membership.cache_dir, slot };
        let base = base_model::open(config, &places, &self.membership.base_model, &self.network)?;
        let (tokenizer, data) = match args.data_is_remote() {
            true => self.open_remote()?,
            false => self.open_here(base.as_deref(), &files)?,
        };
        let tasks = self.tasks(&tokenizer, base.as_deref(), &files)?;
        let (samples, of) = (config.train.evaluated_samples(), data.held_out_samples());
        if (1..of).contains(&samples) {
            tracing::info!(
                samples,
                of,
                "each validation takes some of the held-out samples, the same each time (train.evaluate_batches)"
            );
        }
        let (drawn, samples) = (config.train.samples_in(config.run.steps), data.samples());
        if drawn / samples.max(1) >= EPOCHS_TOLD_MIN {
            tracing::info!(drawn, samples, "the run takes each sample several times");
        }
        for source in data.sources() {
            if let Some(times) = times(&source, drawn, &config.data) {
                tracing::info!(
                    source = source.name,
                    times,
                    "the run takes each sample of a source several times"
                );
            }
        }
        let read_ahead = read_ahead(Arc::clone(&data), config.run.seed, device)
            .context("start the threads that read training data")?;
        Ok(Text { tokenizer, data, tasks, read_ahead, device, base })
    }

    /// Opens data that this machine can read, and lends it to peers if the configuration allows.
    fn open_here(&self, base: Option<&BaseModel>, files: &[TaskFile]) -> Result<(Tokenizer, Arc<Dataset>)> {
        let (args, config) = (&self.membership.args, &*self.config);
        let tokenizer = base_model::tokenizer_of(&config.data, base)?;
        // Refuses a mismatch of model and tokens, or questions that do not fit, before any data is prepared.
        ModelSpec::of(config, tokenizer.vocabulary())?;
        self.tasks(&tokenizer, base, files)?;
        let data =
            args.data.as_ref().map_or_else(|| config.data.clone(), |place| config.data.found_at(place));
        let work = Work::default();
        let cache = (self.membership.cache_dir.as_path(), args.cache_bytes_max());
        let far = || Far::of_preparing(work.done(), Far::items_of(&config.data));
        let begin = || Dataset::begin_within(&data, &tokenizer, cache, &work);
        let data = Arc::new(data_progress::watch("preparing data", far, begin)??);
        let done = work.done();
        if done.made > 0 {
            tracing::info!(shards = done.made, items = done.items, "the training data is prepared");
        }
        // A leaving worker does not wait for images.
        let coming = data.coming();
        if !coming.is_nothing() {
            self.network.at_end(move || coming.stop());
        }
        if config.may_be_shared() {
            self.lend(&data, &tokenizer)?;
        }
        Ok((tokenizer, data))
    }

    /// Lends the data to peers once it is complete.
    fn lend(&self, data: &Arc<Dataset>, tokenizer: &Tokenizer) -> Result<()> {
        let lend = |data: Arc<Dataset>, tokenizer: &Tokenizer, network: &Network| {
            let hash = data.data_hash();
            network.lend(Arc::new(BlockProvider::new(data, tokenizer)?), hash);
            Ok::<_, DataError>(())
        };
        let coming = data.coming();
        if coming.is_nothing() {
            return Ok(lend(Arc::clone(data), tokenizer, &self.network)?);
        }
        tracing::info!("images are prepared while the run goes on; other workers may have them after that");
        let (data, tokenizer, network) = (Arc::downgrade(data), tokenizer.clone(), Arc::clone(&self.network));
        let wait = move || {
            // The trainer reports a failure.
            if coming.wait().is_ok()
                && let Some(data) = data.upgrade()
            {
                match lend(data, &tokenizer, &network) {
                    Ok(()) => tracing::info!("all images are prepared"),
                    Err(error) => tracing::warn!(%error, "cannot lend the data to other workers"),
                }
            }
        };
        let thread = std::thread::Builder::new().name("lend when prepared".into());
        thread.spawn(wait).context("start the thread that waits for the data")?;
        Ok(())
    }

    /// Opens the data of other workers.
    fn open_remote(&self) -> Result<(Tokenizer, Arc<Dataset>)> {
        ensure!(
            self.config.may_be_shared(),
            "this run has [privacy] or [secure_aggregation], so members do not share their data, and `--data remote` finds none: \
             give this machine the training data, and name it with `--data`"
        );
        let mut refused = Vec::new();
        let (name, tokenizer, data) = loop {
            let found = self.network.find_data(&refused)?;
            let name = found.name;
            match self.open_found(found) {
                Ok((tokenizer, data)) if data.data_hash() == name.data => break (name, tokenizer, data),
                Ok(_) => tracing::warn!(
                    "the catalogue of other workers does not match the data that they train on, and is not used: check that the same release is installed there"
                ),
                Err(error) if error.is_of_others() => {
                    tracing::warn!(%error, "the data of other workers is not used")
                }
                Err(error) => return Err(error.into()),
            }
            refused.push(name);
        };
        let provider = BlockProvider::new(Arc::clone(&data), &tokenizer)?;
        self.network.lend_fetched(Arc::new(provider), name);
        Ok((tokenizer, data))
    }

    /// Opens data announced by another worker.
    fn open_found(&self, found: FoundData) -> Result<(Tokenizer, Arc<Dataset>), DataError> {
        let FoundData { catalogue, tokenizer, .. } = found;
        let (args, config) = (&self.membership.args, &self.config.data);
        let tokenizer = match tokenizer {
            Some(json) => Tokenizer::of_json(json, config.tokenizer.as_ref())?,
            None => Tokenizer::Bytes,
        };
        let cache = (self.membership.cache_dir.as_path(), args.cache_bytes_max());
        let stock = BlockStore::open(config, &catalogue, &tokenizer, cache)?;
        let data =
            Dataset::elsewhere(config, &tokenizer, &catalogue, &stock, &self.network.supplier(&stock))?;
        Ok((tokenizer, Arc::new(data)))
    }

    /// Returns the questions with the special tokens that the model's files name; `None`: there are none.
    ///
    /// # Errors
    /// The model cannot score one.
    fn tasks(
        &self,
        tokenizer: &Tokenizer,
        base: Option<&BaseModel>,
        files: &[TaskFile],
    ) -> Result<Option<RunTasks>> {
        if files.is_empty() {
            return Ok(None);
        }
        let whole = ModelSpec::of(&self.config, tokenizer.vocabulary())?;
        let companions = self.companions(tokenizer, &whole, base)?;
        let named = TextEnds::among(|name| companions.get(name).map(|file| &**file));
        let most = self.config.evaluate.tasks.answer_tokens as usize;
        let (tokenizer, ends) = (tokenizer.clone(), end_tokens(&companions));
        let reading = Reading::new(tokenizer, &named, ends, None, whole.context as usize, most);
        for file in files {
            reading.encoder.check(file).context("evaluate.tasks")?;
        }
        Ok(Some(RunTasks { files: files.into(), reading, scored: None }))
    }

    fn companions(
        &self,
        tokenizer: &Tokenizer,
        whole: &ModelSpec,
        base: Option<&BaseModel>,
    ) -> Result<Companions> {
        let of_template = base_model::of_template(&self.config, self.membership.args.data_is_remote())?;
        // The tokens are of this tokenizer, also where the model's folder has another one.
        let of_data = of_template.or(Companions::of_tokenizer(tokenizer.json()));
        Ok(of_data.or(base_model::companions(&self.config, whole, base)?))
    }

    fn build(&self, text: &Text, rank: u32) -> Result<(Engine, Option<LowRank>, Prepared)> {
        let (args, config) = (&self.membership.args, &*self.config);
        let Text { tokenizer, data, device, base, .. } = text;
        let whole = ModelSpec::of(config, tokenizer.vocabulary())?;
        let spec = part_of(&whole, config, rank)?;
        memory::check(memory::allowed(args, *device), *device, &spec, config, rank)?;
        let threads = args.threads.and_then(|threads| NonZeroU32::new(u32::from(threads)));
        let run = &config.run;
        let (initial, frozen) = first_state(base.as_deref(), (&whole, &spec), run.seed, *device)?;
        let mut engine = Engine::with_parameters(&spec, &config.train, run.steps, &initial, frozen, threads)?;
        if config.sync.selection == SelectionRule::Columns {
            engine.collect_columns()?;
        }
        let parameters = SynchronisedLayout::new(&spec).synchronised(initial);
        let low_rank = (config.sync.rank > 0).then(|| LowRank::new(&spec, config.sync.rank, run.seed));
        let companions = self.companions(tokenizer, &whole, base.as_deref())?;
        let prepared = Prepared {
            rank,
            exchanges: low_rank.as_ref().map(LowRank::lengths),
            gpu: if let tch::Device::Cuda(gpu) = *device { Some(gpu) } else { None },
            spec,
            companions,
            parameters,
            samples: data.samples(),
            data_hash: data.data_hash(),
            evaluation: EvaluationData {
                held_out: if config.train.evaluate_batches > 0 { data.held_out_hash() } else { [0; 32] },
                questions: text.questions(),
            },
            cores: engine.cores(),
        };
        Ok((engine, low_rank, prepared))
    }
}

/// State that is independent of the part of the model.
struct Text {
    tokenizer: Tokenizer,
    data: Arc<Dataset>,
    /// Questions that are scored during the run.
    tasks: Option<RunTasks>,
    read_ahead: ReadAhead<Batch>,
    device: tch::Device,
    /// The model that the run starts from; `None`: random weights.
    base: Option<Arc<BaseModel>>,
}

impl Text {
    /// Returns the hash of the questions; zeros: there are none.
    fn questions(&self) -> [u8; 32] {
        let Some(tasks) = &self.tasks else { return [0; 32] };
        let mut hasher = blake3::Hasher::new();
        tasks.files.iter().for_each(|file| file.hash_into(&mut hasher));
        *hasher.finalize().as_bytes()
    }
}

/// Reads the files of `evaluate.tasks`, before any other work.
fn read_tasks(config: &TasksConfig) -> Result<Vec<TaskFile>> {
    let limit = config.limit();
    let read = |(kind, file): (TaskKind, &str)| {
        TaskFile::read(Path::new(file), Some(kind), limit)
            .context("evaluate.tasks: each worker needs the files of questions at the same path")
    };
    config.files().map(read).collect()
}

fn part_of(whole: &ModelSpec, config: &RunConfig, rank: u32) -> Result<ModelSpec> {
    let parallel = &config.parallel;
    let parts = whole.parts(parallel, config.data.sequence_length);
    let part = parts.and_then(|mut parts| parts.drain(..).nth(rank as usize));
    part.with_context(|| {
        format!("the coordinator gave part {rank} of a model in {} parts", parallel.ranks_per_replica())
    })
}
