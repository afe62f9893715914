// Numbers and times for people. An unknown value is null, shown as a dash.

export const DASH = "–";

/** Up to four significant digits: 3.142, 0.0123, 1,234,567. */
export function number(value, digits = 4) {
  if (value == null || !Number.isFinite(value)) return DASH;
  const size = Math.abs(value);
  if (size >= 1000) return Math.round(value).toLocaleString("en-US");
  if (size > 0 && size < 1e-4) return value.toExponential(2);
  return String(Number(value.toPrecision(digits)));
}

/** Bytes in units of 1024. */
export function bytes(value) {
  if (value == null || !Number.isFinite(value)) return DASH;
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let at = 0;
  for (; Math.abs(value) >= 1024 && at < units.length - 1; at += 1) value /= 1024;
  return `${Number(value.toPrecision(3))} ${units[at]}`;
}

/** Bytes per second. */
export function rate(value) {
  return value == null ? DASH : `${bytes(value)}/s`;
}

export function percent(share, digits = 3) {
  return share == null || !Number.isFinite(share) ? DASH : `${Number((100 * share).toPrecision(digits))} %`;
}

/** Seconds: 12 s, 3 min 20 s, 4 h 5 min, 2 d 3 h. */
export function duration(seconds) {
  if (seconds == null || !Number.isFinite(seconds)) return DASH;
  if (seconds < 60) return `${seconds < 10 ? Number(seconds.toFixed(1)) : Math.round(seconds)} s`;
  const whole = Math.round(seconds);
  const [d, h, m, s] = [Math.floor(whole / 86400), Math.floor(whole / 3600) % 24, Math.floor(whole / 60) % 60, whole % 60];
  if (d > 0) return `${d} d ${h} h`;
  if (h > 0) return `${h} h ${m} min`;
  return `${m} min ${s} s`;
}

/** The time of day, with the date unless it is today. */
export function clock(ms, now = Date.now()) {
  const at = new Date(ms);
  const time = at.toLocaleTimeString("en-GB");
  return at.toDateString() === new Date(now).toDateString() ? time : `${at.toLocaleDateString("en-CA")} ${time}`;
}

export function plural(count, one, many = `${one}s`) {
  return `${count.toLocaleString("en-US")} ${count === 1 ? one : many}`;
}
