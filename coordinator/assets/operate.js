// The hands of an operator. Each button asks first, and shows the write token to the coordinator.

import { byId, setText } from "./elements.js";
import { call, keepToken, token } from "./feed.js";

const ACTS = {
  pause: ["Pause the run?", "Rounds that are begun are finished; then nobody trains until the run is resumed.", "api/v1/pause"],
  resume: ["Resume the run?", "Training goes on.", "api/v1/resume"],
  stop: ["Stop the run?", "Rounds that are begun are finished, a checkpoint is written, and the run ends. It cannot be begun again.", "api/v1/stop"],
  drain: ["Drain WHO?", "It leaves in an orderly way; the others go on without it. It may join again.", "api/v1/workers/WHO/drain"],
  kick: ["Kick WHO?", "It is out for good: its certificate is revoked. A join token that is still good would let the same machine in as another worker.", "api/v1/workers/WHO/kick"],
};

let answer = null;

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
export async function act(kind, worker) {
  const [title, text, path] = ACTS[kind].map((words) => words.replace("WHO", worker ?? ""));
  let error = null;
  for (;;) {
    const needsToken = !token();
    const hint = needsToken ? " It needs the contents of api-token in the coordinator's state directory; this tab keeps it until it is closed." : "";
    const typed = await askPerson({ title, text: text + hint, needsToken, error, go: title.split(" ")[0] });
    if (typed == null) break;
    if (needsToken && !typed) {
      error = "Type the token.";
      continue;
    }
    if (needsToken) keepToken(typed);
    try {
      await call(path, { method: "POST" });
      break;
    } catch (refused) {
      if (refused.status === 401 || refused.status === 403) keepToken(null);
      error = refused.message;
    }
  }
  byId("ask").close();
}

/** Asks for a token to read with, until one was typed. */
export async function askToRead(why) {
  const typed = await askPerson({
    title: "This dashboard needs a token",
    text: "It is the contents of api-read-token, or of api-token, in the coordinator's state directory. This tab keeps it until it is closed.",
    needsToken: true,
    error: token() ? why : null,
    go: "Show the run",
  });
  keepToken(typed);
  byId("ask").close();
}
