// From a record to lines: the record holds sums, and lines show their differences.

/** The numbers of a sum, as the coordinator writes them. */
export const DONE = { tokens: 0, compute: 1, wait: 2, data: 3, checkpoint: 4, wan: 5, dense: 6, encode: 7, encodeWait: 8, bubble: 9 };

/** Kinds of device time, of sums or their differences: no moment counts twice. */
export const TIMES = {
  compute: (done) => done[DONE.compute],
  encode: (done) => done[DONE.encodeWait],
  bubble: (done) => done[DONE.bubble],
  wait: (done) => Math.max(0, done[DONE.wait] - done[DONE.encodeWait] - done[DONE.bubble]),
  data: (done) => done[DONE.data],
  checkpoint: (done) => done[DONE.checkpoint],
};

/** Limit of recent samples at full resolution: half a minute. */
const RECENT_KEPT = 16;

/** Merges an update into a record. */
export function merge(record, update) {
  record.next = update.next;
  record.sites = update.sites;
  record.ways = update.ways;
  record.status = update.status;
  record.samples.push(...update.samples);
  record.rounds.push(...update.rounds);
  record.recent = record.recent.concat(update.recent).slice(-RECENT_KEPT);
  record.open_round = update.open_round;
  record.activity = record.activity.concat(update.activity).slice(-240);
  record.events = record.events.concat(update.events).slice(-1024);
}

/** The samples of a curve: the kept ones, and the newest, still to be combined with others. */
export function samplesOf(curves) {
  const newest = newestOf(curves);
  return newest === curves.samples[curves.samples.length - 1] ? curves.samples : [...curves.samples, newest];
}

/** The newest sample, or undefined. */
export function newestOf(curves) {
  const [kept, taken] = [curves.samples[curves.samples.length - 1], curves.recent[curves.recent.length - 1]];
  return taken && (!kept || taken.at_ms > kept.at_ms) ? taken : kept;
}

/** Rounds likewise. */
export function roundsOf(curves) {
  return curves.open_round ? [...curves.rounds, curves.open_round] : curves.rounds;
}

/** The start of training: the time of the first sample or round with some, in Unix milliseconds. */
export function origin(curves) {
  const sample = samplesOf(curves).find((one) => one.training > 0 || one.step > 0);
  const round = roundsOf(curves).find((one) => one.at_ms != null);
  return Math.min(sample?.at_ms ?? Infinity, round?.at_ms ?? Infinity);
}

/** Values of rounds along an axis; some have no known time. */
export function alongRounds(curves, axis, valueOf) {
  const from = origin(curves);
  const rounds = axis === "step" ? roundsOf(curves) : roundsOf(curves).filter((round) => round.at_ms != null);
  const points = rounds.map((round) => [axis === "step" ? round.step : (round.at_ms - from) / 1000, valueOf(round)]);
  return split(rising(points));
}

/** Values from the change of sums between samples, along an axis: `valueOf(before, after, seconds)`. */
export function alongSamples(curves, axis, valueOf) {
  const from = origin(curves);
  const points = [];
  let before = null;
  for (const sample of samplesOf(curves)) {
    if (before == null) {
      before = sample;
      continue;
    }
    // Along steps, a point needs new steps.
    if (axis === "step" && sample.step <= before.step) {
      if (sample.step < before.step) before = sample;
      continue;
    }
    const seconds = (sample.at_ms - before.at_ms) / 1000;
    if (seconds > 0 && sample.at_ms >= from) {
      points.push([axis === "step" ? sample.step : (sample.at_ms - from) / 1000, valueOf(before, sample, seconds)]);
    }
    before = sample;
  }
  return split(rising(points));
}

function split(points) {
  return [points.map((point) => point[0]), points.map((point) => point[1])];
}

/** A run that returned to a checkpoint repeats steps: the later ones count. */
function rising(points) {
  const kept = [];
  for (const point of points) {
    while (kept.length > 0 && kept[kept.length - 1][0] >= point[0]) kept.pop();
    kept.push(point);
  }
  return kept;
}

/** The sum of the run, or of the site at a place. */
export function sumOf(sample, place) {
  return place == null ? sample.run : sample.sites[place] ?? Object.values(DONE).map(() => 0);
}

export function perSecond(kind, place) {
  return (before, after, seconds) => (sumOf(after, place)[kind] - sumOf(before, place)[kind]) / seconds;
}

/** The share of one of the [`TIMES`] in device time. */
export function shareOf(time) {
  return (before, after) => {
    const done = after.run.map((value, at) => value - before.run[at]);
    const all = done[DONE.compute] + done[DONE.wait] + done[DONE.data] + done[DONE.checkpoint];
    return all > 0 ? time(done) / all : null;
  };
}

/** Bits sent per value, against 32 as dense f32. */
export function bitsPerValue(place) {
  return (before, after) => {
    const dense = sumOf(after, place)[DONE.dense] - sumOf(before, place)[DONE.dense];
    return dense > 0 ? (32 * (sumOf(after, place)[DONE.wan] - sumOf(before, place)[DONE.wan])) / dense : null;
  };
}

/** A debiased exponential mean, like TensorBoard's; unknown values stay unknown. */
export function smoothed(values, weight) {
  if (weight <= 0) return values;
  let [sum, norm] = [0, 0];
  return values.map((value) => {
    if (value == null) return null;
    sum = weight * sum + (1 - weight) * value;
    norm = weight * norm + (1 - weight);
    return sum / norm;
  });
}

/** The last known value. */
export function latest(values) {
  for (let at = values.length - 1; at >= 0; at -= 1) if (values[at] != null) return values[at];
  return null;
}

/** The recent traffic of a site's workers, or of all. */
export function lately(record, place, seconds = 20) {
  // Samples of the curve may be far apart.
  const samples = record.recent.length > 1 ? record.recent : samplesOf(record);
  const last = samples[samples.length - 1];
  const first = samples.findLast((sample) => last && sample.at_ms <= last.at_ms - 1000 * seconds) ?? samples[0];
  if (!last || !first || last === first) return null;
  const passed = (last.at_ms - first.at_ms) / 1000;
  const done = sumOf(last, place).map((value, at) => value - sumOf(first, place)[at]);
  return { seconds: passed, done };
}

/** The state of a worker in one word, or its health if unusual. */
export function stateOf(member) {
  return member.state === "training" && member.health !== "steady" ? member.health : member.state;
}

/** All workers, present or absent, as rows. */
export function workersOf(status) {
  if (!status) return [];
  const role = (member) => {
    if (member.part == null) return "none yet";
    if (status.parts === 1) return "whole model";
    return member.copy == null ? `part ${member.part}/${status.parts}` : `copy ${member.copy}, part ${member.part}/${status.parts}`;
  };
  const here = status.members.map((member) => ({ ...member, role: role(member), word: stateOf(member), why: null }));
  const wordOf = (member) => (member.revoked ? "kicked" : member.left ? "left" : "gone");
  const gone = status.gone.map((member) => ({ ...member, role: "", word: wordOf(member), out: true }));
  return here.concat(gone);
}
