//! The dashboard in a real browser, over workers that speak the protocol and train nothing. Where there is no Chromium, it is skipped with a notice, or fails with `LONGHAUL_EVERY_TOOL`.

mod reading;
use std::path::Path;

use longhaul_tests::browser::Browser;
use tokio::task::block_in_place;

use crate::running::fleet::Fleet;
use crate::running::{Site, coordinator, read, run_toml};

fn long_run(workers: usize) -> Site {
    Site::of(&run_toml().steps(4000).workers(workers).batch(2 * workers))
}

fn picture(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("dashboard-{name}.png"))
}

/// What the page may take, in milliseconds, to show a second of a run of 100 workers: a person sees no delay.
const UPDATE_MAX_MS: f64 = 100.0;

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
    let Some(mut browser) = block_in_place(Browser::start) else { return };
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
        let tabulated = "document.querySelectorAll('#curves-table thead th').length - 1";
        let drawn = "[...document.querySelectorAll('#curves .chart:not([hidden])')].reduce((all, chart) => all + Math.max(1, chart.querySelectorAll('.names li').length), 0)";
        assert_eq!(browser.value(tabulated), browser.value(drawn), "each line of each chart is a column");
        // The first interval is over by then.
        browser.wait("document.querySelectorAll('#time-table tbody tr').length >= 6", 10_000);
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
        let refused = format!("401 http://{}/api/v1/pause", site.http_address());
        assert_eq!(browser.failed, [refused], "the wrong token, and nothing else");
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
    browser
        .until("document.getElementById('heard').textContent.includes('coordinator resume')", 10_000)
        .unwrap();
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
    let Some(mut browser) = block_in_place(Browser::start) else { return };
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
            "performance.getEntriesByName('longhaul-update').slice(1).map((one) => Math.round(10 * one.duration) / 10)",
        );
        let mut times: Vec<f64> = times.as_array().unwrap().iter().map(|ms| ms.as_f64().unwrap()).collect();
        times.sort_by(f64::total_cmp);
        let middle = times[times.len() / 2];
        eprintln!("an update with 100 workers took {middle} ms in the middle, of {times:?}");
        assert!(middle < UPDATE_MAX_MS, "an update took {middle} ms in the middle");
        browser.screenshot(1440, &picture("100-workers"));
        browser.value("document.querySelector('#map .siteg').dispatchEvent(new KeyboardEvent('keydown', { key: 'Enter', bubbles: true }))");
        browser.until("document.querySelectorAll('#workers tbody tr').length === 20", 10_000).unwrap();
        assert_eq!(browser.nameless(), Vec::<String>::new());
        assert_eq!(browser.complaints, Vec::<String>::new());
        assert_eq!(browser.failed, Vec::<String>::new());
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn who_left_in_order_is_no_alarm() {
    let Some(mut browser) = block_in_place(Browser::start) else { return };
    let site = long_run(3);
    let running = site.start(&[]);
    let fleet = Fleet::join(&running, &["north", "south", "overseas"], 3).await;
    let leaver = fleet.workers[2].identity.worker().to_string();
    block_in_place(|| {
        browser.open(&format!("http://{}/", site.http_address()));
        browser.until(&is_shown_as(&leaver, ".training"), 30_000).unwrap();
        site.told(&["drain", &leaver]);
        browser.until(&is_shown_as(&leaver, ".left"), 20_000).unwrap();
        let colours =
            "[...document.querySelectorAll('#workers .state')].map((state) => getComputedStyle(state).color)";
        let bad = "getComputedStyle(document.documentElement).getPropertyValue('--bad')";
        let is_red = format!(
            "(() => {{ const probe = document.createElement('i'); probe.style.color = {bad}; document.body.append(probe); \
             const red = getComputedStyle(probe).color; probe.remove(); return {colours}.includes(red); }})()"
        );
        assert_eq!(browser.value(&is_red), false);
        assert_eq!(browser.complaints, Vec::<String>::new());
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn curves_along_another_axis_show_the_whole_run_and_the_button_knows() {
    let Some(mut browser) = block_in_place(Browser::start) else { return };
    let site = long_run(2);
    let running = site.start(&[]);
    let _fleet = Fleet::join(&running, &["north", "south"], 2).await;
    block_in_place(|| {
        browser.open(&format!("http://{}/", site.http_address()));
        let drawn = "document.querySelectorAll('#curves .uplot canvas').length > 3";
        browser.until(&format!("{ROUND} > 4 && {drawn}"), 30_000).unwrap();
        assert_eq!(browser.value("document.getElementById('unzoom').disabled"), true);
        browser.value("document.querySelector('#curves .plot').dispatchEvent(new KeyboardEvent('keydown', { key: '+', bubbles: true }))");
        browser.until("!document.getElementById('unzoom').disabled", 10_000).unwrap();
        let other = "const axis = document.getElementById('axis'); \
                     axis.value = [...axis.options].find((option) => !option.selected).value; axis.dispatchEvent(new Event('input'))";
        browser.value(&format!("(() => {{ {other} }})()"));
        browser.until("document.getElementById('unzoom').disabled", 10_000).unwrap();
        let workers = "window.charts.find((chart) => chart.root.isConnected && chart.root.closest('figure').textContent.startsWith('Training workers'))";
        browser.wait(&format!("{workers}?.data[1].length > 0"), 10_000);
        let ticks = browser.value(&format!("{workers}.axes[1]._values"));
        assert!(
            ticks.as_array().unwrap().contains(&"2".into()) && !ticks.to_string().contains('.'),
            "{ticks}"
        );
        assert_eq!(browser.complaints, Vec::<String>::new());
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn an_exported_run_opens_from_a_file_and_asks_for_nothing() {
    let Some(mut browser) = block_in_place(Browser::start) else { return };
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

/// Notes what the page asks for from now on, also of pages that are opened then.
const ASKED: &str = "window.asked = []; const ask = window.fetch; window.fetch = (path, options) => { window.asked.push({ path: String(path), \
                     signal: options.signal }); return ask(path, options); };";
const STREAMS: &str = "window.asked.filter(({ path }) => path.includes('stream'))";

fn seen(browser: &mut Browser, is_seen: bool) {
    browser.value(&format!(
        "Object.defineProperty(document, 'hidden', {{ configurable: true, get: () => {} }}); document.dispatchEvent(new Event('visibilitychange'))",
        !is_seen
    ));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tab_that_nobody_sees_holds_no_connection_and_goes_on_where_it_was() {
    let Some(mut browser) = block_in_place(Browser::start) else { return };
    let site = long_run(2);
    let running = site.start(&[]);
    let _fleet = Fleet::join(&running, &["north", "south"], 2).await;
    block_in_place(|| {
        browser.call("Page.addScriptToEvaluateOnNewDocument", serde_json::json!({ "source": ASKED }));
        browser.open(&format!("http://{}/", site.http_address()));
        browser
            .until(&format!("{ROUND} > 2 && document.getElementById('feed').matches('.live')"), 30_000)
            .unwrap();
        assert_eq!(browser.value(&format!("{STREAMS}.length")), 1);
        seen(&mut browser, false);
        browser.until(&format!("{STREAMS}.every(({{ signal }}) => signal.aborted)"), 5_000).unwrap();
        let before = browser.value(ROUND).as_u64().unwrap();
        seen(&mut browser, true);
        browser.until(&format!("{ROUND} > {before} + 2"), 20_000).unwrap();
        let asked = browser.value(&format!("{STREAMS}.map(({{ path }}) => path)"));
        let asked = asked.as_array().unwrap();
        assert!(
            asked.len() == 2
                && asked[1].as_str().unwrap().contains("after=")
                && !asked[1].as_str().unwrap().ends_with('='),
            "{asked:?}"
        );
        assert_eq!(browser.complaints, Vec::<String>::new());
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn at_the_end_of_a_run_the_page_says_so_and_asks_no_more() {
    let Some(mut browser) = block_in_place(Browser::start) else { return };
    let site = Site::of(&run_toml().steps(40));
    let running = site.start(&[]);
    block_in_place(|| {
        browser.call("Page.addScriptToEvaluateOnNewDocument", serde_json::json!({ "source": ASKED }));
        browser.open(&format!("http://{}/", site.http_address()));
        browser.until("document.getElementById('feed')?.matches('.live')", 30_000).unwrap();
    });
    let _fleet = Fleet::join(&running, &["north", "south"], 2).await;
    block_in_place(|| {
        assert_eq!(running.end().0, Some(0));
        browser.until("document.getElementById('feed').textContent === 'finished'", 20_000).unwrap();
        assert!(!browser.value("document.getElementById('feed').matches('.lost')").as_bool().unwrap());
        assert_eq!(browser.value("document.getElementById('phase').textContent"), "finished");
        assert_eq!(browser.value(&format!("{STREAMS}.length")), 1, "one stream to its end");
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_to_look_with_is_asked_for_again_by_a_button_and_outlives_a_refusal_to_write() {
    let Some(mut browser) = block_in_place(Browser::start) else { return };
    let site = Site::new();
    let _running = site.start(&["--http", "0.0.0.0:0"]);
    let token = |name: &str| read(&site.state_dir().join(name)).trim().to_owned();
    block_in_place(|| {
        browser.open(&format!("http://{}/", site.http_address()));
        let is_asked = "document.getElementById('ask')?.open";
        let asks_to_write = "document.getElementById('ask').open && document.getElementById('ask-title').textContent.includes('Pause')";
        let typed = |browser: &mut Browser, token: &str| {
            browser.value(&format!(
                "document.getElementById('token').value = '{token}'; document.getElementById('ask-yes').click()"
            ));
        };
        browser.until(is_asked, 20_000).unwrap();
        browser.value("document.getElementById('ask-no').click()");
        browser
            .until("!document.getElementById('enter').hidden && !document.getElementById('ask').open", 10_000)
            .unwrap();
        browser.value("document.getElementById('enter').click()");
        browser.until(is_asked, 10_000).unwrap();
        typed(&mut browser, &token("api-read-token"));
        browser.until("document.getElementById('feed').matches('.live')", 20_000).unwrap();
        browser.value("document.getElementById('pause').click()");
        browser.until(asks_to_write, 10_000).unwrap();
        typed(&mut browser, &token("api-read-token"));
        browser
            .until("document.getElementById('ask-error').textContent.includes('this token reads')", 10_000)
            .unwrap();
        assert_eq!(
            browser.value("sessionStorage.getItem('longhaul-read')"),
            token("api-read-token").as_str()
        );
        assert!(browser.value("sessionStorage.getItem('longhaul-write')").is_null());
        typed(&mut browser, &token("api-token"));
        browser.until("document.getElementById('phase').textContent === 'paused'", 10_000).unwrap();
        // Who is asked while another question is open is asked after it.
        browser.value("import('/assets/operate.js').then(({ act }) => { act('resume'); act('stop'); })");
        browser.until("document.getElementById('ask-title').textContent.includes('Resume')", 10_000).unwrap();
        browser.value("document.getElementById('ask-no').click()");
        browser.until("document.getElementById('ask').open && document.getElementById('ask-title').textContent.includes('Stop')", 10_000).unwrap();
        browser.value("document.getElementById('ask-no').click()");
        browser.until("!document.getElementById('ask').open", 10_000).unwrap();
        assert_eq!(browser.complaints, Vec::<String>::new());
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn what_has_the_focus_keeps_it_and_states_differ_by_more_than_colour() {
    let Some(mut browser) = block_in_place(Browser::start) else { return };
    let site = Site::new();
    let _running = site.start(&[]);
    block_in_place(|| {
        browser.open(&format!("http://{}/", site.http_address()));
        browser.until("document.getElementById('feed')?.matches('.live')", 30_000).unwrap();
        let focus = "import('/assets/elements.js').then(({ el, keyed }) => {
            const list = el('ul', { tabindex: '0', id: 'tested' });
            document.body.append(list);
            const show = (names) => keyed(list, names, (name) => name, (name) => el('li', null, el('button', { id: name }, name)), () => {});
            const has = () => document.activeElement.id;
            show(['a', 'b', 'c']);
            document.getElementById('b').focus();
            const found = [];
            show(['b', 'c']); found.push(has());
            show(['c', 'x', 'b']); found.push(has());
            show(['b', 'c']); found.push(has());
            show(['c']); found.push(has());
            list.remove();
            return found.join();
        })";
        assert_eq!(browser.value(focus), "b,b,b,tested");
        let map = "import('/assets/map.js').then(({ MapPart }) => {
            const map = document.createElement('div');
            const words = ['training', 'healing', 'slow', 'gone', 'finished'];
            const worker = (word, at, site) => ({ id: `w${at}`, word, site });
            const part = new MapPart(() => {});
            document.getElementById('map').style.width = '900px';
            const many = Array.from({ length: 100 }, (_, at) => worker(words[at % 5], at + 5, 'many'));
            part.width = 900;
            part.update({ status: null }, [...words.map((word, at) => worker(word, at, 'few')), ...many], null);
            return [...part.root.querySelectorAll('.siteg')].map((site) => new Set([...site.querySelectorAll('.worker')].map((mark) => mark.getAttribute('d'))).size).join();
        })";
        assert_eq!(browser.value(map), "5,5");
        let counted = "import('/assets/workers.js').then(({ showWorkers }) => {
            const workers = Array.from({ length: 800 }, (_, at) => ({ id: `w${at}`, site: 'here', word: 'training', role: '', device: '' }));
            showWorkers(workers, 'here', () => {}, null);
            return document.getElementById('workers').caption.textContent;
        })";
        assert_eq!(browser.value(counted), "The first 500 of 800 workers of here");
    });
}
