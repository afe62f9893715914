// The curves of a run, compared with those of other runs.

import { byId, el, keyed, setText } from "./elements.js";
import { clock, number, percent, rate } from "./words.js";
import { alongRounds, alongSamples, bitsPerValue, DONE, perSecond, roundsOf, shareOf, smoothed, TIMES } from "./series.js";
import { Chart, tabulate } from "./chart.js";

/** Limit of lines of other runs. */
const COMPARED_MAX = 4;

/** `lines(curves, axis)` returns `[name, [x, y]]` for each line; the first is also drawn for other runs. */
const CHARTS = [
  { title: "Loss", format: (value) => number(value), smooth: true, lines: (c, a) => [
    ["training", alongRounds(c, a, (round) => round.loss)],
    ["held-out", alongRounds(c, a, (round) => round.validation_loss), true],
  ] },
  { title: "Speed", unit: true, format: (value) => number(value, 3), smooth: true, lines: (c, a) => [["speed", alongSamples(c, a, perSecond(DONE.tokens))]] },
  { title: "Accuracy on held-out images", format: (value) => percent(value), optional: true, lines: (c, a) => [
    ["accuracy", alongRounds(c, a, (round) => round.validation_accuracy), true],
  ] },
  { title: "Scores of questions", format: (value) => percent(value), optional: true, lines: (c, a) => scoresOf(c).map((name) =>
    [name, alongRounds(c, a, (round) => round.scores?.[name] ?? null), true]) },
  { title: "Learning rate", format: (value) => number(value, 3), lines: (c, a) => [["learning rate", alongRounds(c, a, (round) => round.learning_rate)]] },
  { title: "Gradient norm, before clipping", format: (value) => number(value, 3), smooth: true, optional: true, lines: (c, a) => [
    ["norm", alongRounds(c, a, (round) => round.gradient_norm)],
  ] },
  { title: "Device time", format: (value) => percent(value), smooth: true, lines: (c, a) => [
    ["computing", alongSamples(c, a, shareOf(TIMES.compute))],
    ["waiting for encoding", whereAny(alongSamples(c, a, shareOf(TIMES.encode)))],
    ["pipeline bubbles", whereAny(alongSamples(c, a, shareOf(TIMES.bubble)))],
    ["waiting for others", alongSamples(c, a, shareOf(TIMES.wait))],
    ["waiting for data", alongSamples(c, a, shareOf(TIMES.data))],
    ["checkpoints", alongSamples(c, a, shareOf(TIMES.checkpoint))],
  ] },
  { title: "Sent between sites", format: rate, smooth: true, optional: true, lines: (c, a) => [["sent", alongSamples(c, a, perSecond(DONE.wan))]] },
  { title: "Bits sent per value (dense: 32)", format: (value) => number(value, 3), smooth: true, optional: true, lines: (c, a) => [
    ["bits", alongSamples(c, a, bitsPerValue())],
  ] },
  { title: "Steps between rounds", isWhole: true, format: (value) => number(value), lines: (c, a) => [["steps", alongRounds(c, a, (round) => round.every)]] },
  { title: "Exchanges pending in error feedback", format: (value) => number(value, 3), optional: true, smooth: true, lines: (c, a) => [
    ["exchanges", alongRounds(c, a, (round) => round.residual_ratio)],
  ] },
  { title: "Training workers", isWhole: true, format: (value) => number(value), lines: (c, a) => [["workers", alongSamples(c, a, (_, after) => after.training)]] },
];

/** Names of scores: at least one, which may have no values. */
function scoresOf(curves) {
  const names = new Set(roundsOf(curves).flatMap((round) => Object.keys(round.scores ?? {})));
  return names.size > 0 ? [...names].sort() : ["score"];
}

/** Returns no line if all values are zero. */
function whereAny([x, y]) {
  return y.some((value) => value > 0) ? [x, y] : [[], []];
}

export class CurvesPart {
  /** `curvesOf(run)` fetches those of another run. */
  constructor(curvesOf) {
    this.curvesOf = curvesOf;
    this.charts = new Map();
    this.others = new Map();
    this.chosen = new Set();
    for (const id of ["axis", "smoothing"]) byId(id).addEventListener("input", () => this.render());
    byId("unzoom").addEventListener("click", () => {
      for (const chart of this.charts.values()) chart.whole();
      this.noteZoom();
    });
  }

  noteZoom() {
    byId("unzoom").disabled = ![...this.charts.values()].some((chart) => chart.isZoomed);
  }

  update(record) {
    this.record = record;
    this.offer(record.earlier);
    this.render();
  }

  render() {
    if (!this.record) return;
    const axis = byId("axis").value;
    const weight = Number(byId("smoothing").value);
    const others = [...this.chosen].map((run) => this.others.get(run)).filter((curves) => curves);
    this.table = [];
    for (const spec of CHARTS) {
      const lines = this.linesOf(spec, axis, weight, others);
      const isEmpty = lines.every((line) => line.y.length === 0);
      let chart = this.charts.get(spec.title);
      if (isEmpty && spec.optional) {
        if (chart) chart.figure.hidden = true;
        continue;
      }
      if (!chart) {
        const unit = this.record.meta.images ? "images" : "tokens";
        chart = new Chart(byId("curves"), spec.unit ? `${spec.title} (${unit} per second)` : spec.title, spec.format, () => this.noteZoom(), spec.isWhole);
        this.charts.set(spec.title, chart);
      }
      chart.figure.hidden = false;
      chart.show(axis, lines);
      this.table.push({ title: spec.title, format: spec.format, lines });
    }
    tabulate(byId("curves-table"), axis, this.table);
  }

  linesOf(spec, axis, weight, others) {
    const own = spec.lines(this.record, axis).map(([name, points, isRare]) => ({ name, ...drawn(points, spec.smooth && !isRare ? weight : 0) }));
    const lines = own.filter((line, at) => at === 0 || line.y.length > 0);
    // Drops an empty first line if another has points.
    if (lines.length > 1 && lines[0].y.length === 0) lines.shift();
    for (const curves of others) {
      const [[name, points]] = spec.lines(curves, axis);
      const line = drawn(points, spec.smooth ? weight : 0);
      if (line.y.length > 0) lines.push({ name: `${name}, ${curves.meta.name} of ${clock(curves.meta.begun_ms)}`, ...line, dashed: true });
    }
    return lines;
  }

  offer(earlier) {
    byId("compare").hidden = earlier.length === 0;
    keyed(byId("runs"), earlier, (meta) => meta.run, (meta) => {
      const box = el("input", { type: "checkbox", onchange: () => this.choose(meta, box) });
      return el("label", null, box, ` ${meta.name}, ${clock(meta.begun_ms)}`, el("small", null, `${meta.about}, ${number(meta.steps)} steps`));
    }, () => {});
  }

  async choose(meta, box) {
    if (!box.checked) this.chosen.delete(meta.run);
    else if (this.chosen.size === COMPARED_MAX) box.checked = false;
    else {
      this.chosen.add(meta.run);
      if (!this.others.has(meta.run)) {
        try {
          this.others.set(meta.run, await this.curvesOf(meta.run));
        } catch (error) {
          this.chosen.delete(meta.run);
          box.checked = false;
          setText(byId("curves-note"), `Cannot load the curves of ${meta.name}: ${error.message}`);
        }
      }
    }
    this.render();
  }

  redraw() {
    for (const chart of this.charts.values()) chart.redraw();
  }
}

/** The known points, smoothed. */
function drawn([xs, ys], weight) {
  const known = xs.map((x, at) => [x, ys[at]]).filter(([, y]) => y != null);
  return { x: known.map(([x]) => x), y: smoothed(known.map(([, y]) => y), weight) };
}
