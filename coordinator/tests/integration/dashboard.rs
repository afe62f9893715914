//! The dashboard's page, its history and its stream, as a browser asks for them.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::Stdio;

use serde_json::Value;

use crate::running::fleet::Fleet;
use crate::running::{Site, coordinator, failure, read, run_toml};

fn get(site: &Site, path: &str, token: Option<&str>) -> (u16, ureq::http::HeaderMap, String) {
    let agent: ureq::Agent = ureq::Agent::config_builder().http_status_as_error(false).build().into();
    let request = agent.get(format!("http://{}{path}", site.http_address()));
    let request = match token {
        Some(token) => request.header("Authorization", format!("Bearer {token}")),
        None => request,
    };
    let mut answer = request.call().unwrap();
    (answer.status().as_u16(), answer.headers().clone(), answer.body_mut().read_to_string().unwrap())
}

/// The status code of an answer to a path as it is: a client would tidy it up.
fn code_of(site: &Site, path: &str) -> u16 {
    let mut stream = TcpStream::connect(site.http_address()).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer.split(' ').nth(1).unwrap().parse().unwrap()
}

/// The server-sent events of a stream, as they come.
fn listen(site: &Site, after: &str) -> impl Iterator<Item = (String, Value)> + use<> {
    let url = format!("http://{}/api/v1/stream?after={after}", site.http_address());
    let answer = ureq::get(url).call().unwrap();
    assert_eq!(answer.headers()["content-type"], "text/event-stream");
    let mut lines = BufReader::new(answer.into_body().into_reader()).lines().map_while(Result::ok);
    std::iter::from_fn(move || {
        let event = lines.find_map(|line| line.strip_prefix("event: ").map(str::to_owned))?;
        let data = lines.find_map(|line| line.strip_prefix("data: ").map(str::to_owned))?;
        Some((event, serde_json::from_str(&data).unwrap()))
    })
}

fn long_run() -> Site {
    Site::of(&run_toml().steps(4000))
}

#[test]
fn the_page_is_for_everybody_and_what_it_shows_needs_a_token_elsewhere_than_on_loopback() {
    let site = Site::new();
    let _running = site.start(&["--http", "0.0.0.0:0"]);
    let (code, headers, page) = get(&site, "/", None);
    assert!(code == 200 && page.contains("<title>Longhaul</title>"), "{page}");
    let policy = headers["content-security-policy"].to_str().unwrap();
    assert!(
        policy.starts_with("default-src 'none'; script-src 'self';") && !policy.contains("unsafe"),
        "{policy}"
    );
    for named in page.split("\"assets/").skip(1).map(|rest| rest.split('"').next().unwrap()) {
        assert_eq!(get(&site, &format!("/assets/{named}"), None).0, 200, "{named}");
    }
    for path in ["/assets/../Cargo.toml", "/assets/%2e%2e/Cargo.toml", "/assets//etc/passwd"] {
        assert_eq!(code_of(&site, path), 404, "{path}");
    }
    let token = read(&site.state_dir().join("api-read-token"));
    for path in ["/api/v1/history", "/api/v1/stream", "/api/v1/history/00000000000000000000000000000000"] {
        assert_eq!(get(&site, path, None).0, 401, "{path}");
    }
    let (code, _, record) = get(&site, "/api/v1/history", Some(token.trim()));
    let record: Value = serde_json::from_str(&record).unwrap();
    assert!(code == 200 && record["live"] == true && record["status"]["phase"] == "gathering");
    assert_eq!(get(&site, "/api/v1/history/00000000000000000000000000000000", Some(token.trim())).0, 404);
    assert_eq!(get(&site, "/api/v1/history/coordinator.redb", Some(token.trim())).0, 400);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_listener_gets_all_first_and_then_what_is_new() {
    let site = long_run();
    let running = site.start(&[]);
    let _fleet = Fleet::join(&running, &["north", "south"], 2).await;
    let last = tokio::task::block_in_place(|| {
        let mut told = listen(&site, "");
        let (event, mut record) = told.next().unwrap();
        assert_eq!(event, "record");
        let mut rounds = record["rounds"].as_array().unwrap().len();
        while rounds < 8 || record["samples"].as_array().is_none_or(Vec::is_empty) {
            let (event, update) = told.next().unwrap();
            assert_eq!(event, "update");
            rounds += update["rounds"].as_array().unwrap().len();
            record = update;
        }
        record
    });
    let sample = &last["samples"][0];
    assert!(
        sample["run"][0].as_u64().unwrap() > 0 && sample["sites"].as_array().unwrap().len() == 2,
        "{sample:#}"
    );
    assert_eq!(last["status"]["members"].as_array().unwrap().len(), 2);
    // Who comes again says how far it has come, and is told the rest.
    let next = last["next"].as_str().unwrap().to_owned();
    let again = tokio::task::block_in_place(|| listen(&site, &next).next().unwrap());
    assert_eq!(again.0, "update");
    // Another process, or turn, counted its points otherwise, however alike the numbers are.
    let epoch = next.split('.').nth(1).unwrap();
    let other = next.replacen(epoch, "1", 1);
    for other in ["another.0.0.0.0.0.0.0", other.as_str()] {
        let whole = tokio::task::block_in_place(|| listen(&site, other).next().unwrap());
        assert_eq!(whole.0, "record", "{other}");
    }
}

#[test]
fn only_so_many_listen_and_who_leaves_makes_room() {
    let site = Site::new();
    let _running = site.start(&[]);
    let mut listeners: Vec<_> = (0..32).map(|_| listen(&site, "")).collect();
    assert!(listeners.iter_mut().all(|listener| listener.next().is_some()));
    assert_eq!(get(&site, "/api/v1/stream", None).0, 429);
    // Of those, one stays and tells the time: a message a second.
    let mut clock = listeners.remove(0);
    listeners.clear();
    let url = format!("http://{}/api/v1/stream", site.http_address());
    let agent: ureq::Agent = ureq::Agent::config_builder().http_status_as_error(false).build().into();
    // That somebody has left is noticed with the next message for it, at the latest.
    let has_room = (0..10).any(|_| clock.next().is_some() && agent.get(&url).call().unwrap().status() == 200);
    assert!(has_room);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_finished_run_is_shown_and_exported_from_its_state_directory() {
    let site = Site::new();
    let running = site.start(&[]);
    let _fleet = Fleet::join(&running, &["north", "<b>south"], 2).await;
    let (code, _) = tokio::task::block_in_place(|| running.end());
    assert_eq!(code, Some(0));
    tokio::task::block_in_place(|| view_and_export(&site));
}

fn view_and_export(site: &Site) {
    let page = site.folder.path().join("run.html");
    let view = |more: &[&str]| {
        let mut command = coordinator();
        command.arg("view").arg(site.state_dir()).args(more);
        command
    };
    let output = view(&["--export", page.to_str().unwrap()]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let page = read(&page);
    let record = page.split("id=\"record\">").nth(1).unwrap().split("</script>").next().unwrap();
    assert!(!record.contains('<'));
    let record: Value = serde_json::from_str(record).unwrap();
    assert_eq!((&record["live"], &record["status"]["phase"]), (&false.into(), &"finished".into()));
    assert_eq!(record["rounds"].as_array().unwrap().len(), 3);
    assert!(record["events"].as_array().unwrap().last().is_some());
    // Beside it, nothing secret.
    for secret in ["api-token", "api-read-token"] {
        assert!(!page.contains(read(&site.state_dir().join(secret)).trim()));
    }
    let mut serving =
        view(&["--http", "127.0.0.1:0"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut address = String::new();
    BufReader::new(serving.stdout.take().unwrap()).read_line(&mut address).unwrap();
    let mut shown = ureq::get(format!("{}api/v1/history", address.trim())).call().unwrap();
    let shown: Value = shown.body_mut().read_json().unwrap();
    assert_eq!(shown, record);
    serving.kill().unwrap();
    serving.wait().unwrap();
    let mut said = String::new();
    serving.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(said.contains("without a coordinator"), "{said}");

    let (code, said) = failure(&mut view(&["--http", "0.0.0.0:0"]));
    assert!(code == 2 && said.contains("--export"), "{said}");
    another_run_and_no_last(site, &record["meta"]["run"]);
    let (code, said) = failure(&mut view(&["--run", "zz"]));
    assert!(code == 2 && said.contains(record["meta"]["run"].as_str().unwrap()), "{said}");
    let (code, said) = failure(coordinator().arg("view").arg(site.folder.path()));
    assert!(code == 2 && said.contains("no run has left a history"), "{said}");
}

/// Which of two runs is meant is asked for; and one of which nothing is known but its curves is shown.
fn another_run_and_no_last(site: &Site, run: &Value) {
    let (run, other) = (run.as_str().unwrap(), "0".repeat(32));
    let folder = site.state_dir().join("history");
    std::fs::create_dir(folder.join(&other)).unwrap();
    let points = read(&folder.join(run).join("points.jsonl")).replacen(run, &other, 1);
    std::fs::write(folder.join(&other).join("points.jsonl"), points).unwrap();
    std::fs::write(folder.join(&other).join("last.json"), "{\"at_ms\":1").unwrap();
    let (code, said) = failure(coordinator().arg("view").arg(site.state_dir()).args(["--run", ""]));
    assert!(
        code == 2 && said.contains(&other) && said.contains(run) && said.contains("more of its id"),
        "{said}"
    );
    let page = site.folder.path().join("other.html");
    let shown = coordinator()
        .arg("view")
        .arg(site.state_dir())
        .args(["--run", "00000", "--export"])
        .arg(&page)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&shown.stderr);
    assert!(shown.status.success() && said.contains("last.json"), "{said}");
    let record = read(&page);
    let record = record.split("id=\"record\">").nth(1).unwrap().split("</script>").next().unwrap();
    let record: Value = serde_json::from_str(record).unwrap();
    assert!(record["status"].is_null() && record["rounds"].as_array().unwrap().len() == 3);
    std::fs::remove_dir_all(folder.join(&other)).unwrap();
}
