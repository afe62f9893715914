//! The files of the dashboard, which are part of the binary.

use axum::Router;
use axum::extract::Path;
use axum::http::StatusCode;
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::calls::failure;

/// A file beside the page.
struct Asset {
    name: &'static str,
    kind: &'static str,
    text: &'static str,
}

macro_rules! assets {
    ($($kind:literal: $($name:literal)*;)*) => {
        &[$($(Asset { name: $name, kind: $kind, text: include_str!(concat!("../../assets/", $name)) },)*)*]
    };
}

const PAGE: &str = include_str!("../../assets/index.html");

/// Styles and scripts, each in the order in which it builds on others.
const ASSETS: &[Asset] = assets! {
    "text/css; charset=utf-8": "vendor/uPlot.min.css" "style.css" "parts.css";
    "text/javascript; charset=utf-8":
        "vendor/uPlot.iife.min.js" "words.js" "elements.js" "series.js" "chart.js" "curves.js" "summary.js" "map.js" "workers.js" "links.js"
        "timeline.js" "events.js" "feed.js" "operate.js" "app.js";
    "text/plain; charset=utf-8": "vendor/LICENSE-uPlot";
};

/// Only content served by the coordinator itself, and no script or style within the markup. Canvases and SVG are drawn by
/// script.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; base-uri 'none'; \
                      form-action 'none'; frame-ancestors 'none'";

/// Routes of the page, which contains nothing of any run and needs no token.
pub fn routes<S: Clone + Send + Sync + 'static>() -> Router<S> {
    Router::new().route("/", get(page)).route("/assets/{*name}", get(asset))
}

async fn page() -> Response {
    served("text/html; charset=utf-8", PAGE)
}

async fn asset(Path(name): Path<String>) -> Response {
    match ASSETS.iter().find(|asset| asset.name == name) {
        Some(asset) => served(asset.kind, asset.text),
        None => failure(StatusCode::NOT_FOUND, "the dashboard has no such file"),
    }
}

fn served(kind: &'static str, text: &'static str) -> Response {
    let headers: [(HeaderName, &str); 5] = [
        (CONTENT_TYPE, kind),
        (CONTENT_SECURITY_POLICY, POLICY),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (REFERRER_POLICY, "no-referrer"),
        (CACHE_CONTROL, "no-cache"),
    ];
    (headers, text).into_response()
}

/// The page, all of its files and a record in one file that loads nothing.
#[must_use]
pub fn exported(record_json: &str) -> String {
    let of_kind = |kind: &'static str| ASSETS.iter().filter(move |asset| asset.kind.starts_with(kind));
    let styles: Vec<&str> = of_kind("text/css").map(|asset| asset.text).collect();
    let licences: Vec<&str> = of_kind("text/plain").map(|asset| asset.text).collect();
    let scripts: Vec<String> = of_kind("text/javascript").map(joined_on).collect();
    let (styles, script) = (styles.join("\n"), format!("const modules = {{}};\n{}", scripts.join("\n")));
    let hash = STANDARD.encode(ring::digest::digest(&ring::digest::SHA256, script.as_bytes()));
    let policy = format!(
        "default-src 'none'; script-src 'sha256-{hash}'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
    );
    // Within a script element only `</` and `<!--` mean anything, and in JSON both are within strings.
    let record = record_json.replace('<', "\\u003c");
    let mut page = String::with_capacity(PAGE.len() + styles.len() + script.len() + record.len() + 4096);
    for line in PAGE.lines() {
        let line = line.trim();
        if line.starts_with("<link rel=\"stylesheet\"") || line.starts_with("<script") {
            continue;
        }
        match line {
            "</head>" => {
                page += &format!(
                    "<meta http-equiv=\"Content-Security-Policy\" content=\"{policy}\">\n<style>\n{styles}\n</style>\n</head>\n"
                );
            }
            "</body>" => {
                page += &format!(
                    "<script type=\"application/json\" id=\"record\">{record}</script>\n<script>{script}</script>\n"
                );
                page +=
                    &format!("<!-- uPlot, which draws the curves:\n{}\n-->\n</body>\n", licences.join("\n"));
            }
            line => page += &format!("{line}\n"),
        }
    }
    page
}

/// Wraps a module as a value in a table of modules, where later ones find their imports. A script without exports is appended unchanged.
fn joined_on(asset: &Asset) -> String {
    let mut exported: Vec<&str> = Vec::new();
    let mut script = String::new();
    for line in asset.text.lines() {
        if let Some((names, module)) = line.strip_prefix("import ").and_then(|line| line.split_once(" from "))
        {
            script +=
                &format!("const {names} = modules[{}];", module.trim_end_matches(';').replace("./", ""));
        } else if let Some(declared) = line.strip_prefix("export ") {
            exported.extend(name_in(declared));
            script += declared;
        } else {
            script += line;
        }
        script.push('\n');
    }
    if asset.name.starts_with("vendor/") {
        return script;
    }
    let (name, names) = (asset.name, exported.join(", "));
    format!("(() => {{\n{script}modules[\"{name}\"] = {{ {names} }};\n}})();")
}

/// Which name a declaration gives: `async function call(path)`.
fn name_in(declared: &str) -> Option<&str> {
    let words = declared.split(|c: char| !(c.is_alphanumeric() || c == '_')).filter(|word| !word.is_empty());
    words.into_iter().find(|word| !matches!(*word, "async" | "function" | "const" | "let" | "class"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the texts between these two, wherever they occur.
    fn between<'a>(text: &'a str, before: &str, after: &str) -> Vec<&'a str> {
        text.split(before).skip(1).filter_map(|rest| rest.split(after).next()).collect()
    }

    #[test]
    fn all_that_the_page_and_its_modules_name_is_there_and_modules_name_what_comes_before_them() {
        let place = |name: &str| ASSETS.iter().position(|asset| asset.name == name);
        for name in between(PAGE, "=\"assets/", "\"") {
            assert!(place(name).is_some(), "{name}");
        }
        for (at, asset) in
            ASSETS.iter().enumerate().filter(|(_, asset)| asset.kind.starts_with("text/javascript"))
        {
            for line in asset.text.lines().filter(|line| line.starts_with("import ")) {
                let named = between(line, "from \"./", "\";");
                assert!(
                    named.len() == 1 && place(named[0]).is_some_and(|named| named < at),
                    "{}: {line}",
                    asset.name
                );
            }
        }
    }

    #[test]
    fn the_markup_has_no_script_and_no_style_of_its_own() {
        let attributes = between(PAGE, "<", ">").into_iter().flat_map(str::split_whitespace);
        let forbidden =
            |word: &&str| word.starts_with("style") || word.starts_with("on") && word.contains('=');
        assert_eq!(
            attributes.filter(forbidden).collect::<Vec<_>>(),
            Vec::<&str>::new(),
            "the policy forbids it"
        );
        assert!(between(PAGE, "<script", ">").iter().all(|script| script.contains("src=")));
    }

    #[test]
    fn an_exported_page_is_one_file_that_loads_nothing_and_says_nothing_in_markup() {
        let page = exported(r#"{"name":"</script><script>alert(1)</script>"}"#);
        for reference in [" src=", " href=\"assets", "@import", "url(", "import "] {
            let found = page.lines().find(|line| line.contains(reference) && line.len() < 2000);
            assert_eq!(found, None, "{reference}");
        }
        assert!(page.contains(r#"{"name":"\u003c/script>\u003cscript>alert(1)\u003c/script>"}"#));
        assert_eq!(page.matches("<script").count(), 2);
        assert!(page.contains("The MIT License") && page.contains("script-src 'sha256-"));
    }
}
