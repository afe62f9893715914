//! Sources on a server that speaks S3: moto's, where python has it (`pip install 'moto[server]'`). `LONGHAUL_PYTHON` names the interpreter, else it is
//! `python3`.
#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "this is all test code, and tells what it leaves out"
)]

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use object_store::ObjectStoreExt as _;
use object_store::aws::AmazonS3Builder;
use object_store::path::Path as ObjectPath;

const BUCKET: &str = "bucket";

/// A server that ends with the test.
struct Server {
    process: Child,
    address: String,
}

impl Server {
    /// None: there is no moto.
    fn start() -> Option<Self> {
        let python = std::env::var_os("LONGHAUL_PYTHON").unwrap_or_else(|| "python3".into());
        let has_moto = Command::new(&python)
            .args(["-c", "import moto.server, flask"])
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|status| status.success());
        if !has_moto {
            return None;
        }
        let mut process = Command::new(&python)
            .args(["-u", "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"])
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(process.stderr.take().unwrap()).lines();
        let running = lines.find_map(|line| {
            let line = line.ok()?;
            Some(line.split_once("http://")?.1.split_whitespace().next()?.to_owned())
        });
        // Its log must go on somewhere, or it blocks.
        std::thread::spawn(move || lines.for_each(drop));
        Some(Self { process, address: running.unwrap() })
    }

    fn make_bucket(&self, name: &str) {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        write!(
            stream,
            "PUT /{name} HTTP/1.1\r\nHost: {}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
            self.address
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }

    async fn put(&self, key: &str, bytes: Vec<u8>) {
        // It may have been chosen before.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let store = AmazonS3Builder::new()
            .with_bucket_name(BUCKET)
            .with_access_key_id("key")
            .with_secret_access_key("secret")
            .with_region("eu-west-1")
            .with_endpoint(format!("http://{}", self.address))
            .with_allow_http(true)
            .build()
            .unwrap();
        store.put(&ObjectPath::from(key), bytes.into()).await.unwrap();
    }

    /// `worker data prepare` of what a URL names, with credentials.
    fn prepare(&self, folder: &Path, url: &str) -> Output {
        let run_toml = format!(
            "[run]\nname = \"data\"\nworkers = 1\nsteps = 1\n[model]\nkind = \"gpt2\"\nlayers = 1\nwidth = 8\nheads = 1\ncontext = 8\n\
             [data]\nsources = [{{ url = \"{url}\", endpoint = \"http://{}\", column = \"body\" }}]\nsequence_length = 8\n[train]\nbatch = 1\n",
            self.address
        );
        fs::write(folder.join("run.toml"), run_toml).unwrap();
        Command::new(env!("CARGO_BIN_EXE_worker"))
            .args(["data", "prepare", "--config", "run.toml", "--cache-dir", "cache"])
            .current_dir(folder)
            .env("AWS_ACCESS_KEY_ID", "key-in-the-environment")
            .env("AWS_SECRET_ACCESS_KEY", "secret-in-the-environment")
            .env("AWS_REGION", "eu-west-1")
            .env("LONGHAUL_LOG", "trace")
            .output()
            .unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn fixture(name: &str) -> Vec<u8> {
    fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/data").join(name)).unwrap()
}

fn told(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[tokio::test]
async fn files_in_object_storage_are_found_by_a_pattern_and_noticed_when_they_change() {
    let Some(server) = Server::start() else {
        eprintln!("left out: python has no moto with its server (pip install 'moto[server]')");
        return;
    };
    server.make_bucket(BUCKET);
    for (place, name) in
        [("a.parquet", "snappy.parquet"), ("b.parquet", "zstd.parquet"), ("c.csv", "records.csv")]
    {
        server.put(&format!("texts/{place}"), fixture(name)).await;
    }
    server.put("texts/deeper/d.parquet", fixture("gzip.parquet")).await;
    let folder = tempfile::tempdir().unwrap();
    let prepare = |pattern: &str| server.prepare(folder.path(), &format!("s3://bucket/{pattern}"));

    let first = prepare("texts/*.parquet");
    let words = told(&first);
    assert!(first.status.success() && words.contains(" in 2 files, "), "{words}");
    assert!(
        words.contains("1 shards were made, 1 were there") || words.contains("2 shards were made"),
        "{words}"
    );
    assert!(!words.contains("secret-in-the-environment"), "credentials are told");
    let left = fs::read_dir(folder.path().join("cache/data/fetched")).unwrap().count();
    assert_eq!(left, 0);

    let again = told(&prepare("texts/*.parquet"));
    assert!(again.contains("all of it was prepared before"), "{again}");
    server.put("texts/b.parquet", fixture("lz4.parquet")).await;
    let changed = told(&prepare("texts/*.parquet"));
    assert!(changed.contains("1 were there"), "{changed}");

    let one = prepare("texts/c.csv");
    assert!(one.status.success() && told(&one).contains("s3://bucket/texts/c.csv: "), "{}", told(&one));
    for (pattern, words) in [
        ("texts/*.arrow", "s3://bucket/texts/*.arrow: there is no such file (the pattern matches none)"),
        ("texts/gone.csv", "s3://bucket/texts/gone.csv: there is no such file"),
    ] {
        let refused = prepare(pattern);
        assert!(!refused.status.success() && told(&refused).contains(words), "{}", told(&refused));
    }
}
