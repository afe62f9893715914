//! The `coordinator` binary as a person uses it: real processes, real ports.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use longhaul_tests::terminal::{Screen, Terminal};

use crate::running::{Site, coordinator, failure, read, run_toml};

#[test]
fn up_prints_the_line_to_paste_and_serves_the_status() {
    let site = Site::new();
    let running = site.start(&["--advertise", "head.example.org:4800"]);
    assert!(running.join_line.starts_with("worker join head.example.org:4800 --token lh1."));
    let status = site.status();
    assert_eq!(status["phase"], "gathering");
    assert_eq!((status["steps"].as_u64(), status["rounds"].as_u64()), (Some(6), Some(3)));
    assert!(status["problems"][0].as_str().unwrap().contains("0 of 2 workers have joined"));
    let page = site.told(&["status"]);
    assert!(page.contains("tested") && page.contains("gathering"), "{page}");
}

#[test]
fn a_token_that_is_in_a_file_is_in_no_log() {
    let site = Site::new();
    let file = site.folder.path().join("token");
    let mut up = site.up(&["--advertise", "head.example.org:4800", "--token-file", file.to_str().unwrap()]);
    let mut child = up.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut printed = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut printed).unwrap();
    assert!(printed.contains(file.to_str().unwrap()), "{printed}");
    let line = read(&file);
    assert!(line.starts_with("worker join head.example.org:4800 --token lh1."), "{line}");
    child.kill().unwrap();
    let output = child.wait_with_output().unwrap();
    for kept in [printed.as_bytes(), &output.stdout, &output.stderr] {
        assert!(!String::from_utf8_lossy(kept).contains("lh1."), "{}", String::from_utf8_lossy(kept));
    }
}

#[test]
fn a_killed_coordinator_goes_on_with_the_same_authority_and_tokens() {
    let site = Site::new();
    let advertise = ["--advertise", "head:4800"];
    let first = site.start(&advertise);
    let (line, run) = (first.join_line.clone(), site.status()["run"].clone());
    first.kill();
    let second = site.start(&advertise);
    // The token holds the authority's fingerprint.
    assert_eq!(second.join_line, line);
    assert_eq!(site.status()["run"], run);
}

#[test]
fn tokens_are_made_listed_and_revoked() {
    let site = Site::new();
    let _running = site.start(&[]);
    let line = site.told(&["token", "create", "--life", "30m", "--uses", "3"]);
    assert!(line.starts_with("worker join 127.0.0.1:") && line.contains("--token lh1."), "{line}");
    let list = site.told(&["token", "list"]);
    let row = list.lines().find(|row| row.split_whitespace().nth(1) == Some("3")).unwrap();
    assert!(row.ends_with("valid"), "{row}");
    let id = row.split_whitespace().next().unwrap();
    site.told(&["token", "revoke", id]);
    let list = site.told(&["token", "list"]);
    assert!(list.lines().any(|row| row.starts_with(id) && row.ends_with("revoked")), "{list}");
    let unknown = site.ask(&["token", "revoke", "0000000000000000"]);
    assert_eq!(unknown.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&unknown.stderr).contains("no such token"));
}

#[test]
fn stop_ends_the_run_and_the_coordinator_with_it() {
    let site = Site::new();
    let running = site.start(&[]);
    site.told(&["stop", "--wait"]);
    let (code, said) = running.end();
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("run tested is finished"), "{said}");

    // Its state directory answers from then on.
    assert_eq!(site.told(&["stop", "--wait"]).trim(), "the run is over: finished at round 0 of 3");
    let watched = site.told(&["status", "--watch", "--json"]);
    let status: serde_json::Value = serde_json::from_str(watched.trim()).unwrap();
    assert!(status["phase"] == "finished" && status["recorded_at_unix_ms"].is_u64(), "{watched}");
    let output = site.ask(&["pause"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    assert!(said.contains("the run is over (finished at round 0 of 3)"), "{said}");
}

#[test]
fn a_run_that_is_not_there_is_not_extended_and_nothing_is_made() {
    let site = Site::new();
    let refused = || {
        let (code, said) = failure(&mut site.up(&["--extend"]));
        let named = format!("no run in the state directory {}, ", site.state_dir().display());
        assert_eq!(code, 2, "{said}");
        assert!(said.contains(&named) && said.contains("another --state-dir"), "{said}");
    };
    refused();
    assert!(!site.state_dir().exists());
    std::fs::create_dir(site.state_dir()).unwrap();
    refused();
    assert_eq!(std::fs::read_dir(site.state_dir()).unwrap().count(), 0);
}

#[cfg(unix)]
#[test]
fn a_signal_stops_the_coordinator_and_not_the_run() {
    let site = Site::new();
    let running = site.start(&["--advertise", "head:4800"]);
    let line = running.join_line.clone();
    running.terminate();
    let (code, said) = running.end();
    assert_eq!(code, Some(0));
    assert!(said.contains("`coordinator stop` ends the run") && said.contains("--state-dir"), "{said}");
    assert_eq!(site.start(&["--advertise", "head:4800"]).join_line, line);
}

#[test]
fn the_effective_configuration_can_be_printed_and_used() {
    let site = Site::new();
    let printed = site.up(&["--print-config"]).output().unwrap();
    let again = Site::with_config(&String::from_utf8(printed.stdout.clone()).unwrap());
    assert_eq!(again.up(&["--print-config"]).output().unwrap().stdout, printed.stdout);
    assert!(!site.state_dir().exists(), "printing changes nothing");
}

#[test]
fn a_wrong_configuration_is_refused_with_key_and_remedy() {
    let site = Site::of(&run_toml().batch(5));
    let (code, said) = failure(&mut site.up(&[]));
    assert_eq!(code, 2);
    assert!(said.contains("train.batch = 5") && said.contains("the nearest is 6"), "{said}");
    let site = Site::of(&run_toml().without("sync.every").set("sync.evry", 2));
    let (code, said) = failure(&mut site.up(&[]));
    assert_eq!(code, 2);
    assert!(said.contains("did you mean `every`"), "{said}");
    let site = Site::of(&run_toml().batch("four"));
    let (code, said) = failure(&mut site.up(&[]));
    assert_eq!(code, 2);
    let words =
        "`batch = \"four\"`: invalid type: string \"four\": a whole number from 0 to 4294967295 is wanted";
    assert!(said.contains(words), "{said}");
    let (code, said) = failure(coordinator().args(["up", "--config", "nowhere.toml"]));
    assert_eq!(code, 2);
    assert!(said.contains("nowhere.toml"), "{said}");
}

#[test]
fn a_changed_configuration_is_refused_with_what_changed() {
    let site = Site::new();
    site.start(&[]).kill();
    run_toml().steps(8).write(site.folder.path().join("run.toml")).unwrap();
    let (code, said) = failure(&mut site.up(&[]));
    assert_eq!(code, 2);
    assert!(said.contains("run.steps was 6 and is 8") && said.contains("another --state-dir"), "{said}");
}

#[test]
fn an_etcd_that_is_not_there_is_named_without_its_password() {
    for (url, expected, says) in [
        ("etcd://root:secret@127.0.0.1:1/run", 1, "etcd://127.0.0.1:1/run cannot be reached"),
        ("etcd://root:secret@127.0.0.1:1", 2, "end the address with /PREFIX"),
        ("redis://root:secret@127.0.0.1:1/run", 2, "--state takes etcd://"),
        ("etcds://root:secret@127.0.0.1:1/run", 2, "LONGHAUL_ETCD_CA"),
    ] {
        let site = Site::new();
        let (code, said) = failure(&mut site.up(&["--state", url]));
        assert_eq!(code, expected, "{said}");
        assert!(said.contains(says) && !said.contains("secret"), "{said}");
        // A folder whose records are elsewhere may be another coordinator's as well: it stays.
        assert_eq!(site.state_dir().exists(), expected == 1, "{url}");
    }
    let site = Site::new();
    assert!(
        !site
            .up(&["--state", "etcd://secret", "--listen", "wrong"])
            .output()
            .is_ok_and(|output| { String::from_utf8_lossy(&output.stderr).contains("secret") })
    );
}

#[test]
fn what_is_in_use_is_named() {
    let site = Site::new();
    let _running = site.start(&[]);
    let (code, said) = failure(&mut site.up(&[]));
    assert_eq!(code, 1);
    assert!(said.contains("in use by another coordinator"), "{said}");

    let other = Site::new();
    let http = site.http_address();
    let (code, said) =
        failure(coordinator().args(up_args(&other)).args(["--listen", "127.0.0.1:0", "--http", &http]));
    assert_eq!(code, 1);
    assert!(said.contains("choose another with --http"), "{said}");
    assert!(!other.state_dir().exists());

    let taken = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let listen = taken.local_addr().unwrap().to_string();
    let third = Site::new();
    let (code, said) =
        failure(coordinator().args(up_args(&third)).args(["--listen", &listen, "--http", "127.0.0.1:0"]));
    assert_eq!(code, 1);
    assert!(said.contains("choose another with --listen"), "{said}");
    assert!(!third.state_dir().exists());
}

#[test]
fn a_coordinator_that_cannot_begin_leaves_no_state_directory() {
    let site = Site::new();
    // Root may write anywhere, but not into a file.
    let nowhere = site.folder.path().join("run.toml").join("inside");
    let nowhere = nowhere.to_str().unwrap();
    for more in [["--token-file", nowhere], ["--tensorboard", nowhere]] {
        let (code, said) = failure(&mut site.up(&more));
        assert_eq!(code, 1, "{said}");
        assert!(said.contains(nowhere), "{said}");
        assert!(!site.state_dir().exists(), "{more:?}");
    }
    let running = site.start(&[]);
    site.told(&["stop", "--wait"]);
    let (code, said) = running.end();
    assert!(code == Some(0) && said.contains("longhaul begins run tested"), "{said}");
}

/// What each line says, all of which are JSON objects: level and message.
fn objects(said: &str) -> Vec<(String, String)> {
    let object = |line: &str| {
        let value: serde_json::Value =
            serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        let text = |key: &str| value[key].as_str().unwrap_or_else(|| panic!("no {key}: {line}")).to_owned();
        (text("level"), text("message"))
    };
    said.lines().map(object).collect()
}

#[test]
fn with_json_every_line_of_standard_error_is_an_object() {
    let json = ["--log-format", "json"];
    for log in ["info", "off"] {
        let site = Site::new();
        let more = [&json[..], &["--http", "0.0.0.0:0"]].concat();
        let running = site.start_in(&[("LONGHAUL_LOG", log)], &more);
        assert!(running.join_line.starts_with("worker join "), "{}", running.join_line);
        site.told(&["stop", "--wait"]);
        let (code, said) = running.end();
        assert_eq!(code, Some(0), "{said}");
        let told = objects(&said);
        let expected = [
            "longhaul begins run tested",
            "on every machine that is to train:",
            "its bearer token is in",
            "run tested is finished",
        ];
        for words in expected {
            assert!(told.iter().any(|(level, text)| level == "INFO" && text.contains(words)), "{said}");
        }
        assert_eq!(told.len() == expected.len(), log == "off", "{said}");
    }
}

#[test]
fn with_json_an_error_that_ends_it_is_an_object_too() {
    let json = ["--log-format", "json"];
    let site = Site::of(&run_toml().batch(5));
    let (code, said) = failure(&mut site.up(&json));
    let told = objects(&said);
    assert!(code == 2 && told.len() == 1 && told[0].0 == "ERROR", "{said}");
    assert!(told[0].1.contains("train.batch = 5"), "{said}");
    let site = Site::new();
    let _running = site.start(&[]);
    let (code, said) = failure(&mut site.up(&json));
    let told = objects(&said);
    let (level, text) = told.last().unwrap();
    assert!(code == 1 && level == "ERROR" && text.contains("in use by another coordinator"), "{said}");
}

#[cfg(unix)]
#[test]
fn a_terminal_has_colours_unless_somebody_asks_for_none() {
    for (no_color, has) in [(None, true), (Some(""), true), (Some("1"), false)] {
        let site = Site::new();
        let mut up = site.up(&[]);
        if let Some(no_color) = no_color {
            up.env("NO_COLOR", no_color);
        }
        let Some(mut terminal) = Terminal::start(&up) else { return };
        let greeting = terminal.until("worker join ");
        site.told(&["stop", "--wait"]);
        let (code, rest) = terminal.end();
        let said = greeting + &rest;
        assert_eq!(code, Some(0), "{said}");
        let is_colour =
            |rest: &str| rest.trim_start_matches(|c: char| c.is_ascii_digit() || c == ';').starts_with('m');
        assert_eq!(said.split("\x1b[").skip(1).any(is_colour), has, "{said:?}");
    }
}

#[cfg(unix)]
#[test]
fn on_a_terminal_the_progress_is_below_all_lines_and_ctrl_c_takes_it_away() {
    let site = Site::new();
    let Some(mut terminal) = Terminal::start(&site.up(&["--advertise", "head:4800"])) else { return };
    let mut said = terminal.until("gathering [--------------------] step 0 of 6, 0 of 0 workers train");
    site.told(&["pause"]);
    said += &terminal.until("gathering, paused [--------------------] step 0 of 6");
    let lines = Screen::after(&said).lines();
    let (foot, above) = lines.split_last().unwrap();
    assert!(
        foot.starts_with("gathering, paused [") && foot.len() <= usize::from(Terminal::COLUMNS),
        "{lines:#?}"
    );
    assert!(above.iter().any(|line| line.starts_with("worker join head:4800 --token lh1.")), "{lines:#?}");
    assert!(above.iter().any(|line| line.contains("paused: ")), "logged: {lines:#?}");
    terminal.press("\x03");
    let (code, rest) = terminal.end();
    said += &rest;
    assert_eq!(code, Some(0), "{said}");
    let screen = Screen::after(&said);
    let lines = screen.lines();
    assert!(!lines.iter().any(|line| line.contains("[----") || line.contains("^C")), "{lines:#?}");
    assert!(lines.iter().any(|line| line.starts_with("the coordinator stops")), "{lines:#?}");
    assert_eq!(screen.cursor(), (lines.len(), 0), "the prompt has a line of its own: {lines:#?}");
}

fn up_args(site: &Site) -> Vec<String> {
    let path = |path: std::path::PathBuf| path.to_str().unwrap().to_owned();
    let (config, state) = (path(site.folder.path().join("run.toml")), path(site.state_dir()));
    ["up", "--config", &config, "--state-dir", &state].map(str::to_owned).to_vec()
}

#[test]
fn a_damaged_state_directory_is_named_with_a_remedy() {
    let site = Site::new();
    std::fs::create_dir(site.state_dir()).unwrap();
    std::fs::write(site.state_dir().join("coordinator.redb"), vec![7; 10_000]).unwrap();
    let (code, said) = failure(&mut site.up(&[]));
    assert_eq!(code, 1);
    assert!(said.contains("is damaged") && said.contains("backup"), "{said}");
}

#[test]
fn a_state_directory_that_cannot_be_made_is_named_with_a_remedy() {
    let site = Site::new();
    // Root may write anywhere, but not into a file.
    let state = site.folder.path().join("run.toml").join("state");
    let mut up = coordinator();
    up.args(["up", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"]);
    up.arg("--config").arg(site.folder.path().join("run.toml")).arg("--state-dir").arg(&state);
    let (code, said) = failure(&mut up);
    assert_eq!(code, 1);
    let unwritable = format!("the state directory {} cannot be written", state.display());
    assert!(said.contains(&unwritable) && said.contains("choose another with --state-dir"), "{said}");
}

#[test]
fn without_a_coordinator_the_command_line_says_what_to_do() {
    let site = Site::new();
    let output = site.ask(&["status"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("name its --state-dir"));
    site.start(&[]).kill();
    let output = site.ask(&["members"]);
    let said = String::from_utf8_lossy(&output.stderr);
    let remedy = "`coordinator up` continues an unfinished run; `coordinator view --state-dir";
    assert!(said.contains(remedy), "{said}");
}

#[test]
fn the_http_api_guards_what_changes_something() {
    let site = Site::new();
    let _running = site.start(&[]);
    let agent: ureq::Agent = ureq::Agent::config_builder().http_status_as_error(false).build().into();
    let url = |path: &str| format!("http://{}{path}", site.http_address());
    for path in ["/healthz", "/readyz", "/metrics", "/api/v1/status"] {
        assert_eq!(agent.get(url(path)).call().unwrap().status(), 200, "{path}");
    }
    let metrics = agent.get(url("/metrics")).call().unwrap().body_mut().read_to_string().unwrap();
    for line in
        ["longhaul_phase{phase=\"gathering\"} 1.0", "longhaul_steps 6.0", "longhaul_wan_bytes_total 0"]
    {
        assert!(metrics.contains(line), "{line} is not in\n{metrics}");
    }
    assert_eq!(agent.post(url("/api/v1/stop")).send_empty().unwrap().status(), 401);
    assert_eq!(agent.get(url("/api/v1/tokens")).call().unwrap().status(), 401);
    let wrong = agent.post(url("/api/v1/stop")).header("Authorization", "Bearer guess");
    assert_eq!(wrong.send_empty().unwrap().status(), 401);
    let rebound = agent.get(url("/api/v1/status")).header("Host", "evil.example.org");
    assert_eq!(rebound.call().unwrap().status(), 403);
    assert_eq!(agent.get(url("/nothing")).call().unwrap().status(), 404);

    let token = read(&site.state_dir().join("api-token"));
    let bad = agent.post(url("/api/v1/tokens")).header("Authorization", format!("Bearer {token}"));
    assert_eq!(bad.send("{\"uses\": 0}").unwrap().status(), 400);
    assert_eq!(site.status()["phase"], "gathering");
}

#[test]
fn elsewhere_than_on_loopback_reading_needs_the_token_too() {
    let site = Site::new();
    let mut up = coordinator();
    up.args(up_args(&site)).args(["--listen", "127.0.0.1:0", "--http", "0.0.0.0:0"]);
    up.stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = up.spawn().unwrap();
    let mut line = String::new();
    BufRead::read_line(&mut BufReader::new(child.stdout.take().unwrap()), &mut line).unwrap();
    let agent: ureq::Agent = ureq::Agent::config_builder().http_status_as_error(false).build().into();
    let url = |path: &str| format!("http://{}{path}", site.http_address());
    assert_eq!(agent.get(url("/healthz")).call().unwrap().status(), 200);
    assert_eq!(agent.get(url("/api/v1/status")).call().unwrap().status(), 401);
    assert_eq!(site.status()["phase"], "gathering", "the command line finds the token");
    child.kill().unwrap();
    child.wait().unwrap();
}
