//! An operator's commands and the calls behind them, without workers.

use std::io::{BufRead as _, BufReader, ErrorKind};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};

use longhaul_tests::terminal::{Screen, Terminal};

use crate::running::{Site, coordinator, read};

/// The status code and the body of a call with a token.
fn call(site: &Site, method: &str, path: &str, token: Option<&str>) -> (u16, String) {
    let agent: ureq::Agent = ureq::Agent::config_builder().http_status_as_error(false).build().into();
    let url = format!("http://{}{path}", site.http_address());
    let shown = token.map(|token| format!("Bearer {token}"));
    let answer = match method {
        "GET" => match shown {
            Some(shown) => agent.get(url).header("Authorization", shown).call(),
            None => agent.get(url).call(),
        },
        _ => match shown {
            Some(shown) => agent.post(url).header("Authorization", shown).send_empty(),
            None => agent.post(url).send_empty(),
        },
    };
    let mut answer = answer.unwrap();
    (answer.status().as_u16(), answer.body_mut().read_to_string().unwrap())
}

#[test]
fn a_pause_is_durable_and_what_is_asked_is_among_the_events() {
    let site = Site::new();
    let running = site.start(&[]);
    assert_eq!(site.told(&["members", "--json"]).trim(), "[]");
    site.told(&["pause"]);
    assert_eq!(site.status()["paused"], true);
    let events = site.told(&["events", "--json"]);
    let last: serde_json::Value = serde_json::from_str(events.lines().last().unwrap()).unwrap();
    assert!(last["text"].as_str().unwrap().starts_with("paused"), "{events}");
    running.kill();
    let running = site.start(&[]);
    assert_eq!(site.status()["paused"], true);
    assert!(site.status()["problems"][0].as_str().unwrap().contains("coordinator resume"));
    site.told(&["resume", "--json"]);
    assert_eq!(site.status()["paused"], false);
    let events = site.told(&["events"]);
    assert!(events.lines().last().unwrap().ends_with("resumed: training goes on"), "{events}");
    // Numbers go on over a restart, so that who follows misses nothing and sees nothing twice.
    let after = last["number"].as_u64().unwrap();
    let (code, answer) = call(&site, "GET", &format!("/api/v1/events?after={after}&wait_s=20"), None);
    assert!(code == 200 && answer.contains("resumed"), "{answer}");
    site.told(&["stop", "--wait"]);
    running.end();
}

#[test]
fn events_that_are_waited_for_come_when_they_happen() {
    let site = Site::new();
    let _running = site.start(&[]);
    site.told(&["pause"]);
    let (_, before) = call(&site, "GET", "/api/v1/events", None);
    let next = serde_json::from_str::<serde_json::Value>(&before).unwrap()["next"].as_u64().unwrap();
    let path = format!("/api/v1/events?after={next}&wait_s=25");
    let answer = std::thread::scope(|threads| {
        let waiting = threads.spawn(|| call(&site, "GET", &path, None));
        site.told(&["resume"]);
        waiting.join().unwrap()
    });
    assert!(answer.0 == 200 && answer.1.contains("resumed"), "{answer:?}");
    let (code, said) = call(&site, "GET", "/api/v1/events?before=3", None);
    assert!(code == 400 && said.contains("after=NUMBER"), "{said}");
}

/// The coordinator ends a moment after the run: who follows must have heard of both by then.
#[test]
fn who_follows_the_events_sees_the_last_of_them_and_ends_with_the_run() {
    let site = Site::new();
    let running = site.start(&[]);
    site.told(&["pause"]);
    let mut follower = coordinator();
    follower.args(["events", "--follow", "--state-dir"]).arg(site.state_dir());
    let mut follower = follower.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(follower.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert!(lines.next().unwrap().contains("paused"));
    site.told(&["stop", "--wait"]);
    let rest: Vec<String> = lines.collect();
    assert!(rest.iter().any(|line| line.contains("asked to stop")), "{rest:?}");
    let ended = follower.wait_with_output().unwrap();
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    running.end();
    // Who comes later is told the same.
    let output = site.ask(&["events", "--follow"]);
    let (told, said) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && said.starts_with("the run is over: finished at round "), "{said}");
    assert!(rest.iter().all(|line| told.contains(line)), "{rest:?} are not all in\n{told}");
}

/// `coordinator status --watch --every` so many seconds, with more arguments, and its lines.
fn watch(site: &Site, every: &str, more: &[&str]) -> (Child, impl Iterator<Item = String> + use<>) {
    let mut watching = coordinator();
    watching.args(["status", "--watch", "--every", every, "--state-dir"]).arg(site.state_dir()).args(more);
    let mut watching = watching.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(watching.stdout.take().unwrap()).lines().map(Result::unwrap);
    (watching, lines)
}

/// It ends by itself, with nothing to complain of.
fn ends_well(watching: Child) {
    let ended = watching.wait_with_output().unwrap();
    assert_eq!((ended.status.code(), String::from_utf8_lossy(&ended.stderr).as_ref()), (Some(0), ""));
}

#[test]
fn a_watched_status_comes_again_over_a_restart_until_the_run_is_finished() {
    let site = Site::new();
    let running = site.start(&[]);
    let (watching, lines) = watch(&site, "1", &["--json"]);
    let mut told = lines.map(|line| serde_json::from_str::<serde_json::Value>(&line).unwrap());
    assert_eq!(told.next().unwrap()["paused"], false);
    site.told(&["pause"]);
    assert!(told.by_ref().any(|status| status["paused"] == true));
    running.kill();
    // On another port.
    let running = site.start(&[]);
    site.told(&["resume"]);
    assert!(told.by_ref().any(|status| status["paused"] == false));
    site.told(&["stop", "--wait"]);
    assert_eq!(told.last().unwrap()["phase"], "finished");
    ends_well(watching);
    running.end();
}

#[test]
fn a_watched_status_is_a_page_each_time_where_there_is_no_terminal() {
    let site = Site::new();
    let running = site.start(&[]);
    let (watching, mut lines) = watch(&site, "1", &[]);
    let head = |line: &String| line.starts_with("run        tested (");
    assert!(head(&lines.next().unwrap()));
    assert!(lines.any(|line| head(&line)), "it comes again");
    // Waited for to the end, however seldom it is shown.
    let (seldom, seldom_lines) = watch(&site, "3600", &[]);
    site.told(&["stop", "--wait"]);
    for (watching, lines) in [(watching, lines.collect::<Vec<_>>()), (seldom, seldom_lines.collect())] {
        let last = lines.iter().rev().find(|line| head(line)).unwrap();
        assert!(last.ends_with(", finished"), "{lines:#?}");
        assert!(!lines.iter().any(|line| line.contains('\x1b')));
        ends_well(watching);
    }
    running.end();
}

#[cfg(unix)]
#[test]
fn an_interrupted_watch_ends_without_a_word() {
    let site = Site::new();
    let _running = site.start(&[]);
    let (watching, mut lines) = watch(&site, "3600", &[]);
    lines.next().unwrap();
    let sent = Command::new("kill").args(["-INT", &watching.id().to_string()]).status().unwrap();
    assert!(sent.success());
    ends_well(watching);
}

#[test]
fn who_reads_no_more_ends_a_watch() {
    let site = Site::new();
    let _running = site.start(&[]);
    let (watching, lines) = watch(&site, "1", &[]);
    drop(lines);
    ends_well(watching);
}

#[test]
fn how_often_is_for_a_watch_alone() {
    let site = Site::new();
    for wrong in [&["status", "--every", "2"][..], &["status", "--watch", "--every", "0"]] {
        let output = site.ask(wrong);
        assert_eq!(output.status.code(), Some(2), "{}", String::from_utf8_lossy(&output.stderr));
    }
}

#[cfg(target_os = "linux")]
#[test]
fn on_a_terminal_a_watched_status_stays_in_its_place_and_within_its_height() {
    let site = Site::new();
    let running = site.start(&[]);
    let mut watching = coordinator();
    watching.args(["status", "--watch", "--every", "1", "--state-dir"]).arg(site.state_dir());
    let Some(mut terminal) = Terminal::start(&watching) else { return };
    let shown = terminal.until(" more lines");
    assert!(shown.contains("\x1b[H") && shown.contains("run        tested ("), "{shown:?}");
    site.told(&["stop", "--wait"]);
    let (code, rest) = terminal.end();
    let all = shown + &rest;
    assert_eq!(code, Some(0), "{all}");
    let mut frames = all.split("\x1b[H").skip(1).peekable();
    let mut screen = Screen::new(Terminal::ROWS, Terminal::COLUMNS);
    while let Some(frame) = frames.next() {
        screen.write("\x1b[H");
        screen.write(frame);
        let lines = screen.lines();
        assert!(lines[0].starts_with("run        tested ("), "{lines:#?}");
        if frames.peek().is_some() {
            assert_eq!((screen.scrolled(), lines.len()), (0, usize::from(Terminal::ROWS) - 1), "{lines:#?}");
            assert!(lines.last().unwrap().ends_with(" more lines"), "{lines:#?}");
        }
    }
    let last = screen.lines();
    assert!(last[0].ends_with(", finished") && last.last().unwrap().contains("DEVICE"), "whole: {last:#?}");
    running.end();
}

#[test]
fn one_token_reads_and_another_writes() {
    let site = Site::new();
    let running = site.start(&["--http", "0.0.0.0:0"]);
    let token = |file: &str| read(&site.state_dir().join(file)).trim().to_owned();
    let (write, look) = (token("api-token"), token("api-read-token"));
    assert!(write.len() == 64 && look.len() == 64 && write != look);
    for path in ["/api/v1/status", "/api/v1/members", "/api/v1/events", "/metrics"] {
        assert_eq!(call(&site, "GET", path, None).0, 401, "{path}");
        assert_eq!(call(&site, "GET", path, Some("wrong")).0, 401, "{path}");
        assert_eq!(call(&site, "GET", path, Some(&look)).0, 200, "{path}");
        assert_eq!(call(&site, "GET", path, Some(&write)).0, 200, "{path}");
    }
    for path in ["/api/v1/pause", "/api/v1/resume", "/api/v1/workers/w0/drain", "/api/v1/workers/w0/kick"] {
        assert_eq!(call(&site, "POST", path, None).0, 401, "{path}");
        let (code, said) = call(&site, "POST", path, Some(&look));
        assert!(code == 403 && said.contains("api-token"), "{path}: {said}");
        assert!(matches!(call(&site, "POST", path, Some(&write)).0, 200 | 404), "{path}");
    }
    // Nothing of them is said or recorded.
    site.told(&["stop", "--wait"]);
    let (_, said) = running.end();
    assert!(!said.contains(&write) && !said.contains(&look));
    for record in std::fs::read_dir(site.state_dir().join("decisions")).unwrap() {
        let bytes = std::fs::read(record.unwrap().path()).unwrap();
        for secret in [&write, &look] {
            assert!(!bytes.windows(secret.len()).any(|part| part == secret.as_bytes()));
        }
    }
}

#[test]
fn a_record_is_replayed_and_something_else_is_refused_by_name() {
    let site = Site::new();
    let running = site.start(&[]);
    site.told(&["pause"]);
    site.told(&["resume"]);
    site.told(&["stop", "--wait"]);
    running.end();
    let record =
        std::fs::read_dir(site.state_dir().join("decisions")).unwrap().next().unwrap().unwrap().path();
    let replay = |args: &[&str]| coordinator().arg("replay").args(args).output().unwrap();
    let output = replay(&[record.to_str().unwrap()]);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success()
            && said.contains("asked to pause")
            && said.contains("all decisions match the record"),
        "{said}"
    );
    let config = site.folder.path().join("run.toml");
    let output = replay(&[config.to_str().unwrap()]);
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("is not a record of decisions"));
}

/// What it is asked with is the run's write token.
#[test]
fn no_command_goes_by_a_proxy() {
    let site = Site::new();
    let _running = site.start(&[]);
    let proxy = TcpListener::bind("127.0.0.1:0").unwrap();
    proxy.set_nonblocking(true).unwrap();
    let url = format!("http://{}", proxy.local_addr().unwrap());
    for command in ["pause", "status", "resume", "members", "events"] {
        let mut asked = coordinator();
        for name in ["http_proxy", "https_proxy", "all_proxy"] {
            asked.env(name, &url).env(name.to_uppercase(), &url);
        }
        asked.env_remove("no_proxy").env_remove("NO_PROXY");
        let output = asked.arg(command).arg("--state-dir").arg(site.state_dir()).output().unwrap();
        assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(proxy.accept().unwrap_err().kind(), ErrorKind::WouldBlock, "{command}");
    }
}

/// As with `coordinator up … 2>&1 | head -1`.
#[test]
fn a_coordinator_outlives_the_reader_of_its_log() {
    let site = Site::new();
    let mut child = site.up(&[]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stderr.take());
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    for _ in 0..3 {
        site.told(&["pause"]);
        site.told(&["resume"]);
    }
    assert_eq!(site.status()["paused"], false);
    assert_eq!(child.try_wait().unwrap(), None, "it writes to nobody, and goes on");
    site.told(&["stop"]);
    ends_well(child);
}
