// The source of the record: this file, or the coordinator that serves it.

import { byId } from "./elements.js";

/** Session keys of the typed tokens: one reads, the other also writes. */
export const [READ, WRITE] = ["longhaul-read", "longhaul-write"];
/** Interval between attempts to reach a coordinator, in milliseconds: first, and largest. */
const [AGAIN_MS, AGAIN_MS_MAX] = [1000, 10000];
/** A stream that lasted this long ended regularly: the next one starts at once. */
const LASTED_MS = 10000;
/** A stream silent for this long is broken: updates come every second. */
const QUIET_MS = 8000;
/** Timeout of a call, in milliseconds; one for whole curves may use a slow link. */
const [CALL_MS, CURVES_MS] = [10000, 60000];

/** The token of this kind, typed in this tab. */
export function tokenOf(kind) {
  return sessionStorage.getItem(kind);
}

export function keepToken(kind, text) {
  sessionStorage.setItem(kind, text);
}

/** The token typed for writing only reads: keeps it for reading. */
export function isOnlyForReading() {
  const token = tokenOf(WRITE);
  sessionStorage.removeItem(WRITE);
  if (token && !tokenOf(READ)) keepToken(READ, token);
}

/** The record in an exported page; null: the page is served. */
export function embedded() {
  const node = byId("record");
  return node ? JSON.parse(node.textContent) : null;
}

/** A failure reported by the API: `{ status, message }`. */
export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** Calls the API; returns when the response begins, and reads for at most `withinMs` unless a `signal` is given. */
export async function call(path, { method = "GET", signal, withinMs = CALL_MS } = {}) {
  const kinds = method === "GET" ? [READ, WRITE] : [WRITE];
  const kind = kinds.find(tokenOf);
  const headers = kind ? { authorization: `Bearer ${tokenOf(kind)}` } : {};
  const asked = fetch(path, { method, headers, cache: "no-store", signal: signal ?? AbortSignal.timeout(withinMs) });
  const answer = await asked.catch((error) => {
    throw new Refused(0, error.name === "TimeoutError" ? `the coordinator has not answered within ${withinMs / 1000} s` : "no coordinator answers");
  });
  if (answer.ok) return answer;
  // Only this status means an invalid token; the others mean another token's scope, or bad timing.
  if (answer.status === 401 && kind) sessionStorage.removeItem(kind);
  const said = await answer.json().catch(() => ({}));
  throw new Refused(answer.status, said.error ?? `the coordinator answers ${answer.status}`);
}

/** The whole record. */
export async function whole() {
  return (await call("api/v1/history", { withinMs: CURVES_MS })).json();
}

/** Curves of another run. */
export async function curvesOf(record, run) {
  const known = record.compared.find((curves) => curves.meta.run === run);
  return known ?? (await call(`api/v1/history/${run}`, { withinMs: CURVES_MS })).json();
}

/**
 * Follows a run from a position to its end while the page is visible. `take(kind, data)` gets "record" and "update"; `say(state, text)` the state of
 * the connection; `ask()` resolves once a person has entered a token.
 */
export async function follow(after, take, say, ask) {
  let wait = AGAIN_MS;
  let isOver = false;
  for (;;) {
    await isSeen();
    const began = performance.now();
    try {
      await listen(after, (kind, data) => {
        after = data.next;
        wait = AGAIN_MS;
        isOver = data.status?.phase === "finished";
        take(kind, data);
        say("live", "live");
      });
      if (isOver) break;
      if (performance.now() - began < LASTED_MS) await pause(AGAIN_MS);
    } catch (error) {
      // Nothing follows the end.
      if (isOver) break;
      if (document.hidden) continue;
      if (error.status === 401) {
        say("lost", "needs a token");
        await ask(error.message);
        continue;
      }
      say("lost", error.status ? error.message : "no coordinator answers; trying again");
      await pause(wait);
      wait = Math.min(2 * wait, AGAIN_MS_MAX);
    }
  }
  say("", "finished");
}

function pause(ms) {
  return new Promise((done) => setTimeout(done, ms));
}

/** Resolves when the page is visible. Browsers limit the connections of all tabs to one server. */
async function isSeen() {
  while (document.hidden) await new Promise((done) => document.addEventListener("visibilitychange", done, { once: true }));
}

/** Reads one stream of server-sent events to its end, or until the page is hidden. */
async function listen(after, take) {
  const stop = new AbortController();
  const quiet = () => setTimeout(() => stop.abort(), QUIET_MS);
  const hide = () => document.hidden && stop.abort();
  let timer = quiet();
  document.addEventListener("visibilitychange", hide);
  try {
    const answer = await call(`api/v1/stream?after=${encodeURIComponent(after)}`, { signal: stop.signal });
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let text = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      clearTimeout(timer);
      timer = quiet();
      const frames = (text + value).split("\n\n");
      text = frames.pop();
      for (const frame of frames) {
        const [event, data] = frame.split("\n");
        take(event.slice("event: ".length), JSON.parse(data.slice("data: ".length)));
      }
    }
  } finally {
    clearTimeout(timer);
    document.removeEventListener("visibilitychange", hide);
  }
}
