//! An S3 server: moto's, if Python has it (`pip install 'moto[server]'`). `LONGHAUL_PYTHON` names the
//! interpreter, by default `python3`.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};

/// The server. Dropping it ends it.
#[derive(Debug)]
pub struct S3Server {
    process: Child,
    /// HOST:PORT, without TLS.
    pub address: String,
}

impl S3Server {
    /// Starts the server; `None`: moto is missing.
    ///
    /// # Errors
    /// It does not start.
    pub fn start() -> Result<Option<Self>> {
        let python = std::env::var_os("LONGHAUL_PYTHON").unwrap_or_else(|| "python3".into());
        let has_moto = Command::new(&python)
            .args(["-c", "import moto.server, flask"])
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|status| status.success());
        if !has_moto {
            return Ok(None);
        }
        let process = Command::new(&python)
            .args(["-u", "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"])
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .context("start moto")?;
        let mut server = Self { process, address: String::new() };
        let log = server.process.stderr.take().context("moto has no log")?;
        let mut lines = BufReader::new(log).lines();
        let running = lines.find_map(|line| {
            let line = line.ok()?;
            Some(line.split_once("http://")?.1.split_whitespace().next()?.to_owned())
        });
        server.address = running.context("moto ended before it was there")?;
        // Its log must be drained, or it blocks.
        std::thread::spawn(move || lines.for_each(drop));
        Ok(Some(server))
    }

    /// Creates a bucket.
    ///
    /// # Errors
    /// The server does not respond, or reports a failure.
    pub fn make_bucket(&self, name: &str) -> Result<()> {
        let mut stream = TcpStream::connect(&self.address).context("connect to moto")?;
        write!(
            stream,
            "PUT /{name} HTTP/1.1\r\nHost: {}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
            self.address
        )?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        ensure!(answer.starts_with("HTTP/1.1 200"), "moto answers {answer}");
        Ok(())
    }
}

impl Drop for S3Server {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
