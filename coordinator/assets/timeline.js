// Recent activity of each worker: a column per interval, divided by kinds of time.

import { byId, colour, el, onWidth, setText, table } from "./elements.js";
import { clock, percent, plural } from "./words.js";
import { sitesOf } from "./map.js";
import { isBySite } from "./workers.js";

/** From the bottom of a column upwards: name of the colour, index in a worker's numbers, and label. */
const KINDS = [
  ["compute", 0, "computing"],
  ["encode", 4, "waiting for encoding"],
  ["bubble", 5, "pipeline bubbles"],
  ["wait", 1, "waiting for others"],
  ["data", 2, "waiting for data"],
  ["checkpoint", 3, "checkpoints"],
];
/** Index and label of encoding overlapped with other device work. */
const BESIDE = [6, "overlapped encoding, below the line"];
const NONE = [0, 0, 0, 0, 0, 0, 0];
const ROW = 30;
/** Heights of a row above and below its line. */
const ABOVE = 20;
const BELOW = 6;
const ROWS_MAX = 64;
/** Columns: twelve minutes. */
const COLUMNS = 240;
const MINUTE_MS = 60_000;

export class TimelinePart {
  constructor() {
    this.canvas = el("canvas", { role: "img" });
    byId("timeline").append(this.canvas);
    for (const [kind, , words] of [...KINDS, ["encode low", ...BESIDE]]) {
      byId("kinds").append(el("li", { class: kind }, el("span", { class: "swatch" }), el("span", { class: "text" }, words)));
    }
    byId("kinds").append(el("li", null, el("span", { class: "text" }, "blank: none of these, or absent")));
    onWidth(byId("timeline"), (width) => {
      this.width = width;
      this.draw();
    });
    this.canvas.addEventListener("pointermove", (event) => this.tell(event));
    this.canvas.addEventListener("pointerleave", () => setText(byId("time-tip"), ""));
  }

  update(record, workers, site) {
    this.activity = record.activity.slice(-COLUMNS);
    const groups = isBySite(workers, site)
      ? sitesOf(workers).map(([name, members]) => ({ name, ids: members.map((worker) => worker.id) }))
      : workers.filter((worker) => site == null || worker.site === site).map((worker) => ({ name: worker.id, ids: [worker.id] }));
    const seen = new Set(this.activity.flatMap((interval) => Object.keys(interval.workers)));
    const active = groups.filter((group) => group.ids.some((id) => seen.has(id)));
    this.rows = active.slice(0, ROWS_MAX);
    const [first, last] = [this.activity[0], this.activity[this.activity.length - 1]];
    const span = first ? `${clock(first.at_ms)} to ${clock(last.at_ms)}, ${isBySite(workers, site) ? "by site" : "by worker"}` : "nothing yet";
    const beyond = last?.left_out ? `; ${plural(last.left_out, "more worker")} not shown separately` : "";
    const few = this.rows.length < active.length ? `, the first ${this.rows.length} of ${active.length}` : "";
    setText(byId("time-note"), span + few + beyond);
    this.canvas.setAttribute("aria-label", "Kinds of time of each row over the last minutes; the table below shows the numbers, minute by minute");
    this.draw();
    this.tabulate();
  }

  draw() {
    if (!this.width || !this.rows) return;
    const ratio = window.devicePixelRatio || 1;
    const height = Math.max(1, this.rows.length) * ROW;
    if (this.canvas.width !== Math.round(this.width * ratio)) this.canvas.width = Math.round(this.width * ratio);
    if (this.canvas.height !== Math.round(height * ratio)) this.canvas.height = Math.round(height * ratio);
    this.canvas.style.height = `${height}px`;
    const context = this.canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, this.width, height);
    context.font = "12px system-ui, sans-serif";
    context.textBaseline = "middle";
    this.left = Math.min(120, 10 + Math.max(0, ...this.rows.map((row) => context.measureText(row.name).width)));
    this.colours = Object.fromEntries(KINDS.map(([kind]) => [kind, colour(`--${kind}`)]));
    const [ink, line] = ["--ink", "--grid"].map(colour);
    this.step = (this.width - this.left) / Math.max(60, this.activity.length);
    this.rows.forEach((row, at) => {
      const top = at * ROW;
      context.fillStyle = line;
      context.fillRect(this.left, top + ABOVE, this.width - this.left, 1);
      context.fillStyle = ink;
      context.fillText(fitting(context, row.name, this.left - 6), 0, top + ABOVE / 2);
      this.activity.forEach((interval, column) => this.drawColumn(context, shares(interval, row.ids), column, top + ABOVE));
    });
  }

  /** Draws device time above the line, upwards, and overlapped encoding below it. */
  drawColumn(context, parts, column, line) {
    if (!parts) return;
    const x = this.left + column * this.step;
    const width = Math.max(1, this.step - (this.step > 4 ? 0.6 : 0));
    let y = line;
    for (const [kind, place] of KINDS) {
      const height = parts[place] * (ABOVE - 2);
      context.fillStyle = this.colours[kind];
      context.fillRect(x, y - height, width, height);
      y -= height;
    }
    context.fillStyle = this.colours.encode;
    context.fillRect(x, line + 1, width, Math.min(1, parts[BESIDE[0]]) * BELOW);
  }

  tell(event) {
    const row = this.rows?.[Math.floor(event.offsetY / ROW)];
    const interval = this.activity?.[Math.floor((event.offsetX - this.left) / this.step)];
    const parts = row && interval && shares(interval, row.ids);
    const words = parts ? told().map(([place, name]) => `${name} ${percent(parts[place], 2)}`).join(", ") : "nothing";
    setText(byId("time-tip"), row && interval ? `${row.name}, ${clock(interval.at_ms)}: ${words}` : "");
  }

  /** Minute by minute, the newest first. */
  tabulate() {
    if (!byId("time-table").closest("details").open) return;
    const minutes = new Map();
    for (const interval of this.activity) {
      const minute = Math.floor(interval.at_ms / MINUTE_MS) * MINUTE_MS;
      if (!minutes.has(minute)) minutes.set(minute, {});
      const sums = minutes.get(minute);
      for (const [id, kinds] of Object.entries(interval.workers)) {
        sums[id] = (sums[id] ?? NONE).map((sum, place) => sum + kinds[place]);
      }
    }
    const rows = [...minutes].reverse().flatMap(([minute, workers]) => this.rows.map(({ name, ids }) => ({ minute, name, parts: shares({ workers }, ids) })));
    const columns = [{ name: "From", class: "s", of: (row) => clock(row.minute) }, { name: "Name", class: "s", of: (row) => row.name }];
    for (const [place, name] of told()) columns.push({ name, number: true, of: (row) => percent(row.parts?.[place], 3) });
    table(byId("time-table"), "Shares of each minute", columns, rows, (row) => `${row.minute} ${row.name}`);
  }
}

/** A name, cut to the width. */
function fitting(context, name, width) {
  if (context.measureText(name).width <= width) return name;
  let count = name.length - 1;
  while (count > 1 && context.measureText(`${name.slice(0, count)}…`).width > width) count -= 1;
  return `${name.slice(0, count)}…`;
}

/** Indices and labels of all values of a column. */
function told() {
  return [...KINDS.map(([, place, words]) => [place, words]), [BESIDE[0], "overlapped encoding"]];
}

/** The share of each kind in the time of these workers; null without any report. */
function shares(interval, ids) {
  const sums = [...NONE];
  for (const id of ids) (interval.workers[id] ?? []).forEach((ms, place) => (sums[place] += ms));
  const all = KINDS.reduce((sum, [, place]) => sum + sums[place], 0);
  return all > 0 ? sums.map((ms) => ms / all) : null;
}
