use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use futures_util::StreamExt as _;
use futures_util::stream::BoxStream;
use longhaul_common::config::{ArchiveLocation, Retention};
use longhaul_common::id::{Generation, WorkerId};
use object_store::memory::InMemory;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectStoreExt as _,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result as StoreResult,
};

use super::*;
use crate::checkpoint::archive::{Manifest, PIECE_BYTES_MAX, Private};

const PART: ModelPart = ModelPart { run: RunId([7; 16]), parts: 2, rank: 1 };
const PIECE_VALUES: u32 = 100;

/// Storage whose writer dies: every write and removal fails once the budget is spent.
#[derive(Debug)]
struct Dying {
    storage: Arc<InMemory>,
    left: Arc<AtomicU64>,
}

/// Spends one write of the budget.
fn spend(left: &AtomicU64) -> StoreResult<()> {
    let spent = left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
    spent.map(|_| ()).map_err(|_| Error::Generic { store: "dying", source: "the writer is dead".into() })
}

impl std::fmt::Display for Dying {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("dying")
    }
}

#[async_trait]
impl ObjectStore for Dying {
    async fn put_opts(&self, to: &Path, payload: PutPayload, options: PutOptions) -> StoreResult<PutResult> {
        spend(&self.left)?;
        self.storage.put_opts(to, payload, options).await
    }

    async fn put_multipart_opts(
        &self,
        to: &Path,
        options: PutMultipartOptions,
    ) -> StoreResult<Box<dyn MultipartUpload>> {
        spend(&self.left)?;
        self.storage.put_multipart_opts(to, options).await
    }

    async fn get_opts(&self, from: &Path, options: GetOptions) -> StoreResult<GetResult> {
        self.storage.get_opts(from, options).await
    }

    fn delete_stream(
        &self,
        paths: BoxStream<'static, StoreResult<Path>>,
    ) -> BoxStream<'static, StoreResult<Path>> {
        let (storage, left) = (Arc::clone(&self.storage), Arc::clone(&self.left));
        let remove = move |path: StoreResult<Path>| {
            let (storage, left) = (Arc::clone(&storage), Arc::clone(&left));
            async move {
                spend(&left)?;
                let path = path?;
                storage.delete(&path).await.map(|()| path)
            }
        };
        paths.then(remove).boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, StoreResult<ObjectMeta>> {
        self.storage.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> StoreResult<ListResult> {
        self.storage.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> StoreResult<()> {
        spend(&self.left)?;
        self.storage.copy_opts(from, to, options).await
    }
}

fn archive(storage: &Arc<InMemory>) -> Archive {
    Archive::on(Arc::clone(storage) as Arc<dyn ObjectStore>, "runs/of us", "memory".to_owned())
}

/// A thousand values; those of the third fragment never change.
fn values(seed: u64) -> Vec<f32> {
    let value = |index: u64| match index / u64::from(PIECE_VALUES) {
        2 => index as f32,
        _ => (seed * 10_000 + index) as f32,
    };
    (0..1000).map(value).collect()
}

async fn write(archive: &Archive, round: u64, retention: Retention) -> Result<u64, ArchiveError> {
    let mut upload = archive.upload(PART, PIECE_VALUES);
    let parameters = upload.values(&values(round)).await?;
    let tokenizer = Some(upload.bytes(&b"{}".repeat(300)).await?);
    let vectors = [("local".to_owned(), upload.values(&values(round)).await?)].into();
    let counters = [("updates".to_owned(), round)].into();
    let manifest = Manifest {
        run: PART.run.to_string(),
        next_round: Round(round),
        next_step: 5 * round,
        generation: Generation(1),
        state_hash: "00".repeat(32),
        software: "0".to_owned(),
        rank: PART.rank,
        parts: PART.parts,
        chunks: Some(vec![(0, 2)]),
        share: None,
        model: "{}".to_owned(),
        tokenizer,
        companions: Default::default(),
        parameters,
        shared: Default::default(),
        private: Some(Private { worker: WorkerId(3), counters, vectors }),
    };
    let sent = upload.sent_bytes();
    upload.finish(&manifest).await?;
    archive.prune(PART, retention, Round(round)).await?;
    Ok(sent)
}

async fn rounds(archive: &Archive) -> Vec<u64> {
    let listed = archive.list(None).await.unwrap();
    listed.into_iter().map(|of| of.next_round.0).collect()
}

async fn is_whole(archive: &Archive, round: u64) -> bool {
    let verified = archive.verify(Archived { part: PART, next_round: Round(round) }).await.unwrap();
    verified.damaged.is_empty()
}

#[tokio::test]
async fn what_was_written_is_listed_and_read_and_what_is_there_is_not_stored_again() {
    let archive = archive(&Arc::default());
    assert_eq!(archive.list(None).await.unwrap(), []);
    // The local values equal the synchronised ones.
    assert_eq!(write(&archive, 20, 9.into()).await.unwrap(), 4000 + 600);
    assert_eq!(write(&archive, 40, 9.into()).await.unwrap(), 3600);
    let of = Archived { part: PART, next_round: Round(40) };
    assert_eq!(archive.list(Some(PART.run)).await.unwrap(), [of, Archived { next_round: Round(20), ..of }]);
    assert_eq!(archive.list(Some(RunId([8; 16]))).await.unwrap(), []);
    assert!(archive.name_of(of).ends_with("part-2-of-2/round-000040.json"), "{}", archive.name_of(of));

    let manifest = archive.manifest(of).await.unwrap();
    assert_eq!((manifest.next_step, manifest.parameters.pieces.len()), (200, 10));
    let bytes = archive.read(PART, &manifest.parameters, 4000).await.unwrap();
    let read: Vec<f32> = bytes.as_chunks().0.iter().map(|word| f32::from_le_bytes(*word)).collect();
    assert_eq!(read, values(40));
    let error = archive.read(PART, &manifest.parameters, 3996).await.unwrap_err();
    assert!(error.is_damage(), "{error}");
    let verified = archive.verify(of).await.unwrap();
    assert_eq!((verified.pieces, verified.bytes, verified.damaged.len()), (12, 4600, 0));
}

/// Dies at each write and each removal in turn.
#[tokio::test]
async fn a_writer_that_dies_at_any_point_leaves_the_checkpoint_before_intact() {
    for retention in [Retention::from(1), 2.into(), Retention { for_good_every: 20, ..1.into() }] {
        let mut deaths = 0;
        loop {
            let storage = Arc::new(InMemory::new());
            let archive = archive(&storage);
            write(&archive, 20, retention).await.unwrap();
            let left = Arc::new(AtomicU64::new(deaths));
            let dying = Dying { storage, left: Arc::clone(&left) };
            let doomed = Archive::on(Arc::new(dying), "runs/of us", String::new());
            let written = write(&doomed, 40, retention).await;
            let listed = rounds(&archive).await;
            assert!(listed.contains(&20) || listed == [40], "{deaths}: {listed:?}");
            for round in listed {
                assert!(is_whole(&archive, round).await, "{deaths}: {round}");
            }
            // The next writer removes the remains.
            write(&archive, 60, 1.into()).await.unwrap();
            assert!(is_whole(&archive, 60).await);
            if written.is_ok() && left.load(Ordering::Relaxed) > 0 {
                break;
            }
            deaths += 1;
        }
        assert!(deaths >= 10, "{deaths} writes and removals");
    }
}

#[tokio::test]
async fn the_last_and_each_so_many_th_stay_and_pieces_that_nobody_names_go() {
    let storage = Arc::new(InMemory::new());
    let archive = archive(&storage);
    let retention = Retention { for_good_every: 60, ..2.into() };
    for round in 1..=10 {
        write(&archive, 20 * round, retention).await.unwrap();
    }
    assert_eq!(rounds(&archive).await, [200, 180, 120, 60]);
    for round in [200, 180, 120, 60] {
        assert!(is_whole(&archive, round).await, "{round}");
    }
    // Nine own pieces each, one shared piece of the vectors and two of the tokenizer; none of the checkpoints
    // before the last two.
    let pieces = storage.list(Some(&archive.path(&format!("{}/pieces", part_path(PART)))));
    let count = pieces.count().await;
    assert!((4 * 9 + 3..=5 * 9 + 3).contains(&count), "{count} pieces");
}

#[tokio::test]
async fn damage_is_named_and_other_checkpoints_stay_usable() {
    let storage = Arc::new(InMemory::new());
    let archive = archive(&storage);
    for round in [20, 40] {
        write(&archive, round, 9.into()).await.unwrap();
    }
    let of = Archived { part: PART, next_round: Round(40) };
    let manifest = archive.manifest(of).await.unwrap();
    let path = archive.piece_path(PART, &manifest.parameters.pieces[4]);
    for (bytes, reason) in [
        (Some(vec![1; 400]), "its hash is not its name"),
        (Some(vec![0; 399]), "399 of 400 bytes"),
        (Some(vec![0; 401]), "401 bytes exceed the maximum of 400"),
        (None, "it is missing"),
    ] {
        match bytes {
            Some(bytes) => drop(storage.put(&path, bytes.into()).await.unwrap()),
            None => storage.delete(&path).await.unwrap(),
        }
        let verified = archive.verify(of).await.unwrap();
        assert_eq!((verified.pieces, verified.damaged.len()), (11, 1));
        let words = &verified.damaged[0];
        assert!(words.contains(&manifest.parameters.pieces[4].blake3) && words.contains(reason), "{words}");
        // It was removed, so the next checkpoint with it writes it again.
        let error = archive.read(PART, &manifest.parameters, 4000).await.unwrap_err();
        assert!(error.is_damage() && error.to_string().contains("it is missing"), "{error}");
        assert!(is_whole(&archive, 20).await);
        write(&archive, 40, 9.into()).await.unwrap();
        assert!(is_whole(&archive, 40).await);
    }

    let path = archive.path_of(of);
    let text = storage.get(&path).await.unwrap().bytes().await.unwrap();
    let mut broken = text.to_vec();
    broken[100] ^= 1;
    storage.put(&path, broken.into()).await.unwrap();
    assert!(archive.manifest(of).await.unwrap_err().is_damage());
    // A document of another round is refused too.
    storage.put(&archive.path_of(Archived { next_round: Round(60), ..of }), text.into()).await.unwrap();
    let error = archive.manifest(Archived { next_round: Round(60), ..of }).await.unwrap_err();
    assert!(error.is_damage() && error.to_string().contains("r40"), "{error}");
}

#[tokio::test]
async fn a_manifest_that_names_more_than_a_piece_or_another_place_is_refused() {
    let storage = Arc::new(InMemory::new());
    let archive = archive(&storage);
    write(&archive, 20, 9.into()).await.unwrap();
    let of = Archived { part: PART, next_round: Round(20) };
    let manifest = archive.manifest(of).await.unwrap();
    let hash = &manifest.parameters.pieces[0].blake3;
    for (bytes, blake3) in [
        (u64::MAX, hash.clone()),
        (PIECE_BYTES_MAX + 1, hash.clone()),
        (400, "../../x".to_owned()),
        (400, hash.to_uppercase()),
        (300, hash.clone()),
    ] {
        let mut odd = manifest.clone();
        odd.parameters.pieces[0] = Piece { bytes, blake3 };
        let text = crate::checkpoint::sealed::to_text(&odd).unwrap();
        storage.put(&archive.path_of(of), text.into()).await.unwrap();
        assert!(archive.manifest(of).await.unwrap_err().is_damage(), "{:?}", odd.parameters.pieces[0]);
    }
}

#[tokio::test]
async fn a_folder_is_an_archive_too() {
    let folder = tempfile::tempdir().unwrap();
    let location = ArchiveLocation::Folder(folder.path().join("new"));
    let message = Archive::open(&location, None).unwrap_err().to_string();
    assert!(message.contains("new"), "{message}");
    let archive = Archive::create(&location, None).unwrap();
    for round in [20, 40, 60] {
        write(&archive, round, 2.into()).await.unwrap();
    }
    let again = Archive::open(&location, None).unwrap();
    assert_eq!(rounds(&again).await, [60, 40]);
    assert!(is_whole(&again, 60).await && is_whole(&again, 40).await);
}
