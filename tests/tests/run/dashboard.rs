//! The dashboard in a real browser, over real processes. Without Chromium it is skipped with a notice, or
//! fails with `LONGHAUL_EVERY_TOOL`.

use std::fs;
use std::path::{Path, PathBuf};

use longhaul_tests::browser::Browser;

use crate::scenario::{RUN_MAX, Scenario, Setup};

/// Maximum time until a user sees a worker's death, in milliseconds.
const DEATH_SEEN_MAX_MS: f64 = 3000.0;
/// Timeout of waits, in milliseconds.
const WAIT_MS: u64 = RUN_MAX.as_millis() as u64;
/// Timeout of other reactions of a page, in milliseconds.
const REACTS_MS: u64 = 20_000;
/// Number of losses drawn.
const LOSSES: &str = "(window.charts.find((chart) => chart.root.isConnected && chart.root.closest('figure').textContent.startsWith('Loss'))\
                      ?.data[1].filter((loss) => loss != null).length ?? 0)";
/// The page's display of a worker: whether its state has a named colour, and since when it has which word.
const LOOKING: &str = "window.stateOf = (worker) => [...document.querySelectorAll('#workers tbody tr')].find((row) => row.cells[0].textContent === worker)?.querySelector('.state');
    window.isColoured = (worker, name) => {
      const state = window.stateOf(worker);
      if (!state) return false;
      const probe = document.createElement('i');
      probe.style.color = `var(--${name})`;
      document.body.append(probe);
      const wanted = getComputedStyle(probe).color;
      probe.remove();
      return getComputedStyle(state).color === wanted;
    };
    window.begin = (worker) => {
      [window.began, window.words] = [performance.now(), []];
      const note = () => {
        const word = window.stateOf(worker)?.textContent;
        if (window.words.at(-1)?.[1] !== word) window.words.push([Math.round(performance.now() - window.began), word]);
      };
      window.noting?.disconnect();
      window.noting = new MutationObserver(note);
      window.noting.observe(document.getElementById('workers'), { subtree: true, childList: true, characterData: true });
      note();
    };
    null";

fn picture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("dashboard-real-{name}.png"))
}

/// Two workers on each of two sites, for longer than any check; `w3` is the last of them.
fn scenario(alone: bool) -> Scenario {
    let setup =
        Setup { steps: 1_000_000, silent_after_ms: 6000, suspect_after_ms: Some(2000), ..Setup::default() };
    Setup { alone, ..setup }.start_in_order()
}

fn open(browser: &mut Browser, scenario: &Scenario) {
    browser.resize(1440, 900);
    browser.open(&format!("http://{}/", scenario.cluster.http()));
    browser.value(LOOKING);
    for worker in 0..4 {
        browser.wait(&format!("isColoured('w{worker}', 'good')"), WAIT_MS);
    }
}

#[test]
fn curves_of_a_real_run_move_and_a_worker_that_is_killed_is_red_within_three_seconds_and_back_when_it_is_started_anew()
 {
    let Some(mut browser) = Browser::start() else { return };
    let mut scenario = scenario(true);
    open(&mut browser, &scenario);
    let mut losses = 1.0;
    for time in 1..=3 {
        browser.wait(&format!("{LOSSES} > {losses}"), WAIT_MS);
        losses = browser.number(LOSSES);
        browser.value("window.begin('w3')");
        scenario.cluster.kill_worker(3);
        browser.wait("isColoured('w3', 'bad')", REACTS_MS);
        let seen_ms = browser.number("performance.now() - window.began");
        let words = browser.value("window.words");
        eprintln!("a killed worker was red after {seen_ms:.0} ms (time {time}): {words}");
        assert!(seen_ms <= DEATH_SEEN_MAX_MS, "it was red after {seen_ms:.0} ms only: {words}");
        browser.value("window.begin('w3')");
        scenario.cluster.start_worker(3).unwrap();
        browser.wait("isColoured('w3', 'good') && window.stateOf('w3').matches('.training')", WAIT_MS);
        let back_ms = browser.number("performance.now() - window.began");
        eprintln!("it was back after {back_ms:.0} ms: {}", browser.value("window.words"));
    }
    browser.wait(&format!("{LOSSES} > {losses}"), WAIT_MS);
    assert_eq!(browser.nameless(), Vec::<String>::new());
    assert_eq!(browser.complaints, Vec::<String>::new());
    assert_eq!(browser.failed, Vec::<String>::new());
}

#[test]
#[ignore = "nightly: covered by the_page_follows_a_run_shows_a_death_and_a_return_and_its_buttons_need_a_token"]
fn buttons_over_a_real_run_do_nothing_without_the_write_token_and_say_what_they_need() {
    let Some(mut browser) = Browser::start() else { return };
    let scenario = scenario(false);
    open(&mut browser, &scenario);
    let kick = "[...window.stateOf('w3').closest('tr').querySelectorAll('button')].find((button) => button.textContent === 'Kick w3').click()";
    for (press, title) in [(kick, "Kick w3?"), ("document.getElementById('pause').click()", "Pause the run?")]
    {
        browser.value(press);
        browser.wait("document.getElementById('ask').open", REACTS_MS);
        assert_eq!(browser.value("document.getElementById('ask-title').textContent"), title);
        let says = browser.value("document.getElementById('ask-text').textContent");
        assert!(says.as_str().unwrap().contains("api-token in the coordinator's state directory"), "{says}");
        browser.click("#ask-yes");
        browser.wait("document.getElementById('ask-error').textContent === 'Type the token.'", REACTS_MS);
        browser.click("#ask-no");
        browser.wait("!document.getElementById('ask').open", REACTS_MS);
    }
    let status = scenario.cluster.status();
    assert_eq!((&status["paused"], status["members"].as_array().unwrap().len()), (&false.into(), 4));

    let token = fs::read_to_string(scenario.cluster.folder().join("state/api-token")).unwrap();
    browser.click("#pause");
    browser.wait("document.getElementById('ask').open", REACTS_MS);
    browser.value(&format!("document.getElementById('token').value = '{}'", token.trim()));
    browser.click("#ask-yes");
    browser.wait("document.getElementById('phase').textContent === 'paused'", REACTS_MS);
    assert_eq!(scenario.cluster.status()["paused"], true);
    // The tab keeps the token, and asks for confirmation.
    for (press, seen) in [
        (
            "document.getElementById('pause').click()",
            "document.getElementById('phase').textContent === 'training'",
        ),
        (kick, "window.stateOf('w3').matches('.kicked') && window.isColoured('w3', 'bad')"),
    ] {
        browser.value(press);
        browser.wait(
            "document.getElementById('ask').open && document.getElementById('ask-token').hidden",
            REACTS_MS,
        );
        browser.click("#ask-yes");
        browser.wait(seen, REACTS_MS);
    }
    assert_eq!(scenario.cluster.status()["members"].as_array().unwrap().len(), 3);
    assert_eq!(browser.nameless(), Vec::<String>::new());
    assert_eq!(browser.complaints, Vec::<String>::new());
    assert_eq!(browser.failed, Vec::<String>::new());

    browser.wait(&format!("{LOSSES} > 8"), WAIT_MS);
    for (width, height) in [(1440, 900), (390, 844)] {
        browser.resize(width, height);
        browser.wait(&format!("document.documentElement.clientWidth === {width} && document.querySelector('.uplot').clientWidth < {width}"), REACTS_MS);
        let wide = browser.number("document.documentElement.scrollWidth");
        assert!(wide <= f64::from(width), "the page is {wide} pixels wide in a window of {width}");
        for scheme in ["light", "dark"] {
            browser.prefer(scheme);
            browser.wait(&format!("matchMedia('(prefers-color-scheme: {scheme})').matches"), REACTS_MS);
            browser.screenshot(width, &picture(&format!("{width}-{scheme}")));
        }
    }
}
