// Sites with their workers and links. The table below has the same content.

import { byId, el, keyed, onWidth, setAttribute, setText, svg } from "./elements.js";
import { plural, rate } from "./words.js";

/** Beyond this number, a site shows shares of states instead of single workers. */
const SQUARES_MAX = 60;
const SQUARE = 16;
/** Marks of states, in a square of 13: shapes differ with the colours, so that no meaning depends on colour alone. */
const MARKS = {
  circle: "M6.5 .5A6 6 0 1 1 6.5 12.5A6 6 0 1 1 6.5 .5Z",
  diamond: "M6.5 0L13 6.5L6.5 13L0 6.5Z",
  square: "M1 1H12V12H1Z",
  triangle: "M6.5 .5L13 12.5H0Z",
  cross: "M2.6 0L6.5 3.9L10.4 0L13 2.6L9.1 6.5L13 10.4L10.4 13L6.5 9.1L2.6 13L0 10.4L3.9 6.5L0 2.6Z",
};
const MARK_OF = {
  training: "circle", ready: "circle", waiting: "circle", left: "circle", healing: "diamond", preparing: "diamond", finished: "square",
  slow: "triangle", silent: "triangle", awaited: "triangle", gone: "cross", kicked: "cross",
};
/** Limit of links labelled with their rates. */
const WAYS_SAID_MAX = 6;
/** A narrower map is that of a phone, in pixels. */
const NARROW = 640;
const STATES = ["training", "ready", "preparing", "healing", "waiting", "finished", "left", "slow", "silent", "awaited", "gone", "kicked"];

export class MapPart {
  /** `choose(site)` opens a site; null opens all. */
  constructor(choose) {
    this.choose = choose;
    this.links = svg("g");
    this.rates = svg("g", { "aria-hidden": "true" });
    this.sites = svg("g");
    this.root = svg("svg", { role: "group", "aria-label": "Map of sites; a site opens its workers" }, this.links, this.rates, this.sites);
    byId("map").append(this.root);
    onWidth(byId("map"), (width) => {
      this.width = width;
      if (this.record) this.update(this.record, this.workers, this.site);
    });
  }

  update(record, workers, site) {
    [this.record, this.workers, this.site] = [record, workers, site];
    if (!this.width) return;
    const groups = sitesOf(workers).map(([name, members]) => ({ name, members, ...sizeOf(members) }));
    const height = place(groups, this.width);
    setAttribute(this.root, "viewBox", `0 0 ${this.width} ${height}`);
    byId("map").hidden = groups.length === 0;
    this.drawLinks(groups, record.status?.links ?? []);
    keyed(this.sites, groups, (group) => group.name, (group) => this.makeSite(group.name), (node, group) => drawSite(node, group, site === group.name));
    this.showStates(workers);
  }

  makeSite(name) {
    const toggle = () => this.choose(this.site === name ? null : name);
    const key = (event) => {
      if (event.key === "Enter" || event.key === " ") {
        event.preventDefault();
        toggle();
      }
    };
    return svg("g", { class: "siteg", role: "button", tabindex: "0", onclick: toggle, onkeydown: key },
      svg("rect", { class: "box", rx: 9 }), svg("text", { x: 12, y: 22 }), svg("text", { class: "soft", x: 12, y: 39 }), svg("g"));
  }

  drawLinks(groups, links) {
    const at = new Map(groups.map((group) => [group.name, group]));
    const pairs = new Map();
    for (const link of links) {
      if (!at.has(link.from) || !at.has(link.to)) continue;
      const key = [link.from, link.to].sort().join("\n");
      pairs.set(key, [...(pairs.get(key) ?? []), link]);
    }
    const all = [...pairs].map(([key, both]) => ({ key, both, a: at.get(key.split("\n")[0]), b: at.get(key.split("\n")[1]) }));
    // With many links, those of the open site.
    const isMany = all.length > WAYS_SAID_MAX;
    const drawn = isMany && this.site != null ? all.filter(({ a, b }) => a.name === this.site || b.name === this.site) : all;
    const say = drawn.length <= WAYS_SAID_MAX && this.width >= NARROW;
    setAttribute(this.links, "class", isMany && this.site == null ? "many" : "few");
    keyed(this.links, drawn, (pair) => pair.key, () => svg("path", { class: "link", "aria-hidden": "true" }), (line, { both, a, b }) => {
      const slowest = Math.min(...both.map((link) => link.bytes_per_s));
      const mid = bend(a, b);
      setAttribute(line, "d", `M${a.cx} ${a.cy} Q${mid.qx} ${mid.qy} ${b.cx} ${b.cy}`);
      setAttribute(line, "stroke-width", String(Math.max(1.5, Math.min(8, Math.log10(slowest / 1e4) * 2))));
    });
    // Above all lines.
    keyed(this.rates, say ? drawn : [], (pair) => pair.key, () => svg("text", { class: "rate" }), (text, { both, a, b }) => {
      const mid = bend(a, b);
      setAttribute(text, "x", String(mid.x));
      setAttribute(text, "y", String(mid.y + 4));
      setText(text, [...new Set(both.map((link) => rate(link.bytes_per_s)))].join(" / "));
    });
  }

  showStates(workers) {
    const counts = STATES.map((state) => [state, workers.filter((worker) => worker.word === state).length]).filter(([, count]) => count > 0);
    keyed(byId("states"), counts, ([state]) => state, ([state]) => el("li", null, el("span", { class: `state ${state}` })),
      (node, [state, count]) => setText(node.firstChild, `${count} ${state}`));
  }
}

/** The sites of workers in the order of their names, with their workers. */
export function sitesOf(workers) {
  const sites = new Map();
  for (const worker of workers) sites.set(worker.site, [...(sites.get(worker.site) ?? []), worker]);
  return [...sites].sort(([a], [b]) => a.localeCompare(b, "en", { numeric: true }));
}

/** Counts of their states, in words. */
export function inWords(members) {
  const counts = STATES.map((state) => [members.filter((worker) => worker.word === state).length, state]);
  return counts.filter(([count]) => count > 0).map(([count, state]) => `${count} ${state}`).join(", ");
}

function sizeOf(members) {
  const columns = members.length > SQUARES_MAX ? 12 : Math.max(8, Math.ceil(Math.sqrt(2.2 * members.length)));
  const rows = members.length > SQUARES_MAX ? 1 : Math.ceil(members.length / columns);
  return { columns, width: Math.max(150, columns * SQUARE + 24), height: 56 + rows * SQUARE };
}

/** Places sites on an ellipse, or in rows if space is short. Returns the height. */
function place(groups, width) {
  const widest = Math.max(150, ...groups.map((group) => group.width));
  const tallest = Math.max(60, ...groups.map((group) => group.height));
  const isRound = width >= NARROW && groups.length > 2 && groups.length <= 8;
  const gap = width < NARROW ? 34 : 110;
  const inRow = Math.max(1, Math.min(groups.length, Math.floor((width + gap) / (widest + gap))));
  const rows = Math.ceil(groups.length / inRow);
  const height = isRound ? Math.max(280, (groups.length / 2) * (tallest + 34)) : rows * tallest + (rows - 1) * 40 + 24;
  groups.forEach((group, at) => {
    if (isRound) {
      const angle = (2 * Math.PI * at) / groups.length - Math.PI / 2 - Math.PI / groups.length;
      group.cx = width / 2 + Math.cos(angle) * Math.min(width / 2 - widest / 2 - 8, 430);
      group.cy = height / 2 + Math.sin(angle) * (height / 2 - tallest / 2 - 8);
    } else {
      const row = Math.floor(at / inRow);
      const count = Math.min(inRow, groups.length - row * inRow);
      const step = width / count;
      group.cx = step * (at % inRow) + step / 2;
      group.cy = 12 + tallest / 2 + row * (tallest + 40);
    }
  });
  return Math.max(1, Math.round(height));
}

/** The middle of a link, bent slightly outwards so that links do not overlap. */
function bend(a, b) {
  const [dx, dy] = [b.cx - a.cx, b.cy - a.cy];
  const [qx, qy] = [(a.cx + b.cx) / 2 - dy * 0.08, (a.cy + b.cy) / 2 + dx * 0.08];
  return { qx, qy, x: (a.cx + b.cx) / 4 + qx / 2, y: (a.cy + b.cy) / 4 + qy / 2 };
}

function drawSite(node, group, isOpen) {
  const [box, title, words, squares] = node.children;
  setAttribute(node, "transform", `translate(${Math.round(group.cx - group.width / 2)} ${Math.round(group.cy - group.height / 2)})`);
  setAttribute(node, "aria-pressed", String(isOpen));
  setAttribute(node, "aria-label", `${group.name}: ${inWords(group.members)}`);
  setAttribute(box, "width", String(group.width));
  setAttribute(box, "height", String(group.height));
  setText(title, group.name.length > 18 ? `${group.name.slice(0, 17)}…` : group.name);
  setText(words, plural(group.members.length, "worker"));
  const marks = group.members.length > SQUARES_MAX ? shares(group) : group.members.map((worker, at) => ({
    key: worker.id, word: worker.word, x: 12 + (at % group.columns) * SQUARE, y: 48 + Math.floor(at / group.columns) * SQUARE,
  }));
  const make = (mark) => (mark.width == null
    ? svg("path", null, svg("title"))
    : svg("g", null, svg("rect", { rx: 3, height: SQUARE - 3 }), svg("path", null, svg("title"))));
  keyed(squares, marks, (mark) => mark.key, make, drawMark);
}

/** A worker, or a bar for many, with the mark in its middle. */
function drawMark(node, mark) {
  const path = node.lastChild.tagName === "path" ? node.lastChild : node;
  setAttribute(path, "class", `worker ${mark.word}`);
  setAttribute(path, "d", MARKS[MARK_OF[mark.word]] ?? MARKS.circle);
  setText(path.firstChild, mark.width == null ? `${mark.key} ${mark.word}` : `${mark.count} ${mark.word}`);
  const width = mark.width ?? SQUARE;
  const off = mark.width == null ? 0 : (width - 13) / 2;
  setAttribute(path, "transform", `translate(${(mark.x + off).toFixed(1)} ${mark.y})`);
  if (path === node) return;
  const bar = node.firstChild;
  setAttribute(bar, "class", `share ${mark.word}`);
  for (const name of ["x", "y", "width"]) setAttribute(bar, name, String(mark[name]));
}

function shares(group) {
  let x = 12;
  const marks = STATES.map((word) => ({ key: `all ${word}`, word, count: group.members.filter((worker) => worker.word === word).length }))
    .filter((mark) => mark.count > 0);
  // Each has room for its mark; the rest is shared.
  const rest = Math.max(0, group.width - 24 - SQUARE * marks.length);
  return marks.map((mark) => {
    const width = SQUARE + (rest * mark.count) / group.members.length;
    x += width;
    return { ...mark, x: x - width, y: 48, width };
  });
}
