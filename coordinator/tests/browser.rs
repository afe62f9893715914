//! The dashboard in a real browser, over workers that speak the protocol and train nothing. Where there is no Chromium, it is skipped with a notice.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod running;

use std::path::Path;

use running::browser::Browser;
use running::fleet::Fleet;
use running::{CONFIG, Site, coordinator, read};
use tokio::task::block_in_place;

fn browser() -> Option<Browser> {
    let browser = Browser::start();
    if browser.is_none() {
        eprintln!("skipped: there is no Chromium here (Debian: apt-get install chromium)");
    }
    browser
}

fn long_run(workers: usize) -> Site {
    let config =
        CONFIG.replace("steps = 6", "steps = 4000").replace("workers = 2", &format!("workers = {workers}"));
    Site::with_config(&config)
}

fn picture(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("dashboard-{name}.png"))
}

/// Where a worker's state is in the table of all.
fn is_shown_as(worker: &str, words: &str) -> String {
    format!(
        "[...document.querySelectorAll('#workers tbody tr')].some((row) => row.cells[0].textContent === '{worker}' \
         && row.querySelector('.state').matches('{words}'))"
    )
}

const ROUND: &str = "Number(document.getElementById('steps').textContent.match(/round ([0-9,]+)/)?.[1].replace(',', '') ?? 0)";

#[tokio::test(flavor = "multi_thread")]
async fn the_page_follows_a_run_shows_a_death_and_a_return_and_its_buttons_need_a_token() {
    let Some(mut browser) = block_in_place(browser) else { return };
    let site = long_run(6);
    let running = site.start(&[]);
    let mut fleet = Fleet::join(&running, &["north", "south", "overseas"], 6).await;
    block_in_place(|| {
        browser.resize(1440, 900);
        browser.open(&format!("http://{}/", site.http_address()));
        assert!(
            browser.until("document.querySelectorAll('#curves .uplot canvas').length > 3", 30_000).is_some()
        );
        let before = browser.value(ROUND).as_u64().unwrap();
        assert!(browser.until(&format!("{ROUND} > {before} + 4"), 30_000).is_some(), "curves move");
    });

    let victim = fleet.workers[4].identity.worker().to_string();
    assert!(block_in_place(|| browser.until(&is_shown_as(&victim, ".training"), 20_000)).is_some());
    fleet.kill(4);
    let dead = ".gone, .awaited, .silent";
    let seen_ms = block_in_place(|| browser.until(&is_shown_as(&victim, dead), 20_000)).unwrap();
    eprintln!("a killed worker was shown as such after {seen_ms} ms");
    fleet.restart(4);
    assert!(
        block_in_place(|| browser.until(&is_shown_as(&victim, ".training"), 30_000)).is_some(),
        "it is back"
    );

    block_in_place(|| operate(&site, &mut browser));
    block_in_place(|| {
        browser.value(
            "document.querySelectorAll('details.astable').forEach((details) => (details.open = true))",
        );
        browser.until("document.querySelectorAll('#curves-table td').length > 0", 10_000).unwrap();
        assert_eq!(browser.nameless(), Vec::<String>::new());
        browser.screenshot(1440, &picture("1440"));
        browser.resize(390, 844);
        browser.until("document.documentElement.clientWidth === 390", 10_000).unwrap();
        browser
            .until(&format!("{ROUND} > 0 && document.querySelector('.uplot').clientWidth < 390"), 10_000)
            .unwrap();
        assert!(
            browser.value("document.documentElement.scrollWidth").as_u64().unwrap() <= 390,
            "it fits a phone"
        );
        browser.screenshot(390, &picture("390"));
        assert_eq!(browser.complaints, Vec::<String>::new());
    });
}

/// A pause without a token, with a wrong one, and with the right one.
fn operate(site: &Site, browser: &mut Browser) {
    let typed = |browser: &mut Browser, token: &str| {
        browser
            .until(
                "document.getElementById('ask').open && !document.getElementById('ask-token').hidden",
                10_000,
            )
            .unwrap();
        browser.value(&format!(
            "document.getElementById('token').value = '{token}'; document.getElementById('ask-yes').click()"
        ));
    };
    browser.value("document.getElementById('pause').click()");
    typed(browser, "");
    let says = |text: &str| format!("document.getElementById('ask-error').textContent.includes('{text}')");
    browser.until(&says("Type the token"), 10_000).unwrap();
    typed(browser, "wrong");
    browser.until(&says("api-token"), 10_000).unwrap();
    assert_eq!(site.status()["paused"], false);
    typed(browser, read(&site.state_dir().join("api-token")).trim());
    browser.until("document.getElementById('phase').textContent === 'paused'", 10_000).unwrap();
    assert_eq!(site.status()["paused"], true);
    // The tab knows it now, and still asks whether that is meant.
    browser.value("document.getElementById('pause').click()");
    browser
        .until("document.getElementById('ask').open && document.getElementById('ask-token').hidden", 10_000)
        .unwrap();
    browser.value("document.getElementById('ask-yes').click()");
    browser.until("document.getElementById('phase').textContent === 'training'", 10_000).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_workers_are_shown_by_site_and_then_one_by_one() {
    let Some(mut browser) = block_in_place(browser) else { return };
    let site = long_run(100);
    let running = site.start(&[]);
    let sites = ["north", "south", "overseas", "alpine", "delta"];
    let _fleet = Fleet::join(&running, &sites, 100).await;
    block_in_place(|| {
        browser.resize(1440, 900);
        browser.open(&format!("http://{}/", site.http_address()));
        assert!(
            browser
                .until(
                    &format!("{ROUND} > 3 && document.querySelectorAll('#map .worker').length === 100"),
                    120_000
                )
                .is_some()
        );
        assert_eq!(browser.value("document.querySelectorAll('#workers tbody tr').length"), sites.len());
        browser.until("performance.getEntriesByName('longhaul-update').length > 12", 60_000).unwrap();
        let times = browser.value(
            "performance.getEntriesByName('longhaul-update').slice(1).map((one) => Math.round(one.duration))",
        );
        eprintln!("an update with 100 workers took {times} ms");
        browser.screenshot(1440, &picture("100-workers"));
        browser.value("document.querySelector('#map .siteg').dispatchEvent(new KeyboardEvent('keydown', { key: 'Enter', bubbles: true }))");
        browser.until("document.querySelectorAll('#workers tbody tr').length === 20", 10_000).unwrap();
        assert_eq!(browser.nameless(), Vec::<String>::new());
        assert_eq!(browser.complaints, Vec::<String>::new());
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn an_exported_run_opens_from_a_file_and_asks_for_nothing() {
    let Some(mut browser) = block_in_place(browser) else { return };
    let site = Site::new();
    let running = site.start(&[]);
    let _fleet = Fleet::join(&running, &["north", "<img src=x>"], 2).await;
    block_in_place(|| {
        assert_eq!(running.end().0, Some(0));
        let page = site.folder.path().join("run.html");
        let exported =
            coordinator().arg("view").arg(site.state_dir()).arg("--export").arg(&page).status().unwrap();
        assert!(exported.success());
        browser.open(&format!("file://{}", page.display()));
        assert!(
            browser.until("document.getElementById('phase')?.textContent === 'finished'", 10_000).is_some()
        );
        assert!(browser.value("document.getElementById('run-buttons').hidden").as_bool().unwrap());
        assert_eq!(browser.value("document.querySelectorAll('#workers tbody tr').length"), 2);
        assert_eq!(browser.value("performance.getEntriesByType('resource').length"), 0);
        assert_eq!(browser.value("document.images.length"), 0, "names are no markup");
        assert_eq!(browser.complaints, Vec::<String>::new());
    });
}
