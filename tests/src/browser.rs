//! A headless Chromium, driven over its debugging pipe with JSON messages terminated by zero bytes.
#![allow(
    clippy::missing_panics_doc,
    reason = "it is for tests, which fail by panicking wherever the browser does not do as it is told"
)]

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::tools::skipped;

/// Names in distributions.
const NAMES: [&str; 3] = ["chromium", "chromium-browser", "google-chrome"];
/// Roles that screen readers use or announce, which must have names.
const NAMED: [&str; 17] = [
    "button",
    "link",
    "textbox",
    "searchbox",
    "combobox",
    "slider",
    "checkbox",
    "radio",
    "spinbutton",
    "option",
    "DisclosureTriangle",
    "img",
    "image",
    "progressbar",
    "table",
    "region",
    "dialog",
];
/// Collects the charts of pages opened from then on in `window.charts`.
const CHARTS: &str = "window.charts = []; let made; Object.defineProperty(window, 'uPlot', { configurable: true, get: () => made,
    set: (kind) => { made = new Proxy(kind, { construct(type, given) { const chart = new type(...given); window.charts.push(chart); return chart; } }); } });";

/// A browser with one page; it ends on drop.
#[derive(Debug)]
pub struct Browser {
    child: Child,
    to: File,
    from: BufReader<File>,
    session: Option<String>,
    calls: u64,
    /// The last opened page is fully loaded.
    is_loaded: bool,
    /// Network requests, by the browser's ids.
    asked: BTreeMap<String, String>,
    /// Console messages and errors of the page.
    pub complaints: Vec<String>,
    /// Failed or refused requests: status, or the error, and address.
    pub failed: Vec<String>,
    _folder: tempfile::TempDir,
}

impl Browser {
    /// Starts one with an empty page; `None`, with a notice, without Chromium.
    #[must_use]
    pub fn start() -> Option<Self> {
        let is_there =
            |name: &&&str| Command::new(name).arg("--version").output().is_ok_and(|out| out.status.success());
        let Some(name) = NAMES.iter().find(is_there) else {
            skipped("there is no Chromium here (Debian: apt-get install chromium)");
            return None;
        };
        let folder = tempfile::tempdir().expect("make a folder for the browser");
        let (to, from) = (folder.path().join("to"), folder.path().join("from"));
        let made = Command::new("mkfifo").args([&to, &from]).status().expect("start mkfifo");
        assert!(made.success(), "mkfifo: {made}");
        // It reads from file 3 and writes to file 4, which a shell can open for it.
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
            .expect("start a shell");
        let to = OpenOptions::new().write(true).open(to).expect("open the way to the browser");
        let from = BufReader::new(File::open(from).expect("open the way from the browser"));
        let mut browser = Self {
            child,
            to,
            from,
            session: None,
            calls: 0,
            is_loaded: false,
            asked: BTreeMap::new(),
            complaints: Vec::new(),
            failed: Vec::new(),
            _folder: folder,
        };
        browser.attach();
        Some(browser)
    }

    fn attach(&mut self) {
        let target = self.call("Target.createTarget", json!({ "url": "about:blank" }))["targetId"].clone();
        let attached = self.call("Target.attachToTarget", json!({ "targetId": target, "flatten": true }));
        self.session = attached["sessionId"].as_str().map(str::to_owned);
        for domain in ["Page.enable", "Runtime.enable", "Log.enable", "Network.enable"] {
            self.call(domain, json!({}));
        }
        self.call("Page.addScriptToEvaluateOnNewDocument", json!({ "source": CHARTS }));
    }

    /// Calls a method of the protocol, <https://chromedevtools.github.io/devtools-protocol/>; returns its
    /// result.
    pub fn call(&mut self, method: &str, params: Value) -> Value {
        self.calls += 1;
        let mut message = json!({ "id": self.calls, "method": method, "params": params });
        if let Some(session) = &self.session {
            message["sessionId"] = session.as_str().into();
        }
        self.to.write_all(format!("{message}\0").as_bytes()).expect("the browser listens");
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
        let read = self.from.read_until(0, &mut bytes).expect("the browser talks");
        assert!(read > 0, "the browser has ended");
        bytes.pop();
        serde_json::from_slice(&bytes).expect("the browser talks JSON")
    }

    fn note(&mut self, event: &Value) {
        let params = &event["params"];
        let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        match event["method"].as_str() {
            Some("Page.loadEventFired") => self.is_loaded = true,
            Some("Runtime.exceptionThrown" | "Runtime.consoleAPICalled") => {
                self.complaints.push(params.to_string());
            }
            // Refusals of the API are in the log too, and among the failed requests.
            Some("Log.entryAdded") if params["entry"]["source"] != "network" => {
                self.complaints.push(params.to_string());
            }
            Some("Network.requestWillBeSent") => {
                self.asked.insert(word(&params["requestId"]), word(&params["request"]["url"]));
            }
            Some("Network.responseReceived") if params["response"]["status"].as_u64() >= Some(400) => {
                let Value::Object(response) = &params["response"] else { return };
                self.failed.push(format!("{} {}", response["status"], word(&response["url"])));
            }
            // The page cancels requests that it no longer needs.
            Some("Network.loadingFailed") if params["canceled"] != true => {
                let url = self.asked.get(&word(&params["requestId"])).cloned().unwrap_or_default();
                self.failed.push(format!("{} {url}", word(&params["errorText"])));
            }
            _ => {}
        }
    }

    /// Opens a page and waits until it is loaded: earlier queries would go to the previous one.
    pub fn open(&mut self, url: &str) {
        self.is_loaded = false;
        let answer = self.call("Page.navigate", json!({ "url": url }));
        assert!(answer["errorText"].is_null(), "{url}: {answer}");
        while !self.is_loaded {
            let heard = self.hear();
            self.note(&heard);
        }
    }

    /// Returns the value of an expression, which may be a promise.
    pub fn value(&mut self, expression: &str) -> Value {
        let asked = json!({ "expression": expression, "awaitPromise": true, "returnByValue": true });
        let answer = self.call("Runtime.evaluate", asked);
        assert!(answer["exceptionDetails"].is_null(), "{expression}: {answer}");
        answer["result"]["value"].clone()
    }

    /// Returns the value of a numeric expression.
    pub fn number(&mut self, expression: &str) -> f64 {
        let value = self.value(expression);
        value.as_f64().unwrap_or_else(|| panic!("{expression} is {value}, and no number"))
    }

    /// Polls the page until the expression holds, for at most this many milliseconds; returns the time taken
    /// if it did.
    pub fn until(&mut self, expression: &str, at_most_ms: u64) -> Option<u64> {
        let watch = format!(
            "new Promise((done) => {{ const began = performance.now(); const look = () => {{ const ms = performance.now() - began;
             if ({expression}) done(ms); else if (ms > {at_most_ms}) done(-1); else setTimeout(look, 30); }}; look(); }})"
        );
        // A page being loaded drops its promises.
        let ms = self.value(&watch).as_f64()?;
        (ms >= 0.0).then_some(ms as u64)
    }

    /// The same, but the expression must hold.
    pub fn wait(&mut self, expression: &str, at_most_ms: u64) -> u64 {
        self.until(expression, at_most_ms).unwrap_or_else(|| {
            let page = self.value("document.body.innerText");
            panic!(
                "after {at_most_ms} ms {expression} does not hold yet; {:?}; the page is {page}",
                self.complaints
            )
        })
    }

    /// Sets the size of the page's window, in pixels; a narrow one emulates a phone.
    pub fn resize(&mut self, width: u32, height: u32) {
        let metrics =
            json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600 });
        self.call("Emulation.setDeviceMetricsOverride", metrics);
    }

    /// Emulates a preference for `light` or `dark` colours.
    pub fn prefer(&mut self, scheme: &str) {
        let feature = json!([{ "name": "prefers-color-scheme", "value": scheme }]);
        self.call("Emulation.setEmulatedMedia", json!({ "features": feature }));
    }

    /// Clicks into the middle of the first element that matches the selector; an element on top receives the
    /// click instead.
    pub fn click(&mut self, selector: &str) {
        let (x, y) = self.place_in(selector, 0.5);
        for kind in ["mousePressed", "mouseReleased"] {
            self.mouse(kind, x, y);
        }
    }

    /// Drags the mouse over an element, between two shares of its width.
    pub fn drag(&mut self, selector: &str, from: f64, to: f64) {
        let ((begin, y), (end, _)) = (self.place_in(selector, from), self.place_in(selector, to));
        self.mouse("mouseMoved", begin, y);
        self.mouse("mousePressed", begin, y);
        self.mouse("mouseMoved", f64::midpoint(begin, end), y);
        self.mouse("mouseMoved", end, y);
        self.mouse("mouseReleased", end, y);
    }

    fn mouse(&mut self, kind: &str, x: f64, y: f64) {
        let mut event = json!({ "type": kind, "x": x, "y": y, "button": "left", "clickCount": 1 });
        if kind == "mouseMoved" {
            event["buttons"] = 1.into();
        }
        self.call("Input.dispatchMouseEvent", event);
    }

    /// Returns the window coordinates at a share of an element's width, at half of its height.
    fn place_in(&mut self, selector: &str, share: f64) -> (f64, f64) {
        let place = self.value(&format!(
            "(() => {{ const node = document.querySelector({selector:?}); if (!node) return null; node.scrollIntoView({{ block: 'center', inline: 'center' }});
             const box = node.getBoundingClientRect(); return [box.left + {share} * box.width, box.top + box.height / 2]; }})()"
        ));
        match (place[0].as_f64(), place[1].as_f64()) {
            (Some(x), Some(y)) => (x, y),
            _ => panic!("there is no {selector} in the page"),
        }
    }

    /// Saves a screenshot of the whole page.
    pub fn screenshot(&mut self, width: u32, file: &Path) {
        let height = self.value("document.documentElement.scrollHeight");
        let clip = json!({ "x": 0, "y": 0, "width": width, "height": height, "scale": 1 });
        let taken =
            self.call("Page.captureScreenshot", json!({ "captureBeyondViewport": true, "clip": clip }));
        let picture = STANDARD.decode(taken["data"].as_str().unwrap_or_default());
        std::fs::write(file, picture.expect("a picture is base64")).expect("write the picture");
    }

    /// Returns interactive elements, and graphs, without an accessible name.
    pub fn nameless(&mut self) -> Vec<String> {
        let tree = self.call("Accessibility.getFullAXTree", json!({}));
        let has_no_name = |node: &&Value| {
            let role = node["role"]["value"].as_str().unwrap_or_default();
            let name = node["name"]["value"].as_str().unwrap_or_default();
            node["ignored"] == false && NAMED.contains(&role) && name.trim().is_empty()
        };
        let nodes = tree["nodes"].as_array().map(Vec::as_slice).unwrap_or_default();
        let mut nameless: Vec<String> = nodes.iter().filter(has_no_name).map(Value::to_string).collect();
        // A graph is a group to screen readers.
        let graphs = self.value(
            "[...document.querySelectorAll('canvas, svg')].map((graph) => graph.closest('[role]')).filter((named) => !named?.getAttribute('aria-label'))
             .map((named) => named?.outerHTML.slice(0, 200) ?? 'a graph in nothing that has a role')",
        );
        let graphs = graphs.as_array().map(Vec::as_slice).unwrap_or_default();
        nameless.extend(graphs.iter().map(Value::to_string));
        nameless
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
