// A chart: a figure around uPlot, with zoom by dragging and by keys, that announces its values.

import { colour, el, keyed, onWidth, setText, table } from "./elements.js";
import { number, rate } from "./words.js";
import { latest } from "./series.js";

const HEIGHT = 190;
/** Tick intervals of times (seconds), bytes and counts. */
const SECONDS = [1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 21600, 43200, 86400, 172800, 432000, 864000];
const BINARY = [1, 1024, 1024 ** 2, 1024 ** 3, 1024 ** 4].flatMap((unit) => [1, 2, 5, 10, 20, 50, 100, 200, 500].map((count) => count * unit));
const WHOLE = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000];
/** Rows of a table of curves. */
const ROWS = 50;
const KEYS = "Arrow keys move along the curve, plus and minus zoom, 0 shows all.";

/** The colour of the line at a place. */
export function lineColour(at) {
  return colour(`--c${(at % 8) + 1}`);
}

export class Chart {
  /** `format` formats a value; `axis` is "step" or "time"; `isWhole`: values are whole numbers. */
  constructor(parent, title, format, zoomed, isWhole = false) {
    this.title = title;
    this.format = format;
    this.isBytes = format === rate;
    this.isWhole = isWhole;
    this.zoomed = zoomed;
    this.value = el("span");
    this.names = el("ul", { class: "names" });
    this.plot = el("div", { class: "plot", tabindex: "0", role: "group", "aria-roledescription": "chart", "aria-label": title });
    this.said = el("span", { class: "skip", role: "status" });
    this.figure = el("figure", { class: "chart" }, el("figcaption", null, title, this.value), this.names, this.plot, this.said);
    this.plot.addEventListener("keydown", (event) => this.key(event));
    parent.append(this.figure);
    this.shape = "";
    this.isZoomed = false;
    onWidth(this.plot, (width) => {
      this.width = width;
      this.draw();
    });
  }

  /** `lines`: `{ name, x, y, dashed, faint }`; the first is the principal one. */
  show(axis, lines) {
    this.axis = axis;
    this.lines = lines;
    const value = latest(lines[0]?.y ?? []);
    setText(this.value, value == null ? "" : this.format(value));
    this.plot.setAttribute("aria-label", `${this.title}: ${value == null ? "nothing yet" : `now ${this.format(value)}`}. ${KEYS}`);
    keyed(this.names, lines.length > 1 ? lines.map((line, at) => ({ ...line, at })) : [], (line) => `${line.at} ${line.name}`,
      (line) => el("li", null, el("i", { class: `k${(line.at % 8) + 1}${line.dashed ? " dashed" : ""}` }), line.name), () => {});
    this.draw();
  }

  draw() {
    if (!this.width || !this.lines) return;
    const tables = this.lines.map((line) => [line.x, line.y]);
    const data = tables.length === 1 ? tables[0] : uPlot.join(tables, tables.map(() => [1, 1]));
    const shape = JSON.stringify([this.axis, this.lines.map((line) => [line.name, line.dashed])]);
    if (this.chart && shape === this.shape) {
      if (this.chart.width !== this.width) this.chart.setSize({ width: this.width, height: HEIGHT });
      const x = this.chart.scales.x;
      const [min, max] = [x.min, x.max];
      this.chart.setData(data, !this.isZoomed);
      if (this.isZoomed) this.chart.setScale("x", { min, max });
      return;
    }
    this.shape = shape;
    this.chart?.destroy();
    this.chart = new uPlot(this.options(), data, this.plot);
    if (this.isZoomed) this.noteZoom(false);
  }

  /** Redraws after a change of colours. */
  redraw() {
    this.shape = "";
    this.draw();
  }

  options() {
    const axis = { stroke: colour("--soft"), grid: { stroke: colour("--grid"), width: 1 }, ticks: { show: false }, font: "12px system-ui, sans-serif" };
    const along = this.axis === "step" ? (value) => number(value) : (value) => shortTime(value);
    return {
      width: this.width,
      height: HEIGHT,
      legend: { show: false },
      cursor: { sync: { key: this.axis }, drag: { x: true, y: false, dist: 6 }, points: { size: 6 } },
      scales: { x: { time: false }, y: { range: (_, min, max) => rangeOf(min, max, this.isWhole) } },
      axes: [
        { ...axis, size: 28, incrs: this.axis === "time" ? SECONDS : undefined, values: (_, ticks) => ticks.map(along) },
        { ...axis, size: this.isBytes ? 78 : 58, incrs: this.isBytes ? BINARY : this.isWhole ? WHOLE : undefined, values: (_, ticks) => ticks.map((tick) => this.format(tick)) },
      ],
      series: [{}, ...this.lines.map((line, at) => ({
        label: line.name,
        stroke: lineColour(at),
        width: line.dashed ? 1.2 : 1.8,
        dash: line.dashed ? [5, 4] : undefined,
        points: { show: line.x.length < 3 ? true : undefined },
        spanGaps: true,
      }))],
      hooks: { setCursor: [(chart) => this.at(chart)], setSelect: [(chart) => this.selected(chart)] },
    };
  }

  selected(chart) {
    if (chart.select.width > 0) this.noteZoom(true);
  }

  noteZoom(isZoomed) {
    this.isZoomed = isZoomed;
    this.zoomed();
  }

  whole() {
    this.isZoomed = false;
    this.draw();
  }

  /** Shows the values under the cursor. */
  at(chart) {
    const at = chart.cursor.idx;
    if (at == null) {
      const value = latest(this.lines[0]?.y ?? []);
      setText(this.value, value == null ? "" : this.format(value));
      return;
    }
    const x = chart.data[0][at];
    const place = this.axis === "step" ? `step ${number(x)}` : shortTime(x);
    const values = chart.data.slice(1).map((values) => nearest(values, at)).filter((value) => value != null);
    setText(this.value, `${place}: ${values.slice(0, 3).map(this.format).join(", ") || "–"}`);
  }

  key(event) {
    const chart = this.chart;
    if (!chart || event.ctrlKey || event.metaKey || event.altKey) return;
    const xs = chart.data[0];
    const { min, max } = chart.scales.x;
    const here = chart.cursor.idx ?? chart.valToIdx(max);
    const to = { ArrowLeft: here - 1, ArrowRight: here + 1, Home: 0, End: xs.length - 1, PageUp: here - 20, PageDown: here + 20 }[event.key];
    if (to != null) {
      const at = Math.max(0, Math.min(xs.length - 1, to));
      chart.setCursor({ left: chart.valToPos(xs[at], "x"), top: chart.over.clientHeight / 2 });
      setText(this.said, this.value.textContent);
    } else if (event.key === "+" || event.key === "-") {
      const middle = xs[here] ?? (min + max) / 2;
      const factor = event.key === "+" ? 0.5 : 2;
      const limits = { min: middle - (middle - min) * factor, max: middle + (max - middle) * factor };
      this.noteZoom(limits.min > xs[0] || limits.max < xs[xs.length - 1]);
      if (this.isZoomed) chart.setScale("x", limits);
      else this.whole();
    } else if (event.key === "0" || event.key === "Escape") {
      this.noteZoom(false);
      this.whole();
    } else return;
    event.preventDefault();
  }
}

/** The range of an axis, wide enough that its ticks have different labels. */
function rangeOf(min, max, isWhole) {
  if (min == null) return [0, 1];
  const least = isWhole ? 2 : Math.max(0.02 * Math.max(Math.abs(min), Math.abs(max)), 1e-12);
  const more = Math.max(0, least - (max - min)) / 2;
  return uPlot.rangeNum(min - more, max + more, 0.1, true);
}

/** Fills the table, if open, with the values of all lines of charts `{ title, format, lines }`: the text form of the curves. */
export function tabulate(node, axis, charts) {
  if (!node.closest("details").open) return;
  const known = charts.flatMap(({ title, format, lines }) => lines.filter((line) => line.x.length > 0)
    .map((line) => ({ name: lines.length > 1 ? `${title}: ${line.name}` : title, format, line })));
  const from = Math.min(...known.map(({ line }) => line.x[0]));
  const end = Math.max(...known.map(({ line }) => line.x[line.x.length - 1]));
  const rows = known.length === 0 ? [] : Array.from({ length: ROWS }, (_, at) => ({ at, x: from + ((end - from) * at) / (ROWS - 1) }));
  const place = (row) => (axis === "step" ? number(Math.round(row.x)) : shortTime(row.x));
  const columns = [{ name: axis === "step" ? "step" : "time", number: true, of: place }];
  for (const { name, format, line } of known) columns.push({ name, number: true, of: (row) => format(before(line, row.x)) });
  table(node, `Values at ${ROWS} points of the run, smoothed like the curves`, columns, rows, (row) => row.at);
}

/** The value of a line at a place, or the last one before it. */
function before(line, x) {
  let [low, high] = [0, line.x.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (line.x[middle] <= x) low = middle + 1;
    else high = middle;
  }
  return low > 0 ? line.y[low - 1] : null;
}

/** The value at an index, or a near one before it: a joined line has values only at its own points. */
function nearest(values, at) {
  for (let off = 0; off < 12; off += 1) if (values[at - off] != null) return values[at - off];
  return null;
}

function shortTime(seconds) {
  if (Math.abs(seconds) < 60) return `${Math.round(seconds)} s`;
  if (seconds < 7200) return `${Number((seconds / 60).toFixed(1))} min`;
  return seconds < 2 * 86400 ? `${Number((seconds / 3600).toFixed(1))} h` : `${Number((seconds / 86400).toFixed(1))} d`;
}
