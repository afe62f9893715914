//! A headless Chromium, driven over its debugging pipe: JSON messages, each with a zero byte behind it.
#![allow(dead_code, reason = "each test file uses its part of this")]

use std::fs::{File, OpenOptions};
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

/// Names under which distributions have it.
const NAMES: [&str; 3] = ["chromium", "chromium-browser", "google-chrome"];

pub struct Browser {
    child: Child,
    to: File,
    from: BufReader<File>,
    session: Option<String>,
    calls: u64,
    /// The page that was opened last is there, with all that it consists of.
    is_loaded: bool,
    /// What the page said on its console, and what went wrong in it.
    pub complaints: Vec<String>,
    _folder: tempfile::TempDir,
}

impl Browser {
    /// Starts one with an empty page; none where there is no Chromium.
    pub fn start() -> Option<Self> {
        let is_there =
            |name: &&&str| Command::new(name).arg("--version").output().is_ok_and(|out| out.status.success());
        let name = NAMES.iter().find(is_there)?;
        let folder = tempfile::tempdir().unwrap();
        let (to, from) = (folder.path().join("to"), folder.path().join("from"));
        assert!(Command::new("mkfifo").args([&to, &from]).status().unwrap().success());
        // It reads from its file 3 and writes to its file 4, which a shell can open for it.
        let script = r#"exec "$0" "$@" 3<"$TO" 4>"$FROM""#;
        let arguments = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            "--remote-debugging-pipe",
        ];
        let child = Command::new("sh")
            .args(["-c", script, name])
            .args(arguments)
            .arg(format!("--user-data-dir={}", folder.path().join("profile").display()))
            .env("TO", &to)
            .env("FROM", &from)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let to = OpenOptions::new().write(true).open(to).unwrap();
        let from = BufReader::new(File::open(from).unwrap());
        let (session, complaints) = (None, Vec::new());
        let mut browser =
            Self { child, to, from, session, calls: 0, is_loaded: false, complaints, _folder: folder };
        let target = browser.call("Target.createTarget", json!({ "url": "about:blank" }))["targetId"].clone();
        let attached = browser.call("Target.attachToTarget", json!({ "targetId": target, "flatten": true }));
        browser.session = attached["sessionId"].as_str().map(str::to_owned);
        for domain in ["Page.enable", "Runtime.enable", "Log.enable"] {
            browser.call(domain, json!({}));
        }
        Some(browser)
    }

    pub fn call(&mut self, method: &str, params: Value) -> Value {
        self.calls += 1;
        let mut message = json!({ "id": self.calls, "method": method, "params": params });
        if let Some(session) = &self.session {
            message["sessionId"] = session.as_str().into();
        }
        self.to.write_all(format!("{message}\0").as_bytes()).unwrap();
        loop {
            let mut heard = self.hear();
            if heard["id"] == self.calls {
                assert!(heard["error"].is_null(), "{method}: {heard}");
                return heard["result"].take();
            }
            self.note(&heard);
        }
    }

    fn hear(&mut self) -> Value {
        let mut bytes = Vec::new();
        assert!(self.from.read_until(0, &mut bytes).unwrap() > 0, "the browser has ended");
        bytes.pop();
        serde_json::from_slice(&bytes).unwrap()
    }

    fn note(&mut self, event: &Value) {
        let params = &event["params"];
        match event["method"].as_str() {
            Some("Page.loadEventFired") => self.is_loaded = true,
            Some("Runtime.exceptionThrown") => self.complaints.push(params.to_string()),
            Some("Runtime.consoleAPICalled") => self.complaints.push(params.to_string()),
            // What the API refuses is in the log, too, as it should be.
            Some("Log.entryAdded") if params["entry"]["source"] != "network" => {
                self.complaints.push(params.to_string())
            }
            _ => {}
        }
    }

    /// Opens a page, and waits until it is there: before that, what is asked is asked of the one before.
    pub fn open(&mut self, url: &str) {
        self.is_loaded = false;
        let answer = self.call("Page.navigate", json!({ "url": url }));
        assert!(answer["errorText"].is_null(), "{url}: {answer}");
        while !self.is_loaded {
            let heard = self.hear();
            self.note(&heard);
        }
    }

    /// The value of an expression, which may be a promise.
    pub fn value(&mut self, expression: &str) -> Value {
        let asked = json!({ "expression": expression, "awaitPromise": true, "returnByValue": true });
        let answer = self.call("Runtime.evaluate", asked);
        assert!(answer["exceptionDetails"].is_null(), "{expression}: {answer}");
        answer["result"]["value"].clone()
    }

    /// Looks at each frame that is drawn until the expression holds, for so many milliseconds at most; whether it did, and how long that took.
    pub fn until(&mut self, expression: &str, at_most_ms: u64) -> Option<u64> {
        let watch = format!(
            "new Promise((done) => {{ const began = performance.now(); const look = () => {{ const ms = performance.now() - began;
             if ({expression}) done(ms); else if (ms > {at_most_ms}) done(-1); else setTimeout(look, 30); }}; look(); }})"
        );
        // A page that is being loaded takes its promises with it.
        let ms = self.value(&watch).as_f64()?;
        (ms >= 0.0).then_some(ms as u64)
    }

    pub fn resize(&mut self, width: u32, height: u32) {
        let metrics =
            json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600 });
        self.call("Emulation.setDeviceMetricsOverride", metrics);
    }

    /// The whole page as a picture.
    pub fn screenshot(&mut self, width: u32, file: &Path) {
        let height = self.value("document.documentElement.scrollHeight");
        let clip = json!({ "x": 0, "y": 0, "width": width, "height": height, "scale": 1 });
        let taken =
            self.call("Page.captureScreenshot", json!({ "captureBeyondViewport": true, "clip": clip }));
        std::fs::write(file, STANDARD.decode(taken["data"].as_str().unwrap()).unwrap()).unwrap();
    }

    /// What readers of the screen can do something with and have no name for, by role.
    pub fn nameless(&mut self) -> Vec<String> {
        const NAMED: [&str; 13] = [
            "button",
            "link",
            "textbox",
            "searchbox",
            "combobox",
            "slider",
            "checkbox",
            "img",
            "image",
            "progressbar",
            "table",
            "region",
            "dialog",
        ];
        let tree = self.call("Accessibility.getFullAXTree", json!({}));
        let nodes = tree["nodes"].as_array().unwrap().clone();
        let has_no_name = |node: &&Value| {
            let role = node["role"]["value"].as_str().unwrap_or_default();
            let name = node["name"]["value"].as_str().unwrap_or_default();
            node["ignored"] == false && NAMED.contains(&role) && name.trim().is_empty()
        };
        nodes.iter().filter(has_no_name).map(Value::to_string).collect()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
