//! The archive on an S3 server, where one is available ([`longhaul_tests::s3`]).

use std::process::Command;

use longhaul_common::config::{ArchiveLocation, Retention};
use longhaul_common::id::{Generation, Round, RunId};
use longhaul_proto::checkpoint::archive::{Archive, Archived, Manifest, ModelPart};
use longhaul_tests::s3::S3Server;
use longhaul_tests::tools::skipped;

const ENDPOINT: &str = "LONGHAUL_TEST_S3";
const PART: ModelPart = ModelPart { run: RunId([9; 16]), parts: 1, rank: 0 };
const VALUES: usize = 300_000;

/// Credentials come from the environment, which a test may only set for another process.
#[test]
fn checkpoints_go_through_an_s3_server_and_back() {
    let Some(server) = S3Server::start().unwrap() else {
        skipped("python has no moto with its server (pip install 'moto[server]')");
        return;
    };
    server.make_bucket("bucket").unwrap();
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "s3::with_credentials", "--ignored", "--nocapture"])
        .env(ENDPOINT, format!("http://{}", server.address))
        .envs([
            ("AWS_ACCESS_KEY_ID", "key"),
            ("AWS_SECRET_ACCESS_KEY", "secret"),
            ("AWS_REGION", "eu-west-1"),
        ])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && text.contains("1 passed"),
        "{text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

#[tokio::test]
#[ignore = "the test before it runs it, with a server and credentials"]
async fn with_credentials() {
    let endpoint = std::env::var(ENDPOINT).unwrap();
    let open =
        |place: &str| Archive::open(&place.parse::<ArchiveLocation>().unwrap(), Some(&endpoint)).unwrap();
    let archive = open("s3://bucket/teams/ours");
    assert_eq!(archive.list(None).await.unwrap(), []);
    for round in [20, 40, 60] {
        write(&archive, round).await;
    }
    let of = |round| Archived { part: PART, next_round: Round(round) };
    assert_eq!(archive.list(None).await.unwrap(), [of(60), of(40)]);
    assert_eq!(
        archive.name_of(of(60)),
        format!("s3://bucket/teams/ours/{}/part-1-of-1/round-000060.json", PART.run)
    );

    // A writer that dies before the end.
    let mut doomed = archive.upload(PART, 1 << 16);
    doomed.values(&values(80)).await.unwrap();
    drop(doomed);
    assert_eq!(archive.list(Some(PART.run)).await.unwrap(), [of(60), of(40)]);

    for round in [40, 60] {
        let verified = archive.verify(of(round)).await.unwrap();
        assert_eq!((verified.bytes, verified.damaged.len()), (4 * VALUES as u64, 0));
        let manifest = archive.manifest(of(round)).await.unwrap();
        let bytes = archive.read(PART, &manifest.parameters, 4 * VALUES as u64).await.unwrap();
        let read = bytes.as_chunks().0.iter().map(|word| f32::from_le_bytes(*word));
        assert!(read.eq(values(round)));
    }
    let error = open("s3://nobodys/place").list(None).await.unwrap_err().to_string();
    assert!(
        error.starts_with("list s3://nobodys/place: ") && error.contains("is the bucket there"),
        "{error}"
    );
}

fn values(round: u64) -> Vec<f32> {
    // The first half never changes.
    (0..VALUES).map(|at| if at < VALUES / 2 { at as f32 } else { (at as u64 * round) as f32 }).collect()
}

async fn write(archive: &Archive, round: u64) {
    let mut upload = archive.upload(PART, 1 << 16);
    let parameters = upload.values(&values(round)).await.unwrap();
    // Two whole pieces of 65536 values are in the constant half.
    let unchanged = if round == 20 { 0 } else { 2 * (4 << 16) };
    assert_eq!(upload.sent_bytes(), 4 * VALUES as u64 - unchanged);
    let manifest = Manifest {
        run: PART.run.to_string(),
        next_round: Round(round),
        next_step: round,
        generation: Generation(1),
        state_hash: "00".repeat(32),
        software: "0".to_owned(),
        rank: 0,
        parts: 1,
        chunks: None,
        share: None,
        model: "{}".to_owned(),
        tokenizer: None,
        companions: Default::default(),
        parameters,
        shared: Default::default(),
        private: None,
    };
    upload.finish(&manifest).await.unwrap();
    archive.prune(PART, Retention::from(2), Round(round)).await.unwrap();
}
