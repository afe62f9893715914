// The page: one record, and the parts that show it. Design: `coordinator/docs/dashboard.md`.

import { byId, setAttribute, setText } from "./elements.js";
import { clock } from "./words.js";
import { merge, workersOf } from "./series.js";
import { CurvesPart } from "./curves.js";
import { showSummary } from "./summary.js";
import { MapPart } from "./map.js";
import { showWorkers } from "./workers.js";
import { LinksPart } from "./links.js";
import { TimelinePart } from "./timeline.js";
import { EventsPart } from "./events.js";
import { act, askToRead, prepareDialog } from "./operate.js";
import { curvesOf, embedded, follow, whole } from "./feed.js";

let record = null;
let site = null;
let isDue = false;

const parts = {
  curves: new CurvesPart((run) => curvesOf(record, run)),
  map: new MapPart(choose),
  links: new LinksPart(),
  timeline: new TimelinePart(),
  events: new EventsPart(),
};

/** Opens a site; null opens all. */
function choose(name) {
  site = name || null;
  render();
}

function render() {
  isDue = false;
  if (!record || document.hidden) return;
  const began = performance.now();
  const workers = workersOf(record.status);
  if (site != null && !workers.some((worker) => worker.site === site)) site = null;
  const operate = record.live && record.status?.phase !== "finished" ? act : null;
  showSummary(record);
  showButtons(operate);
  parts.curves.update(record);
  parts.map.update(record, workers, site);
  showWorkers(workers, site, choose, operate);
  parts.timeline.update(record, workers, site);
  parts.links.update(record);
  parts.events.update(record);
  // Measures the cost of updates.
  performance.measure("longhaul-update", { start: began, end: performance.now() });
  if (performance.getEntriesByName("longhaul-update").length > 100) performance.clearMeasures("longhaul-update");
}

/** Draws at most once per frame. */
function renderSoon() {
  if (isDue) return;
  isDue = true;
  requestAnimationFrame(render);
}

function showButtons(operate) {
  byId("run-buttons").hidden = !operate;
  setText(byId("pause"), record.status?.paused ? "Resume" : "Pause");
  byId("pause").disabled = byId("stop").disabled = Boolean(record.status?.stopping);
}

function say(state, text) {
  setText(byId("feed"), text);
  setAttribute(byId("feed"), "class", `feed ${state}`);
}

function take(kind, data) {
  if (kind === "record") record = data;
  else if (record) merge(record, data);
  renderSoon();
}

async function begin() {
  prepareDialog();
  byId("pause").addEventListener("click", () => act(record.status.paused ? "resume" : "pause"));
  byId("stop").addEventListener("click", () => act("stop"));
  byId("site").addEventListener("input", () => choose(byId("site").value));
  document.addEventListener("visibilitychange", renderSoon);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    parts.curves.redraw();
    parts.links.redraw();
    parts.timeline.draw();
  });
  for (const details of document.querySelectorAll("details.astable")) details.addEventListener("toggle", renderSoon);
  const known = embedded() ?? (await recorded());
  if (known) take("record", known);
  if (!known || known.live) await follow(known?.next ?? "", take, say, askToRead);
  else say("", `not live: last update ${known.at_ms ? clock(known.at_ms) : "never"}`);
}

/** Returns the served record; null without an answer or a valid token. */
async function recorded() {
  try {
    return await whole();
  } catch {
    return null;
  }
}

begin();
