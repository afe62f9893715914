// Where the record comes from: this file, or the coordinator that serves it.

import { byId } from "./elements.js";

const TOKEN = "longhaul-token";
/** Between tries to reach a coordinator that is away, in milliseconds: at first, and at most. */
const [AGAIN_MS, AGAIN_MS_MAX] = [1000, 10000];
/** A stream that says nothing for so long is broken: an update comes each second. */
const QUIET_MS = 8000;

/** The token that was typed in this tab, for calls that need one. */
export function token() {
  return sessionStorage.getItem(TOKEN);
}

export function keepToken(text) {
  if (text) sessionStorage.setItem(TOKEN, text);
  else sessionStorage.removeItem(TOKEN);
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

/** Calls the API. */
export async function call(path, options = {}) {
  const headers = token() ? { authorization: `Bearer ${token()}` } : {};
  const answer = await fetch(path, { ...options, headers, cache: "no-store" });
  if (answer.ok) return answer;
  const said = await answer.json().catch(() => ({}));
  throw new Refused(answer.status, said.error ?? `the coordinator answers ${answer.status}`);
}

/** Curves of another run. */
export async function curvesOf(record, run) {
  const known = record.compared.find((curves) => curves.meta.run === run);
  return known ?? (await call(`api/v1/history/${run}`)).json();
}

/**
 * Follows a run from a place on, for as long as the page is there. `take(kind, data)` gets "record" and "update"; `say(state, text)` how it goes;
 * `ask()` resolves when a person has given a token.
 */
export async function follow(after, take, say, ask) {
  let wait = AGAIN_MS;
  for (;;) {
    try {
      await listen(after, (kind, data) => {
        after = data.next;
        wait = AGAIN_MS;
        take(kind, data);
        say("live", "live");
      });
    } catch (error) {
      if (error.status === 401 || error.status === 403) {
        say("lost", "needs a token");
        await ask(error.message);
        continue;
      }
      say("lost", error.status ? error.message : "no coordinator answers; trying again");
      await new Promise((done) => setTimeout(done, wait));
      wait = Math.min(2 * wait, AGAIN_MS_MAX);
    }
  }
}

/** Reads one stream of server-sent events to its end. */
async function listen(after, take) {
  const quiet = new AbortController();
  let timer = setTimeout(() => quiet.abort(), QUIET_MS);
  try {
    const answer = await call(`api/v1/stream?after=${encodeURIComponent(after)}`, { signal: quiet.signal });
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let text = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      clearTimeout(timer);
      timer = setTimeout(() => quiet.abort(), QUIET_MS);
      const frames = (text + value).split("\n\n");
      text = frames.pop();
      for (const frame of frames) {
        const [event, data] = frame.split("\n");
        take(event.slice("event: ".length), JSON.parse(data.slice("data: ".length)));
      }
    }
  } finally {
    clearTimeout(timer);
  }
}
