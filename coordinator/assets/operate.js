// The hands of an operator. Each button asks first, and shows the write token to the coordinator.

import { byId, setText } from "./elements.js";
import { call, isOnlyForReading, keepToken, READ, tokenOf, WRITE } from "./feed.js";

const ACTS = {
  pause: ["Pause the run?", "Rounds that are begun are finished; then nobody trains until the run is resumed.", "api/v1/pause"],
  resume: ["Resume the run?", "Training goes on.", "api/v1/resume"],
  stop: ["Stop the run?", "Rounds that are begun are finished, a checkpoint is written, and the run ends. It cannot be begun again.", "api/v1/stop"],
  drain: ["Drain WHO?", "It leaves in an orderly way; the others go on without it. It may join again.", "api/v1/workers/WHO/drain"],
  kick: ["Kick WHO?", "It is out for good: its certificate is revoked. A join token that is still good would let the same machine in as another worker.", "api/v1/workers/WHO/kick"],
};

/** What takes the answer of the one question that is asked. */
let answer = null;
/** The conversations that were begun: one dialog is open at a time. */
let turn = Promise.resolve();

function inTurn(talk) {
  const mine = turn.then(talk).finally(() => byId("ask").close());
  turn = mine.catch(() => {});
  return mine;
}

/** Asks a person; resolves with the token that was typed, or null. */
function askPerson({ title, text, needsToken, error, go }) {
  setText(byId("ask-title"), title);
  setText(byId("ask-text"), text);
  setText(byId("ask-error"), error ?? "");
  setText(byId("ask-yes"), go);
  byId("ask-token").hidden = !needsToken;
  byId("token").value = "";
  if (!byId("ask").open) byId("ask").showModal();
  if (needsToken) byId("token").focus();
  return new Promise((done) => (answer = done));
}

export function prepareDialog() {
  byId("ask-form").addEventListener("submit", (event) => {
    event.preventDefault();
    answer?.(byId("token").value.trim());
  });
  const no = () => answer?.(null);
  byId("ask-no").addEventListener("click", no);
  byId("ask").addEventListener("cancel", (event) => {
    event.preventDefault();
    no();
  });
}

/** Does one of the acts, once a person has agreed, with a token that the coordinator accepts. */
export function act(kind, worker) {
  return inTurn(() => talk(kind, worker));
}

async function talk(kind, worker) {
  const [title, text, path] = ACTS[kind].map((words) => words.replace("WHO", worker ?? ""));
  let error = null;
  for (;;) {
    const needsToken = !tokenOf(WRITE);
    const hint = needsToken ? " It needs the contents of api-token in the coordinator's state directory; this tab keeps it until it is closed." : "";
    const typed = await askPerson({ title, text: text + hint, needsToken, error, go: title.split(" ")[0] });
    if (typed == null) return;
    if (needsToken && !typed) {
      error = "Type the token.";
      continue;
    }
    if (needsToken) keepToken(WRITE, typed);
    try {
      await call(path, { method: "POST" });
      return;
    } catch (refused) {
      if (refused.status === 403) isOnlyForReading();
      error = refused.message;
    }
  }
}

/** Asks for a token to read with, until one was typed. Who does not want to is asked again with a button. */
export async function askToRead(why) {
  const text = "It is the contents of api-read-token, or of api-token, in the coordinator's state directory. This tab keeps it until it is closed.";
  let error = byId("enter").wasTyped ? why : null;
  for (;;) {
    const question = { title: "This dashboard needs a token", text, needsToken: true, error, go: "Show the run" };
    const typed = await inTurn(() => askPerson(question));
    if (typed) {
      byId("enter").wasTyped = true;
      keepToken(READ, typed);
      return;
    }
    error = typed === "" ? "Type the token." : null;
    if (typed == null) await isPressed(byId("enter"));
  }
}

async function isPressed(button) {
  button.hidden = false;
  await new Promise((done) => button.addEventListener("click", done, { once: true }));
  button.hidden = true;
}
