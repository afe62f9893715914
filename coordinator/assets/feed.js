// Where the record comes from: this file, or the coordinator that serves it.

import { byId } from "./elements.js";

/** What a tab keeps of what a person typed: a token that may look, and one that may also change something. */
export const [READ, WRITE] = ["longhaul-read", "longhaul-write"];
/** Between tries to reach a coordinator, in milliseconds: at first, and at most. */
const [AGAIN_MS, AGAIN_MS_MAX] = [1000, 10000];
/** A stream that went on for so long has ended as it should, and the next one is asked for at once. */
const LASTED_MS = 10000;
/** A stream that says nothing for so long is broken: an update comes each second. */
const QUIET_MS = 8000;
/** A call takes no longer, in milliseconds; one for whole curves may go over a slow line. */
const [CALL_MS, CURVES_MS] = [10000, 60000];

/** The token of a kind that was typed in this tab. */
export function tokenOf(kind) {
  return sessionStorage.getItem(kind);
}

export function keepToken(kind, text) {
  sessionStorage.setItem(kind, text);
}

/** The token that was typed to change something only reads: it is good for that. */
export function isOnlyForReading() {
  const token = tokenOf(WRITE);
  sessionStorage.removeItem(WRITE);
  if (token && !tokenOf(READ)) keepToken(READ, token);
}

/** What an exported page has in it; null: it is served. */
export function embedded() {
  const node = byId("record");
  return node ? JSON.parse(node.textContent) : null;
}

/** A failure as the API says it: `{ status, message }`. */
export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** Calls the API; answers once there is a beginning, and reads no longer than `withinMs` unless there is a `signal`. */
export async function call(path, { method = "GET", signal, withinMs = CALL_MS } = {}) {
  const kinds = method === "GET" ? [READ, WRITE] : [WRITE];
  const kind = kinds.find(tokenOf);
  const headers = kind ? { authorization: `Bearer ${tokenOf(kind)}` } : {};
  const asked = fetch(path, { method, headers, cache: "no-store", signal: signal ?? AbortSignal.timeout(withinMs) });
  const answer = await asked.catch((error) => {
    throw new Refused(0, error.name === "TimeoutError" ? `the coordinator has not answered within ${withinMs / 1000} s` : "no coordinator answers");
  });
  if (answer.ok) return answer;
  // Only this says that a token is wrong; the others, that it was the wrong one, or came at a wrong time.
  if (answer.status === 401 && kind) sessionStorage.removeItem(kind);
  const said = await answer.json().catch(() => ({}));
  throw new Refused(answer.status, said.error ?? `the coordinator answers ${answer.status}`);
}

/** All that is served. */
export async function whole() {
  return (await call("api/v1/history", { withinMs: CURVES_MS })).json();
}

/** Curves of another run. */
export async function curvesOf(record, run) {
  const known = record.compared.find((curves) => curves.meta.run === run);
  return known ?? (await call(`api/v1/history/${run}`, { withinMs: CURVES_MS })).json();
}

/**
 * Follows a run from a place on, to its end, while the page can be seen. `take(kind, data)` gets "record" and "update"; `say(state, text)` how it
 * goes; `ask()` resolves when a person has given a token.
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
      // Nothing comes after the end, whoever is gone now.
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

/** Resolves as soon as somebody can see the page. Browsers have few connections to one place for all of their tabs. */
async function isSeen() {
  while (document.hidden) await new Promise((done) => document.addEventListener("visibilitychange", done, { once: true }));
}

/** Reads one stream of server-sent events to its end, or until nobody sees the page. */
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
