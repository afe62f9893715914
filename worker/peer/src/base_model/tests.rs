use longhaul_common::id::SiteId;
use longhaul_common::model::ModelSpec;
use tempfile::TempDir;

use super::*;
use crate::testing::{Worker, authority};

/// The repository's smallest pretrained decoder.
fn fixture() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/decoders/llama")
}

fn opened(folder: &Path) -> Arc<BaseModel> {
    Arc::new(BaseModel::open(folder, |_, _| {}).unwrap())
}

fn spec() -> ModelSpec {
    ModelSpec::resolve(&longhaul_checkpoint::describe_model(&fixture()).unwrap().model, 0).unwrap()
}

/// Worker 1 without a model, and worker 2 that lends one.
struct Two {
    taker: Worker,
    holder: Worker,
    into: TempDir,
}

impl Two {
    fn start(model: &Path) -> (Self, Hash) {
        let authority = authority();
        let taker = Worker::start_at(&authority, 1, SiteId(1), ReceiveLimits::default());
        let holder = Worker::start_at(&authority, 2, SiteId(2), ReceiveLimits::default());
        let base = opened(model);
        holder.network.lend_model(&base).unwrap();
        (Self { taker, holder, into: tempfile::tempdir().unwrap() }, base.files().hash().unwrap())
    }

    /// The coordinator's answer.
    fn name(&self, model: Hash, holders: Vec<Member>) {
        self.taker.network.note_model_holders(&ModelHolders { model: Some(model), holders });
    }

    async fn fetch(&self, model: Hash, largest: ModelSpec) -> Result<(u64, u64)> {
        let (network, folder) = (Arc::clone(&self.taker.network), self.into.path().to_owned());
        spawn_blocking(move || {
            let progress = ModelProgress::default();
            network.fetch_model(model, &largest, &folder, &progress)?;
            Ok((progress.done.into_inner(), progress.all.into_inner()))
        })
        .await
        .unwrap()
    }
}

#[tokio::test]
async fn a_model_arrives_whole_and_a_cut_or_damaged_rest_of_an_attempt_is_mended() {
    let (two, model) = Two::start(&fixture());
    two.name(model, vec![two.holder.member.clone()]);
    let base = opened(&fixture());
    let weights = std::fs::read(fixture().join("model.safetensors")).unwrap();
    let path = two.into.path().join("model.safetensors");
    let mut damaged = weights.clone();
    damaged[weights.len() - 1] ^= 1;
    for left in [&[][..], &weights[..weights.len() / 2], &weights] {
        std::fs::write(&path, left).unwrap();
        let all = base.files().bytes();
        assert_eq!(two.fetch(model, spec()).await.unwrap(), (all, all));
        assert_eq!(opened(two.into.path()).files().hash().unwrap(), model);
    }
    // The rest is fetched, found damaged as a whole, and fetched again from the only holder.
    for left in [&damaged[..], &damaged[..3]] {
        let mut left = left.to_vec();
        left[0] ^= 1;
        std::fs::write(&path, left).unwrap();
        two.fetch(model, spec()).await.unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), weights);
    }
}

#[tokio::test]
async fn a_worker_learns_the_runs_model_and_waits_while_another_of_its_site_fetches() {
    let (two, model) = Two::start(&fixture());
    let network = Arc::clone(&two.taker.network);
    let finding = spawn_blocking(move || network.find_model());
    let mut at = two.taker.network.model_at();
    at.wait_for(|at| *at == Some(ModelAt::Nowhere)).await.unwrap();
    two.taker.network.note_model_holders(&ModelHolders::default());
    two.name(model, Vec::new());
    assert_eq!(finding.await.unwrap().unwrap(), model);
    let fetching = two.fetch(model, spec());
    let naming = async {
        tokio::task::yield_now().await;
        two.name(model, vec![two.holder.member.clone()]);
    };
    let (fetched, ()) = tokio::join!(fetching, naming);
    fetched.unwrap();
}

#[tokio::test]
async fn a_holder_of_another_model_gives_nothing_and_no_file_beyond_the_list() {
    let (two, model) = Two::start(&fixture());
    let connection = {
        let donors = Donors::default();
        donors.connection(&two.taker.network, &two.holder.member).await.unwrap()
    };
    assert!(fetch_long(&connection, Request::ModelFiles([9; 32])).await.is_err());
    let (folder, progress, largest) = (two.into.path(), ModelProgress::default(), spec());
    let wanted = WantedModel { model: [9; 32], largest: &largest, folder, progress: &progress };
    let error = two.taker.network.fetch_from_holder(&Donors::default(), &two.holder.member, &wanted).await;
    let error = format!("{:#}", error.unwrap_err());
    assert!(error.contains("ask for the model's files"), "{error}");
    for index in [99, u32::MAX] {
        let request = postcard::to_stdvec(&Request::ModelFile { model, index, offset: 0 }).unwrap();
        let answer = pull(&connection, &request, ReceiveLimits::default()).await;
        assert!(match answer {
            Ok(mut answer) => answer.next().await.is_err(),
            Err(_) => true,
        });
    }
}

#[tokio::test]
async fn the_end_of_a_session_ends_waiting() {
    let (two, model) = Two::start(&fixture());
    two.name(model, Vec::new());
    let fetching = two.fetch(model, spec());
    let stopping = async { two.taker.network.stop() };
    let (fetched, ()) = tokio::join!(fetching, stopping);
    assert!(fetched.unwrap_err().to_string().contains("the session is over"));
}
