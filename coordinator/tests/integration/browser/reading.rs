//! What a reader does with the page: zooms, smooths, compares, filters, prefers light or dark.

use longhaul_tests::browser::Browser;
use tokio::task::block_in_place;

use super::{ROUND, is_shown_as, long_run, picture};
use crate::running::fleet::Fleet;
use crate::running::{Site, run_toml};

/// How long the page may take to do as it is told, in milliseconds.
const REACTS_MS: u64 = 20_000;
/// The chart of losses, with what is drawn.
const LOSS: &str = "window.charts.find((chart) => chart.root.isConnected && chart.root.closest('figure').textContent.startsWith('Loss'))";

fn open(browser: &mut Browser, site: &Site, rounds: u64) {
    browser.resize(1440, 900);
    browser.open(&format!("http://{}/", site.http_address()));
    browser.wait(&format!("{ROUND} > {rounds} && {LOSS}"), 30_000);
}

fn complains_of_nothing(browser: &Browser) {
    assert_eq!(browser.complaints, Vec::<String>::new());
    assert_eq!(browser.failed, Vec::<String>::new());
}

/// Moves a control as a hand does.
fn set(browser: &mut Browser, control: &str, value: &str) {
    browser.value(&format!(
        "(() => {{ const control = document.getElementById('{control}'); control.value = '{value}'; control.dispatchEvent(new Event('input', {{ bubbles: true }})); }})()"
    ));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_curve_is_zoomed_by_dragging_across_it_stays_so_and_a_button_shows_all_again() {
    let Some(mut browser) = block_in_place(Browser::start) else { return };
    let site = long_run(2);
    let running = site.start(&[]);
    let _fleet = Fleet::join(&running, &["north", "south"], 2).await;
    block_in_place(|| {
        open(&mut browser, &site, 20);
        let shown = format!("(({{ min, max }}) => [min, max])({LOSS}.scales.x)");
        let before = browser.value(&shown);
        browser.drag("#curves .chart .u-over", 0.25, 0.75);
        browser.wait("!document.getElementById('unzoom').disabled", REACTS_MS);
        let zoomed = browser.value(&shown);
        let width = |ends: &serde_json::Value| ends[1].as_f64().unwrap() - ends[0].as_f64().unwrap();
        let ratio = width(&zoomed) / width(&before);
        assert!(ratio > 0.3 && ratio < 0.7, "of {before} a drag over the half of it leaves {zoomed}");
        let round = browser.number(ROUND);
        browser.wait(&format!("{ROUND} > {round} + 4"), REACTS_MS);
        assert_eq!(browser.value(&shown), zoomed, "updates leave it as it is");
        browser.click("#unzoom");
        let all = format!(
            "{LOSS}.scales.x.max >= {LOSS}.data[0].at(-1) && {LOSS}.scales.x.min <= {LOSS}.data[0][0]"
        );
        browser.wait(&all, REACTS_MS);
        complains_of_nothing(&browser);
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn smoothing_flattens_a_curve_and_without_it_the_values_are_those_that_were_reported() {
    let Some(mut browser) = block_in_place(Browser::start) else { return };
    let site = long_run(2);
    let running = site.start(&[]);
    let _fleet = Fleet::join(&running, &["north", "south"], 2).await;
    block_in_place(|| {
        open(&mut browser, &site, 12);
        let variation = format!(
            "(([xs, ys]) => {{ const known = ys.filter((y, at) => y != null && xs[at] <= 20); \
             return known.slice(1).reduce((sum, y, at) => sum + Math.abs(y - known[at]), 0); }})({LOSS}.data)"
        );
        set(&mut browser, "smoothing", "0");
        let rough = browser.number(&variation);
        let reported = "fetch('/api/v1/history').then((answer) => answer.json()).then(({ rounds }) => rounds.slice(0, 8).map(({ step, loss }) => [step, loss]))";
        let reported = browser.value(reported);
        let drawn = browser.value(&format!(
            "(([xs, ys]) => xs.map((x, at) => [x, ys[at]]).filter(([, y]) => y != null).slice(0, 8))({LOSS}.data)"
        ));
        assert_eq!(drawn, reported);
        set(&mut browser, "smoothing", "0.98");
        let smooth = browser.number(&variation);
        assert!(
            smooth < 0.5 * rough,
            "it goes up and down by {smooth} in all, and without smoothing by {rough}"
        );
        complains_of_nothing(&browser);
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_is_compared_with_an_earlier_one_of_its_state_directory() {
    let Some(mut browser) = block_in_place(Browser::start) else { return };
    let mut site = Site::of(&run_toml().steps(40).set("run.name", "earlier"));
    {
        let running = site.start(&[]);
        let _fleet = Fleet::join(&running, &["north", "south"], 2).await;
        assert_eq!(block_in_place(|| running.end()).0, Some(0));
    }
    // Another run takes its place there; what stays is its history.
    for entry in std::fs::read_dir(site.state_dir()).unwrap().map(|entry| entry.unwrap()) {
        match entry.file_type().unwrap().is_dir() {
            true if entry.file_name() == "history" => {}
            true => std::fs::remove_dir_all(entry.path()).unwrap(),
            false => std::fs::remove_file(entry.path()).unwrap(),
        }
    }
    site.folder = long_run_in(site.folder);
    let running = site.start(&[]);
    let _fleet = Fleet::join(&running, &["north", "south"], 2).await;
    block_in_place(|| {
        open(&mut browser, &site, 6);
        let lines = format!("{LOSS}.series.length - 1");
        let own = browser.number(&lines);
        browser.click("#compare summary");
        browser.wait("document.querySelectorAll('#runs input').length === 1", REACTS_MS);
        assert!(
            browser
                .value("document.getElementById('runs').textContent")
                .as_str()
                .unwrap()
                .contains("earlier, ")
        );
        browser.click("#runs input");
        browser.wait(&format!("{lines} === {own} + 1"), REACTS_MS);
        let added = browser.value(&format!(
            "[{LOSS}.series.at(-1).label, {LOSS}.data.at(-1).filter((loss) => loss != null).length]"
        ));
        assert!(added[0].as_str().unwrap().starts_with("training, earlier of "), "{added}");
        assert!(added[1].as_u64() >= Some(10), "its losses are drawn: {added}");
        let names = "[...document.querySelectorAll('#curves figure')][0].querySelector('.names').textContent";
        assert!(browser.value(names).as_str().unwrap().contains("training, earlier of "));
        browser.screenshot(1440, &picture("compared"));
        browser.click("#runs input");
        browser.wait(&format!("{lines} === {own}"), REACTS_MS);
        assert_eq!(browser.nameless(), Vec::<String>::new());
        complains_of_nothing(&browser);
    });
}

/// The folder with another, longer run.
fn long_run_in(folder: tempfile::TempDir) -> tempfile::TempDir {
    run_toml().steps(4000).write(folder.path().join("run.toml")).unwrap();
    folder
}

#[tokio::test(flavor = "multi_thread")]
async fn events_are_filtered_by_how_much_they_matter_and_by_words() {
    let Some(mut browser) = block_in_place(Browser::start) else { return };
    let site = long_run(3);
    let running = site.start(&[]);
    let mut fleet = Fleet::join(&running, &["north", "south"], 3).await;
    let victim = fleet.workers[2].identity.worker().to_string();
    block_in_place(|| {
        open(&mut browser, &site, 2);
        browser.wait(&is_shown_as(&victim, ".training"), REACTS_MS);
    });
    fleet.kill(2);
    block_in_place(|| {
        browser.wait(&is_shown_as(&victim, ".gone"), REACTS_MS);
        browser.wait("document.querySelector('#events .warning')", REACTS_MS);
        let shown = "document.querySelectorAll('#events li').length";
        let all = browser.number(shown);
        set(&mut browser, "severity", "warning");
        browser.wait("!document.querySelector('#events .info')", REACTS_MS);
        let grave = browser.number(shown);
        assert!(grave >= 1.0 && grave < all, "{grave} of {all} events are warnings");
        set(&mut browser, "severity", "info");
        set(&mut browser, "words", &victim);
        let says = format!(
            "[...document.querySelectorAll('#events li')].every((event) => event.textContent.includes('{victim}'))"
        );
        browser.wait(&says, REACTS_MS);
        let of_it = browser.number(shown);
        assert!(of_it >= 2.0 && of_it < all, "{of_it} of {all} events are about {victim}");
        set(&mut browser, "words", "no such words");
        browser.wait("document.getElementById('events').textContent === 'no matching event'", REACTS_MS);
        set(&mut browser, "words", "");
        browser.wait(&format!("{shown} >= {all}"), REACTS_MS);
        complains_of_nothing(&browser);
    });
}

/// Words whose colour is less than 4.5 times as light, or dark, as what is behind them (WCAG 2.2, 1.4.3); of buttons that can be pressed, of all else that is shown.
const UNREADABLE: &str = "(() => {
    const pixel = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
    const laid = (colours) => {
      pixel.clearRect(0, 0, 1, 1);
      for (const colour of colours) { pixel.fillStyle = colour; pixel.fillRect(0, 0, 1, 1); }
      return [...pixel.getImageData(0, 0, 1, 1).data];
    };
    const light = ([r, g, b]) => {
      const [x, y, z] = [r, g, b].map((part) => (part / 255 <= 0.04045 ? part / 255 / 12.92 : ((part / 255 + 0.055) / 1.055) ** 2.4));
      return 0.2126 * x + 0.7152 * y + 0.0722 * z;
    };
    const behind = (node) => (node ? [...behind(node.parentElement), getComputedStyle(node).backgroundColor] : ['white']);
    const poor = [];
    for (const node of document.querySelectorAll('body *')) {
      const own = [...node.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim());
      if (!own || !node.checkVisibility() || node.closest('svg, .skip, option') || node.disabled) continue;
      const back = behind(node);
      const [a, b] = [light(laid(back)), light(laid([...back, getComputedStyle(node).color]))];
      const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
      if (ratio < 4.5) poor.push(`${ratio.toFixed(2)}: ${node.tagName}.${node.className} ${node.textContent.slice(0, 40)}`);
    }
    return poor;
})()";

#[tokio::test(flavor = "multi_thread")]
async fn words_can_be_read_by_those_who_prefer_light_and_by_those_who_prefer_dark() {
    let Some(mut browser) = block_in_place(Browser::start) else { return };
    let site = long_run(4);
    let running = site.start(&[]);
    let mut fleet = Fleet::join(&running, &["north", "south"], 4).await;
    let victim = fleet.workers[3].identity.worker().to_string();
    block_in_place(|| {
        open(&mut browser, &site, 4);
        browser.wait(&is_shown_as(&victim, ".training"), REACTS_MS);
    });
    fleet.kill(3);
    block_in_place(|| {
        browser.wait(&is_shown_as(&victim, ".gone"), REACTS_MS);
        // What looks for words that cannot be read finds some where there are any.
        let poor = "document.getElementById('foot').style.color = '#999999'; null";
        browser.value(poor);
        let found = browser.value(UNREADABLE);
        assert!(found[0].as_str().is_some_and(|it| it.contains("Run ")), "{found}");
        browser.value("document.getElementById('foot').style.color = ''; null");
        let mut seen = Vec::new();
        for scheme in ["light", "dark"] {
            browser.prefer(scheme);
            browser.wait(&format!("matchMedia('(prefers-color-scheme: {scheme})').matches"), REACTS_MS);
            let drawn = format!(
                "{LOSS}.axes[0].stroke() === getComputedStyle(document.documentElement).getPropertyValue('--soft').trim()"
            );
            browser.wait(&drawn, REACTS_MS);
            assert_eq!(browser.value(UNREADABLE), serde_json::json!([]), "{scheme}");
            seen.push(browser.value("getComputedStyle(document.body).backgroundColor"));
            browser.screenshot(1440, &picture(scheme));
        }
        assert_ne!(seen[0], seen[1]);
        complains_of_nothing(&browser);
    });
}

/// Whether some of the timeline has a kind's colour.
const IS_DRAWN: &str = "window.isDrawn = (kind) => {
      const canvas = document.querySelector('#timeline canvas');
      const colour = getComputedStyle(document.documentElement).getPropertyValue(`--${kind}`).trim().slice(1);
      const wanted = colour.match(/../g).map((part) => parseInt(part, 16));
      const copy = new OffscreenCanvas(canvas.width, canvas.height).getContext('2d', { willReadFrequently: true });
      copy.drawImage(canvas, 0, 0);
      const { data } = copy.getImageData(0, 0, canvas.width, canvas.height);
      let count = 0;
      for (let at = 0; at < data.length; at += 4) {
        if (data[at + 3] === 255 && wanted.every((part, which) => Math.abs(part - data[at + which]) < 4)) count += 1;
      }
      return count > 3;
    };
    null";

/// Legend, drawing, table and words of what each worker did.
#[tokio::test(flavor = "multi_thread")]
async fn the_timeline_shows_computing_encoding_bubbles_and_waiting_apart_and_tells_them_in_words() {
    const DRAWN: [&str; 4] = ["compute", "encode", "bubble", "wait"];
    let Some(mut browser) = block_in_place(Browser::start) else { return };
    let site = long_run(4);
    let running = site.start(&[]);
    let _fleet = Fleet::join(&running, &["north", "south"], 4).await;
    block_in_place(|| {
        open(&mut browser, &site, 12);
        let names =
            browser.value("[...document.querySelectorAll('#kinds .text')].map((name) => name.textContent)");
        let named = [
            "computing",
            "waiting for encoding",
            "pipeline bubbles",
            "waiting for others",
            "waiting for data",
            "checkpoints",
            "overlapped encoding, below the line",
            "blank: none of these, or absent",
        ];
        assert_eq!(names, serde_json::json!(named));
        let label = browser.value("document.querySelector('#timeline canvas').getAttribute('aria-label')");
        assert!(label.as_str().unwrap().contains("table below"), "{label}");
        browser.value(IS_DRAWN);
        for scheme in ["light", "dark"] {
            browser.prefer(scheme);
            browser.wait(&format!("matchMedia('(prefers-color-scheme: {scheme})').matches"), REACTS_MS);
            for kind in DRAWN {
                let drawn = format!("isDrawn('{kind}')");
                browser.wait(&drawn, REACTS_MS);
            }
            browser.resize(1440, 900);
            browser.screenshot(1440, &picture(&format!("timeline-1440-{scheme}")));
            browser.resize(390, 844);
            browser.wait("document.querySelector('#timeline canvas').clientWidth < 390", REACTS_MS);
            assert!(browser.number("document.documentElement.scrollWidth") <= 390.0, "it fits a phone");
            browser.screenshot(390, &picture(&format!("timeline-390-{scheme}")));
            browser.resize(1440, 900);
            browser.wait("document.querySelector('#timeline canvas').clientWidth > 390", REACTS_MS);
        }
        browser.value(
            "document.querySelectorAll('details.astable').forEach((details) => (details.open = true))",
        );
        let heads = "[...document.querySelectorAll('#time-table thead th')].map((head) => head.textContent)";
        browser.wait(&format!("{heads}.length > 2"), REACTS_MS);
        let mut columns = vec!["From", "Name"];
        columns.extend(&named[..6]);
        columns.push("overlapped encoding");
        assert_eq!(browser.value(heads), serde_json::json!(columns));
        let shares = "[...document.querySelectorAll('#time-table tbody tr')].map((row) => [...row.cells].slice(2).map((cell) => parseFloat(cell.textContent)))";
        browser
            .wait(&format!("{shares}.some((row) => row.slice(0, 4).every((share) => share > 0))"), REACTS_MS);
        let sums = browser.value(&format!("{shares}.map((row) => row.slice(0, 6).reduce((sum, share) => sum + share, 0)).filter((sum) => sum > 0)"));
        for sum in sums.as_array().unwrap() {
            assert!(
                (sum.as_f64().unwrap() - 100.0).abs() < 1.0,
                "shares of the device's time add up: {sums}"
            );
        }
        assert_eq!(browser.nameless(), Vec::<String>::new());
        complains_of_nothing(&browser);
    });
}
