//! The pretrained model that a run starts from, from worker to worker: see `docs/base-model.md` of the worker.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use longhaul_checkpoint::{BaseModel, ModelFile, ModelFiles};
use longhaul_common::back_off::BackOff;
use longhaul_common::id::Round;
use longhaul_common::model::ModelSpec;
use longhaul_common::plan::Member;
use longhaul_proto::control::message::{Hash, ModelAt, ModelHolders};
use longhaul_proto::transport::bulk::{PullReply, ReceiveLimits, pull};
use quinn::Connection;
use tokio::fs::OpenOptions;
use tokio::io::AsyncWriteExt as _;
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep};

use super::Network;
use super::copies::send_from;
use super::peer_data::{ANSWER_MAX, BLOCK_MAX, Donors, fetch_long, send_long};
use super::request::Request;

/// Interval of log lines about waiting.
const REMIND_EVERY: Duration = Duration::from_secs(60);

/// This network's knowledge and share of the run's model.
pub(super) struct SharedModel {
    /// Holders, from the coordinator; `None`: no answer yet.
    holders: watch::Sender<Option<ModelHolders>>,
    /// This worker's copy, for the coordinator.
    at: watch::Sender<Option<ModelAt>>,
    lent: watch::Sender<Option<(Hash, Arc<BaseModel>)>>,
}

impl Default for SharedModel {
    fn default() -> Self {
        Self { holders: watch::channel(None).0, at: watch::channel(None).0, lent: watch::channel(None).0 }
    }
}

impl SharedModel {
    /// Stops providing.
    pub fn clear(&self) {
        self.lent.send_replace(None);
    }
}

/// Bytes received, and those of all files.
#[derive(Debug, Default)]
pub struct ModelProgress {
    /// Bytes here.
    pub done: AtomicU64,
    /// Bytes of all files; 0: not known yet.
    pub all: AtomicU64,
}

impl Network {
    /// Notes the coordinator's list of holders.
    pub fn note_model_holders(&self, holders: &ModelHolders) {
        self.shared_model.holders.send_replace(Some(holders.clone()));
    }

    /// Returns this worker's copy as it changes; `None`: the run has no model, or it is unknown yet.
    pub fn model_at(&self) -> watch::Receiver<Option<ModelAt>> {
        self.shared_model.at.subscribe()
    }

    /// Lends this model to other workers, and reports it.
    ///
    /// # Errors
    /// There is not enough memory.
    pub fn lend_model(&self, base: &Arc<BaseModel>) -> Result<()> {
        let model = base.files().hash()?;
        self.shared_model.lent.send_replace(Some((model, Arc::clone(base))));
        self.shared_model.at.send_replace(Some(ModelAt::Here(model)));
        Ok(())
    }

    /// Returns the run's model, once the coordinator knows it; reports that this worker has none, unless it lends one. Blocks the thread.
    ///
    /// # Errors
    /// The session has ended.
    pub fn find_model(&self) -> Result<Hash> {
        self.shared_model.at.send_if_modified(|at| {
            let is_news = at.is_none();
            at.get_or_insert(ModelAt::Nowhere);
            is_news
        });
        let mut holders = self.shared_model.holders.subscribe();
        self.until_stopped(async {
            loop {
                if let Some(model) = holders.borrow_and_update().as_ref().and_then(|holders| holders.model) {
                    return Ok(model);
                }
                tokio::select! {
                    changed = holders.changed() => changed.context("the session is over")?,
                    () = sleep(REMIND_EVERY) => tracing::info!("waiting for a worker with the run's model"),
                }
            }
        })
    }

    /// Fetches the files of a model into `folder`; what an earlier attempt left there is continued. Waits while another worker of the site fetches them. Blocks the
    /// thread.
    ///
    /// # Errors
    /// The session has ended, or the disk refuses a file.
    pub fn fetch_model(
        &self,
        model: Hash,
        largest: &ModelSpec,
        folder: &Path,
        progress: &ModelProgress,
    ) -> Result<()> {
        std::fs::create_dir_all(folder).with_context(|| format!("create folder {}", folder.display()))?;
        let wanted = WantedModel { model, largest, folder, progress };
        self.until_stopped(self.fetch_from_any(&wanted))
    }

    fn until_stopped<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        let mut stopped = self.stopped.subscribe();
        self.runtime.block_on(async {
            tokio::select! {
                done = work => done,
                _ = stopped.wait_for(|stopped| *stopped) => bail!("the session is over"),
            }
        })
    }

    async fn fetch_from_any(&self, wanted: &WantedModel<'_>) -> Result<()> {
        let (mut known, donors, mut back_off) =
            (self.shared_model.holders.subscribe(), Donors::default(), BackOff::default());
        let mut said: Option<(String, Instant)> = None;
        loop {
            let holders = known.borrow_and_update().clone().unwrap_or_default();
            let is_it = holders.model == Some(wanted.model);
            let mut others: Vec<&Member> =
                holders.holders.iter().filter(|member| is_it && member.worker != self.own.worker).collect();
            let now = Instant::now();
            others.sort_by_key(|member| donors.is_passed_over(member.worker, now));
            let mut reasons = Vec::new();
            for member in others {
                match self.fetch_from_holder(&donors, member, wanted).await {
                    Ok(()) => return Ok(()),
                    Err(error) if error.is::<DiskError>() => return Err(error),
                    Err(error) => {
                        let now = Instant::now();
                        if error.is::<NotTheModel>() {
                            donors.note_lied(member.worker, now);
                        } else {
                            donors.note_failed(member.worker, now);
                        }
                        reasons.push(format!("{}: {error:#}", member.worker));
                    }
                }
            }
            let is_waiting = reasons.is_empty();
            let reason = match is_waiting {
                true => "another worker of this site fetches the model first, or nobody has it".to_owned(),
                false => reasons.join("; "),
            };
            if said.as_ref().is_none_or(|(before, at)| *before != reason || now >= *at + REMIND_EVERY) {
                tracing::info!(reason, "waiting for the run's model");
                said = Some((reason, now));
            }
            let pause = if is_waiting { REMIND_EVERY } else { back_off.next_pause() };
            tokio::select! {
                _ = known.changed() => {}
                () = sleep(pause) => {}
            }
        }
    }

    async fn fetch_from_holder(
        &self,
        donors: &Donors,
        member: &Member,
        wanted: &WantedModel<'_>,
    ) -> Result<()> {
        let connection = donors.connection(self, member).await?;
        let talk = async {
            let model = wanted.model;
            let list = fetch_long(&connection, Request::ModelFiles(model))
                .await
                .context("ask for the model's files")?;
            ensure!(blake3::hash(&list) == model, NotTheModel("list of files"));
            let files = ModelFiles::from_bytes(&list, wanted.largest)?;
            wanted.progress.all.store(files.bytes(), Ordering::Relaxed);
            wanted.progress.done.store(0, Ordering::Relaxed);
            for (index, file) in (0..).zip(files.iter()) {
                let request = |offset| Request::ModelFile { model, index, offset };
                fetch_file(&connection, file, request, wanted)
                    .await
                    .with_context(|| format!("fetch {}", file.name))?;
            }
            tracing::info!(holder = %member.worker, bytes = files.bytes(), "the run's model is here");
            Ok(())
        };
        self.while_of_run(member.worker, &connection, talk).await
    }
}

/// A model to fetch.
struct WantedModel<'a> {
    model: Hash,
    /// The run's model, which bounds the files.
    largest: &'a ModelSpec,
    folder: &'a Path,
    progress: &'a ModelProgress,
}

/// A holder sent something else.
#[derive(Debug, thiserror::Error)]
#[error("its {0} differs from that of the run's model")]
struct NotTheModel(&'static str);

/// This machine's disk refuses a file: another holder does not help.
#[derive(Debug, thiserror::Error)]
#[error("write {}: {source}", path.display())]
struct DiskError {
    path: PathBuf,
    source: std::io::Error,
}

/// Fetches the missing rest of a file.
async fn fetch_file(
    connection: &Connection,
    file: &ModelFile,
    request: impl Fn(u64) -> Request,
    wanted: &WantedModel<'_>,
) -> Result<()> {
    let path = wanted.folder.join(&file.name);
    let refused = |source| DiskError { path: path.clone(), source };
    let mut to = OpenOptions::new().create(true).append(true).open(&path).await.map_err(refused)?;
    let mut length = to.metadata().await.map_err(refused)?.len();
    let done = &wanted.progress.done;
    done.fetch_add(length.min(file.bytes), Ordering::Relaxed);
    if length < file.bytes {
        let request = postcard::to_stdvec(&request(length)).context("write a request")?;
        let limits = ReceiveLimits {
            stall_deadline: ANSWER_MAX,
            frame_deadline: BLOCK_MAX,
            ..ReceiveLimits::default()
        };
        let mut response = pull(connection, &request, limits).await?;
        while let Some(frame) = response.next().await? {
            let bytes = frame.body().len() as u64;
            length += bytes;
            ensure!(length <= file.bytes, NotTheModel("file"));
            to.write_all(frame.body()).await.map_err(refused)?;
            done.fetch_add(bytes, Ordering::Relaxed);
        }
        to.flush().await.map_err(refused)?;
        ensure!(length == file.bytes, "{length} of {} bytes arrived", file.bytes);
    }
    let read = path.clone();
    let hash = spawn_blocking(move || {
        let mut hasher = blake3::Hasher::new();
        hasher.update_reader(std::fs::File::open(read)?)?;
        Ok::<_, std::io::Error>(hasher.finalize())
    });
    if hash.await.context("check a file")?.map_err(refused)? != file.hash {
        // The next attempt begins anew.
        std::fs::remove_file(&path).map_err(refused)?;
        bail!(NotTheModel("file"));
    }
    Ok(())
}

/// Answers with the list of the model's files.
pub(super) async fn send_model_files(network: &Network, reply: PullReply, model: Hash) -> Result<()> {
    let files = lent(network, model).map(|base| base.files().to_bytes()).transpose()?;
    send_long(network, reply, files.map(Into::into)).await
}

/// Answers with a file's bytes from `offset` on.
pub(super) async fn send_model_file(
    network: &Network,
    reply: PullReply,
    (model, index): (Hash, u32),
    offset: u64,
) -> Result<()> {
    let base = lent(network, model);
    let file =
        base.as_ref().and_then(|base| Some(base.folder().join(&base.files().get(index as usize)?.name)));
    match file {
        Some(path) => send_from(network, reply, &path, offset, (Round(0), 0)).await,
        None => {
            reply.refuse();
            Ok(())
        }
    }
}

fn lent(network: &Network, model: Hash) -> Option<Arc<BaseModel>> {
    let lent = network.shared_model.lent.borrow();
    lent.as_ref().filter(|(own, _)| *own == model).map(|(_, base)| Arc::clone(base))
}

#[cfg(test)]
mod tests;
