// The summary of a run: progress, speed and problems.

import { byId, el, keyed, setAttribute, setText } from "./elements.js";
import { bytes, clock, DASH, duration, number, percent, plural, rate } from "./words.js";
import { DONE, lately } from "./series.js";

const PHASES = {
  gathering: ["waiting for workers", "calm"], preparing: ["preparing", "calm"], training: ["training", "good"],
  draining: ["ending", "warn"], finished: ["finished", "done"],
};

export function showSummary(record) {
  const status = record.status;
  setText(byId("name"), record.meta.name);
  document.title = `${record.meta.name} – Longhaul`;
  setText(byId("foot"), `Run ${record.meta.run}, begun ${clock(record.meta.begun_ms)}. ${record.meta.about}.`);
  byId("way").hidden = byId("phase").hidden = !status;
  if (!status) return;
  showPhase(status, record.live);
  const done = status.steps > 0 ? status.step / status.steps : 0;
  byId("progress").value = done;
  setText(byId("steps"), `step ${number(status.step)} of ${number(status.steps)} (${percent(done)}), round ${number(status.round)} of ${number(status.rounds)}`
    + (status.generation == null ? "" : `, generation ${status.generation}`));
  setText(byId("eta"), eta(status, record.live));
  showProblems(record.live ? status.problems : [], status.plan);
  showTiles(record, status);
}

function showPhase(status, live) {
  const [word, tone] = PHASES[status.phase] ?? [status.phase, "calm"];
  const phase = byId("phase");
  const held = status.suspended ? "stopped for now" : "paused";
  const isHeld = (status.suspended || status.paused) && status.phase !== "finished";
  setText(phase, isHeld ? held : live || status.phase === "finished" ? word : `${word} when last heard`);
  setAttribute(phase, "class", `pill state-${isHeld ? "warn" : tone}`);
}

function eta(status, live) {
  if (!live || status.phase === "finished" || status.eta_s == null) return "";
  return `${duration(status.eta_s)} left, until about ${clock(Date.now() + 1000 * status.eta_s)}`;
}

function showProblems(problems, plan) {
  const lines = problems.slice(0, 8);
  if (problems.length > lines.length) lines.push(`and ${problems.length - lines.length} more`);
  byId("problems").hidden = lines.length === 0;
  // Screen readers announce changes of an existing element only. A change of numbers alone is no news.
  const news = lines.join(" ").replace(/[0-9][0-9.,]*/g, "#");
  if (byId("heard").news !== news) setText(byId("heard"), lines.join(" "));
  byId("heard").news = news;
  keyed(byId("problems"), lines, (line) => line, (line) => el("p", null, line), () => {});
  if (plan) setText(byId("foot"), `${byId("foot").textContent} Plan: ${plan.replace(/^the plan: /, "")}`);
}

function showTiles(record, status) {
  const unit = record.meta.images ? "images" : "tokens";
  const recent = lately(record, null);
  const training = status.members.filter((member) => member.state === "training").length;
  const tiles = [
    ["Loss", number(status.loss), `held-out ${number(status.validation_loss)}`],
    ["Speed", record.live ? number(status.tokens_per_s, 3) : number(status.tokens_per_s_mean, 3), record.live ? `${unit} per second, ${number(status.tokens_per_s_mean, 3)} on average` : `${unit} per second, on average`],
    ["Of local speed", percent(status.share_of_local_speed_mean), "computing, not waiting for others"],
    ["Data wait", percent(status.data_wait_share, 2), `${duration(status.data_wait_ms / 1000)} in total, over all devices`],
    ["Sent between sites", bytes(status.wan_bytes), record.live && recent ? `${rate(recent.done[DONE.wan] / recent.seconds)} lately` : `dense: ${bytes(status.dense_bytes)}`],
    ["Saved", status.bytes_ratio == null ? DASH : `${number(status.bytes_ratio, 3)} ×`, status.bytes_ratio == null ? "nothing to compare with" : `${bytes(Math.max(0, status.dense_bytes - status.wan_bytes))} less than dense f32`],
    ["Workers", number(training), `${number(status.members.length)} present, ${number(status.gone.length)} absent`],
    ["Samples", number(status.samples_counted), status.samples_pending ? `${number(status.samples_pending)} to reassign` : `${number(status.tokens)} ${unit} processed`],
  ];
  if (status.validation_accuracy != null) tiles.splice(1, 0, ["Accuracy", percent(status.validation_accuracy, 4), "on held-out images"]);
  if (status.parity) {
    tiles.push(["Replicas", status.parity.equal ? "equal" : "DIFFER", `after round ${number(status.parity.round)}, ${status.parity.hash.slice(0, 8)}`]);
  }
  if (status.privacy) tiles.push(["Privacy spent", `ε ${number(status.privacy.epsilon, 3)}`, `of ${number(status.privacy.epsilon_at_the_end, 3)} at δ ${status.privacy.delta}`]);
  keyed(byId("tiles"), tiles, ([name]) => name,
    ([name]) => el("div", { class: "tile" }, el("dt", null, name), el("dd", null, el("span"), el("small"))),
    (tile, [, value, more]) => {
      setText(tile.querySelector("span"), value);
      setText(tile.querySelector("small"), more);
    });
}
