// Events with a filter, and checkpoints.

import { byId, el, keyed, table } from "./elements.js";
import { clock, DASH, number, plural } from "./words.js";

/** Limit of shown events, the newest. */
const SHOWN_MAX = 200;
const RANK = { info: 0, warning: 1, error: 2 };
const MARKS = { info: "", warning: "Warning: ", error: "Error: " };

export class EventsPart {
  constructor() {
    byId("severity").addEventListener("input", () => this.render());
    byId("words").addEventListener("input", () => this.render());
  }

  update(record) {
    this.events = record.events;
    this.render();
    showCheckpoints(record.status?.checkpoints ?? []);
  }

  render() {
    if (!this.events) return;
    const least = RANK[byId("severity").value];
    const words = byId("words").value.toLowerCase().split(/\s+/).filter((word) => word);
    const fits = (event) => {
      const text = `${event.worker ?? ""} ${event.text}`.toLowerCase();
      return RANK[event.severity] >= least && words.every((word) => text.includes(word));
    };
    const shown = this.events.filter(fits).slice(-SHOWN_MAX).reverse();
    const rows = shown.length > 0 ? shown : [{ number: "none", severity: "info", text: this.events.length > 0 ? "no matching event" : "nothing yet" }];
    keyed(byId("events"), rows, (event) => event.number, makeEvent, () => {});
  }
}

function makeEvent(event) {
  const at = event.at_unix_ms == null ? el("span") : el("time", { datetime: new Date(event.at_unix_ms).toISOString() }, clock(event.at_unix_ms));
  return el("li", { class: event.severity }, at, el("span", null, el("b", null, MARKS[event.severity], event.worker ? `${event.worker} ` : ""), event.text));
}

function showCheckpoints(checkpoints) {
  const rows = checkpoints.map((checkpoint) => ({ ...checkpoint, key: `${checkpoint.worker} ${checkpoint.next_round} ${checkpoint.path} ${checkpoint.error}` }));
  table(byId("checkpoints"), rows.length > 0 ? `The newest ${plural(rows.length, "checkpoint")}` : "None yet", [
    { name: "Before round", number: true, of: (row) => number(row.next_round) },
    { name: "Worker", class: "s", of: (row) => row.worker },
    { name: "State", of: (row) => row.state_hash?.slice(0, 12) ?? DASH },
    { name: "Path on its machine", class: "why", of: (row) => (row.error ? `${row.path}: not written: ${row.error}` : row.path) },
  ], rows, (row) => row.key);
}
