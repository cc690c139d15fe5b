/** Numbers, sizes and durations as text, with their units. Pure. */

const PLAIN = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
const COMPACT = new Intl.NumberFormat("en-US", { notation: "compact", maximumSignificantDigits: 3 });
const NOTHING = "–";

/** Whether a value is a number that can be shown and drawn; JSON has NaN and the infinities as strings. */
export const isNumber = (value) => typeof value === "number" && Number.isFinite(value);

/** 1234567 as `1,234,567`. */
export function count(value) {
  return isNumber(value) ? PLAIN.format(value) : NOTHING;
}

/** 1234567 as `1.23M`; small numbers as they are. */
export function compact(value) {
  if (!isNumber(value)) return NOTHING;
  return Math.abs(value) < 10_000 ? measure(value) : COMPACT.format(value);
}

/** A measured number with four digits that count: `0.0123`, `12.35`, `1,235`. */
export function measure(value) {
  if (typeof value === "string") return value;
  if (!isNumber(value)) return NOTHING;
  if (value === 0 || Number.isInteger(value)) return PLAIN.format(value);
  const size = Math.abs(value);
  if (size >= 1000) return PLAIN.format(value);
  if (size < 0.0001) return value.toExponential(2);
  return String(Number(value.toPrecision(4)));
}

/** `812 samples/s`. */
export function rate(value, unit = "samples") {
  return isNumber(value) ? `${compact(value)} ${unit}/s` : NOTHING;
}

/** 0.4567 as `45.7 %`. */
export function percent(fraction) {
  if (!isNumber(fraction)) return NOTHING;
  const shown = fraction * 100;
  return `${shown >= 99.95 || shown === 0 ? Math.round(shown) : shown.toFixed(1)} %`;
}

/** Bytes as `1.2 MiB`. */
export function bytes(value) {
  if (!isNumber(value)) return NOTHING;
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let place = 0;
  let size = value;
  while (Math.abs(size) >= 1024 && place < units.length - 1) {
    size /= 1024;
    place += 1;
  }
  return `${place && size < 100 ? size.toFixed(1) : Math.round(size)} ${units[place]}`;
}

/** Seconds as `350 ms`, `12.4 s`, `3 min 20 s`, `1 h 20 min`, `2 d 3 h`. */
export function duration(seconds) {
  if (!isNumber(seconds)) return NOTHING;
  if (seconds < 0) return `−${duration(-seconds)}`;
  if (seconds === 0) return "0 s";
  if (seconds < 0.001) return `${Number((seconds * 1e6).toPrecision(3))} µs`;
  if (seconds < 1) return `${Number((seconds * 1000).toPrecision(3))} ms`;
  if (seconds < 10) return `${Number(seconds.toFixed(1))} s`;
  const whole = Math.round(seconds);
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return two(whole, 60, "min", 1, "s");
  const minutes = Math.round(whole / 60) * 60;
  if (minutes < 86_400) return two(minutes, 3600, "h", 60, "min");
  return two(whole, 86_400, "d", 3600, "h");
}

function two(seconds, large, largeName, small, smallName) {
  let first = Math.floor(seconds / large);
  let rest = Math.round((seconds % large) / small);
  if (rest * small === large) {
    first += 1;
    rest = 0;
  }
  return rest ? `${first} ${largeName} ${rest} ${smallName}` : `${first} ${largeName}`;
}

/** How long ago, or until when: `12 s ago`, `in 3 min`. */
export function relative(seconds) {
  if (!isNumber(seconds)) return NOTHING;
  if (Math.abs(seconds) < 1) return "now";
  const coarse = Math.abs(seconds) < 60 ? Math.round(Math.abs(seconds)) : Math.abs(seconds);
  const text = duration(coarse).split(" ").slice(0, 2).join(" ");
  return seconds > 0 ? `${text} ago` : `in ${text}`;
}

const pad = (value) => String(value).padStart(2, "0");

/** A moment in the reader's zone, exactly: `2026-01-31 13:00:05.250 UTC+01:00`. */
export function exact(moment) {
  const date = new Date(moment);
  if (Number.isNaN(date.getTime())) return "";
  const offset = -date.getTimezoneOffset();
  const zone = offset ? `${offset < 0 ? "−" : "+"}${pad(Math.trunc(Math.abs(offset) / 60))}:${pad(Math.abs(offset) % 60)}` : "";
  return `${day(date)} ${clock(date)}.${String(date.getMilliseconds()).padStart(3, "0")} UTC${zone}`;
}

/** `2026-01-31`. */
export function day(moment) {
  const date = new Date(moment);
  return `${date.getFullYear()}-${pad(date.getMonth() + 1)}-${pad(date.getDate())}`;
}

/** `13:00:05`. */
export function clock(moment) {
  const date = new Date(moment);
  return `${pad(date.getHours())}:${pad(date.getMinutes())}:${pad(date.getSeconds())}`;
}

/** `1 worker`, `2 workers`. */
export function plural(number, one, many = `${one}s`) {
  return `${count(number)} ${number === 1 ? one : many}`;
}

/** `in_group` as `In group`. */
export function words(name) {
  const text = String(name).replace(/[_.]/g, " ");
  return text.charAt(0).toUpperCase() + text.slice(1);
}

/** What went wrong and what to do, as sentences: the API's words have no stop, as they are shown apart elsewhere. */
export const sentences = ({ message, fix }) => [message, fix && fix[0].toUpperCase() + fix.slice(1)].filter(Boolean).map((text) => text + (/[.!?]$/.test(text) ? "" : ".")).join(" ");
