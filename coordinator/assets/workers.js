// The table of workers: by site, or of one site.

import { byId, el, keyed, setAttribute, setText, table } from "./elements.js";
import { duration, DASH, number, plural } from "./words.js";
import { inWords, sitesOf } from "./map.js";

/** Up to this number, workers are listed one by one without opening a site. */
const ALONE_MAX = 24;
/** Rows of one site. */
const ROWS_MAX = 500;

/** Whether workers are shown by site. */
export function isBySite(workers, site) {
  return site == null && workers.length > ALONE_MAX;
}

/** `act(what, worker)` handles buttons; null: no buttons. */
export function showWorkers(workers, site, choose, act) {
  offerSites(workers, site);
  if (isBySite(workers, site)) return showSites(workers, choose);
  const all = workers.filter((worker) => site == null || worker.site === site);
  const rows = all.slice(0, ROWS_MAX);
  const columns = [
    { name: "Worker", class: "s", of: (worker) => worker.id },
    { name: "Site", class: "s", of: (worker) => worker.site },
    { name: "State", of: (worker) => (cell) => showState(cell, worker.word) },
    { name: "Role", class: "s", of: (worker) => worker.role || DASH },
    { name: "Step", number: true, of: (worker) => number(worker.step) },
    { name: "Speed", number: true, of: (worker) => number(worker.tokens_per_s, 3) },
    { name: "Last heard", number: true, of: (worker) => (worker.last_seen_s == null ? DASH : `${duration(worker.last_seen_s)} ago`) },
    { name: "Device", class: "why", of: (worker) => (worker.why ? `${worker.device}: ${worker.why}` : worker.device) },
  ];
  if (act) columns.push({ name: "", of: (worker) => (cell) => showButtons(cell, worker, act) });
  table(byId("workers"), counted(rows, all) + (site == null ? "" : ` of ${site}`), columns, rows, (worker) => worker.id);
}

/** The numbers of all and of shown workers. */
function counted(rows, all) {
  return rows.length < all.length ? `The first ${number(rows.length)} of ${plural(all.length, "worker")}` : plural(all.length, "worker");
}

function offerSites(workers, site) {
  const names = sitesOf(workers).map(([name]) => name);
  const options = [{ value: "", text: "all sites" }, ...names.map((name) => ({ value: name, text: name }))];
  keyed(byId("site"), options, (option) => option.value, (option) => el("option", { value: option.value }, option.text), () => {});
  if (byId("site").value !== (site ?? "")) byId("site").value = site ?? "";
}

function showSites(workers, choose) {
  const rows = sitesOf(workers).map(([name, members]) => ({
    name,
    members,
    speed: members.reduce((sum, worker) => sum + (worker.tokens_per_s ?? 0), 0),
    step: Math.max(...members.map((worker) => worker.step ?? 0)),
  }));
  const open = (cell, row) => {
    if (!cell.firstChild) cell.append(el("button", { type: "button", class: "small", onclick: () => choose(row.name) }, "Open", el("span", { class: "skip" }, ` ${row.name}`)));
  };
  table(byId("workers"), `${plural(workers.length, "worker")} of ${plural(rows.length, "site")}`, [
    { name: "Site", class: "s", of: (row) => row.name },
    { name: "Workers", number: true, of: (row) => number(row.members.length) },
    { name: "States", of: (row) => inWords(row.members) },
    { name: "Step", number: true, of: (row) => number(row.step) },
    { name: "Speed", number: true, of: (row) => number(row.speed, 3) },
    { name: "", of: (row) => (cell) => open(cell, row) },
  ], rows, (row) => row.name);
}

export function showState(cell, word) {
  if (!cell.firstChild) cell.append(el("span"));
  setAttribute(cell.firstChild, "class", `state ${word}`);
  setText(cell.firstChild, word);
}

function showButtons(cell, worker, act) {
  const kinds = worker.out ? (worker.word === "kicked" ? [] : ["kick"]) : ["drain", "kick"];
  if (cell.kinds === kinds.join()) return;
  cell.kinds = kinds.join();
  const buttons = kinds.map((kind) => el("button", { type: "button", class: `small${kind === "kick" ? " grave" : ""}`, onclick: () => act(kind, worker.id) },
    kind === "kick" ? "Kick" : "Drain", el("span", { class: "skip" }, ` ${worker.id}`)));
  cell.replaceChildren(el("div", { class: "buttons" }, ...buttons));
}
