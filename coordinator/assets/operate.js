// Operator actions. Each button asks for confirmation and sends the write token to the coordinator.

import { byId, setText } from "./elements.js";
import { call, isOnlyForReading, keepToken, READ, tokenOf, WRITE } from "./feed.js";

const ACTS = {
  pause: ["Pause the run?", "Open rounds finish; then training stops until the run is resumed.", "api/v1/pause"],
  resume: ["Resume the run?", "Training goes on.", "api/v1/resume"],
  stop: ["Stop the run?", "Open rounds finish, a checkpoint is written, and the run ends. It cannot be resumed.", "api/v1/stop"],
  drain: ["Drain WHO?", "It leaves in an orderly way; the others continue without it. It can rejoin.", "api/v1/workers/WHO/drain"],
  kick: ["Kick WHO?", "It is removed for good: its certificate is revoked. With a valid join token, its machine can still join as another worker.", "api/v1/workers/WHO/kick"],
};

/** Receives the answer to the open question. */
let answer = null;
/** The queue of conversations: one dialog is open at a time. */
let turn = Promise.resolve();

function inTurn(talk) {
  const mine = turn.then(talk).finally(() => byId("ask").close());
  turn = mine.catch(() => {});
  return mine;
}

/** Asks a person; resolves with the typed token, or null. */
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

/** Performs an action after confirmation, with a token that the coordinator accepts. */
export function act(kind, worker) {
  return inTurn(() => talk(kind, worker));
}

async function talk(kind, worker) {
  const [title, text, path] = ACTS[kind].map((words) => words.replace("WHO", worker ?? ""));
  let error = null;
  for (;;) {
    const needsToken = !tokenOf(WRITE);
    const hint = needsToken ? " This needs the contents of api-token in the coordinator's state directory; this tab keeps them until it is closed." : "";
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

/** Asks for a read token until one is typed. After a cancel, a button asks again. */
export async function askToRead(why) {
  const text = "Enter the contents of api-read-token, or of api-token, in the coordinator's state directory. This tab keeps them until it is closed.";
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
