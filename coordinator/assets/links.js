// Traffic between sites, and the throughput of their links.

import { byId, table } from "./elements.js";
import { bytes, DASH, duration, number, percent, rate } from "./words.js";
import { alongSamples, bitsPerValue, DONE, lately, newestOf, perSecond, smoothed, sumOf } from "./series.js";
import { Chart, tabulate } from "./chart.js";

/** Lines in one chart. */
const LINES_MAX = 8;

const CHARTS = [
  { title: "Sent by each site", format: rate, of: (place) => perSecond(DONE.wan, place) },
  { title: "Use of a site's fastest link", format: (value) => percent(value, 2), of: (place, record) => useOf(place, record) },
  { title: "Bits sent per value, by site", format: (value) => number(value, 3), of: (place) => bitsPerValue(place) },
  { title: "Density: share of values sent, by site", format: (value) => percent(value, 3), of: (place) => (_, after) => encodingOf(after, place)?.[0] ?? null },
  { title: "Bits of each sent value, by site", format: (value) => number(value, 3), of: (place) => (_, after) => encodingOf(after, place)?.[1] ?? null },
];

export class LinksPart {
  constructor() {
    this.charts = new Map();
  }

  update(record) {
    const sent = record.sites.map((name, place) => ({ name, place })).filter(({ place }) => {
      const last = newestOf(record);
      return last && sumOf(last, place)[DONE.wan] > 0;
    });
    const links = record.status?.links ?? [];
    byId("links-section").hidden = sent.length === 0 && links.length === 0;
    if (byId("links-section").hidden) return;
    this.table = [];
    for (const { title, format, of } of CHARTS) {
      const lines = sent.slice(0, LINES_MAX).map(({ name, place }) => line(name, alongSamples(record, "time", of(place, record))));
      this.show(title, format, lines);
    }
    const ways = record.ways.slice(0, LINES_MAX).map(([from, to], place) => {
      const carries = (_, after) => after.ways[place]?.[0] || null;
      return line(`${from} → ${to}`, alongSamples(record, "time", carries), 0);
    });
    this.show("Link throughput, from traffic", rate, ways);
    tabulate(byId("links-table"), "time", this.table);
    showUplinks(record, links);
    table(byId("ways"), "Links, one direction each", [
      { name: "From", class: "s", of: (link) => link.from },
      { name: "To", class: "s", of: (link) => link.to },
      { name: "Carries", number: true, of: (link) => rate(link.bytes_per_s) },
      { name: "Round trip", number: true, of: (link) => `${number(1000 * link.round_trip_s, 3)} ms` },
      { name: "Seen", number: true, of: (link) => (link.seen_s == null ? "before the plan" : `${duration(link.seen_s)} ago`) },
    ], links, (link) => `${link.from}\n${link.to}`);
    byId("ways").parentElement.hidden = links.length === 0;
  }

  show(title, format, lines) {
    const known = lines.filter(({ y }) => y.length > 0);
    let chart = this.charts.get(title);
    if (!chart && known.length === 0) return;
    if (!chart) {
      chart = new Chart(byId("link-charts"), title, format, () => {});
      this.charts.set(title, chart);
    }
    chart.figure.hidden = known.length === 0;
    if (known.length === 0) return;
    chart.show("time", known);
    this.table.push({ title, format, lines: known });
  }

  redraw() {
    for (const chart of this.charts.values()) chart.redraw();
  }
}

/** Encoding of a site up to a sample: density, and bits per value; absent in histories of earlier releases. */
function encodingOf(sample, place) {
  return sample?.encodings?.[place];
}

/** A site's use of its fastest link, as measured then. */
function useOf(place, record) {
  const own = record.ways.map(([from], way) => (from === record.sites[place] ? way : null)).filter((way) => way != null);
  const sent = perSecond(DONE.wan, place);
  return (before, after, seconds) => {
    const carries = Math.max(0, ...own.map((way) => after.ways[way]?.[0] ?? 0));
    return carries > 0 ? sent(before, after, seconds) / carries : null;
  };
}

function line(name, [xs, ys], weight = 0.6) {
  const known = xs.map((x, at) => [x, ys[at]]).filter(([, y]) => y != null);
  return { name, x: known.map(([x]) => x), y: smoothed(known.map(([, y]) => y), weight) };
}

/** A site is taken to have one uplink: the fastest known link gives its rate. */
function showUplinks(record, links) {
  const last = newestOf(record);
  const rows = record.sites.map((name, place) => {
    const recent = lately(record, place);
    const carries = Math.max(0, ...links.filter((link) => link.from === name).map((link) => link.bytes_per_s));
    const goodput = recent ? recent.done[DONE.wan] / recent.seconds : null;
    const all = last ? sumOf(last, place) : null;
    return {
      name,
      goodput,
      use: goodput != null && carries > 0 ? goodput / carries : null,
      sent: all?.[DONE.wan],
      saved: all ? Math.max(0, all[DONE.dense] - all[DONE.wan]) : null,
      bits: all?.[DONE.dense] > 0 ? (32 * all[DONE.wan]) / all[DONE.dense] : null,
      density: last ? encodingOf(last, place)?.[0] : null,
      valueBits: last ? encodingOf(last, place)?.[1] : null,
      now: recent?.done[DONE.dense] > 0 ? (32 * recent.done[DONE.wan]) / recent.done[DONE.dense] : null,
    };
  });
  const ofNow = record.live ? "lately" : "at the end";
  table(byId("uplinks"), "Traffic from each site to others, since the start of these curves", [
    { name: "Site", class: "s", of: (row) => row.name },
    { name: `Sends ${ofNow}`, number: true, of: (row) => rate(row.goodput) },
    { name: "Use of its fastest link", number: true, of: (row) => percent(row.use, 2) },
    { name: "Sent", number: true, of: (row) => bytes(row.sent) },
    { name: "Saved against dense f32", number: true, of: (row) => bytes(row.saved) },
    { name: "Bits per value", number: true, of: (row) => (row.bits == null ? DASH : number(row.bits, 3)) },
    { name: ofNow, number: true, of: (row) => (row.now == null ? DASH : number(row.now, 3)) },
    { name: "Density", number: true, of: (row) => percent(row.density, 3) },
    { name: "Bits per sent value", number: true, of: (row) => (row.valueBits == null ? DASH : number(row.valueBits, 3)) },
  ], rows, (row) => row.name);
}
