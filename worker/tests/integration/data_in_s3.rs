//! Sources on an S3 server, if one is available ([`longhaul_tests::s3`]).

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use longhaul_run_toml::RunToml;
use longhaul_tests::s3::S3Server;
use longhaul_tests::tools::skipped;
use object_store::ObjectStoreExt as _;
use object_store::aws::AmazonS3Builder;
use object_store::path::Path as ObjectPath;

const BUCKET: &str = "bucket";

async fn put(server: &S3Server, key: &str, bytes: Vec<u8>) {
    // A provider may already be installed.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let store = AmazonS3Builder::new()
        .with_bucket_name(BUCKET)
        .with_access_key_id("key")
        .with_secret_access_key("secret")
        .with_region("eu-west-1")
        .with_endpoint(format!("http://{}", server.address))
        .with_allow_http(true)
        .build()
        .unwrap();
    store.put(&ObjectPath::from(key), bytes.into()).await.unwrap();
}

/// Runs `worker data prepare` on a URL with credentials.
fn prepare_in(server: &S3Server, folder: &Path, url: &str) -> Output {
    let mut source = BTreeMap::from([("url", url.to_owned())]);
    source.insert("endpoint", format!("http://{}", server.address));
    // Only tables have columns.
    if !url.ends_with('*') {
        source.insert("column", "body".to_owned());
    }
    let run_toml = RunToml::new("data").batch(1).without("data.path").set("data.sources", [source]);
    run_toml.write(folder.join("run.toml")).unwrap();
    Command::new(env!("CARGO_BIN_EXE_worker-torch"))
        .args(["data", "prepare", "--config", "run.toml", "--cache-dir", "cache"])
        .current_dir(folder)
        .env("AWS_ACCESS_KEY_ID", "key-in-the-environment")
        .env("AWS_SECRET_ACCESS_KEY", "secret-in-the-environment")
        .env("AWS_REGION", "eu-west-1")
        .env("LONGHAUL_LOG", "trace")
        .output()
        .unwrap()
}

fn fixture(name: &str) -> Vec<u8> {
    fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("data/tests/fixtures/data").join(name)).unwrap()
}

fn told(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[tokio::test]
async fn files_in_object_storage_are_found_by_a_pattern_and_noticed_when_they_change() {
    let Some(server) = S3Server::start().unwrap() else {
        skipped("python has no moto with its server (pip install 'moto[server]')");
        return;
    };
    server.make_bucket(BUCKET).unwrap();
    for (place, name) in
        [("a.parquet", "snappy.parquet"), ("b.parquet", "zstd.parquet"), ("c.csv", "records.csv")]
    {
        put(&server, &format!("texts/{place}"), fixture(name)).await;
    }
    put(&server, "texts/deeper/d.parquet", fixture("gzip.parquet")).await;
    let folder = tempfile::tempdir().unwrap();
    let prepare = |pattern: &str| prepare_in(&server, folder.path(), &format!("s3://bucket/{pattern}"));

    let first = prepare("texts/*.parquet");
    let words = told(&first);
    assert!(first.status.success() && words.contains(" in 2 files, "), "{words}");
    assert!(
        words.contains("1 shard was made, 1 was there") || words.contains("2 shards were made"),
        "{words}"
    );
    assert!(!words.contains("secret-in-the-environment"), "credentials are told");
    let left = fs::read_dir(folder.path().join("cache/data/fetched")).unwrap().count();
    assert_eq!(left, 0);

    let again = told(&prepare("texts/*.parquet"));
    assert!(again.contains("all of it was prepared before"), "{again}");
    put(&server, "texts/b.parquet", fixture("lz4.parquet")).await;
    let changed = told(&prepare("texts/*.parquet"));
    assert!(changed.contains("1 was there"), "{changed}");

    let one = prepare("texts/c.csv");
    assert!(one.status.success() && told(&one).contains("s3://bucket/texts/c.csv: "), "{}", told(&one));
    for (pattern, words) in [
        ("texts/*.arrow", "s3://bucket/texts/*.arrow: there is no such file (the pattern matches none)"),
        (
            "texts/*",
            "it matches files of several kinds: 2 files of \"parquet\" (s3://bucket/texts/a.parquet and",
        ),
        ("texts/gone.csv", "s3://bucket/texts/gone.csv: there is no such file"),
    ] {
        let refused = prepare(pattern);
        assert!(!refused.status.success() && told(&refused).contains(words), "{}", told(&refused));
    }
}
