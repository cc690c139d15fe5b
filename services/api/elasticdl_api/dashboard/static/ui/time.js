/** Moments on the page: short as text, exact on hover; one clock for all of them. */
import { html, useEffect, useState } from "../lib.js";
import { createStore, useStore } from "../store.js";
import { clock, day, duration, exact, relative } from "./format.js";

const now = createStore(Date.now());
let users = 0;
let timer = 0;

/** The time in ms, a new one each second, or each `everyMs`. */
export function useNow(everyMs = 1000) {
  useEffect(() => {
    users += 1;
    if (users === 1) {
      now.set(Date.now());
      timer = setInterval(() => now.set(Date.now()), 1000);
    }
    return () => {
      users -= 1;
      if (users === 0) clearInterval(timer);
    };
  }, []);
  return useStore(now, (time) => Math.floor(time / everyMs) * everyMs);
}

/** How long ago a moment was, or until it is: `3 min ago`. */
export function Ago({ at }) {
  const time = useNow();
  if (!at) return html`<span class="faint">–</span>`;
  const seconds = (time - Date.parse(at)) / 1000;
  const shown = seconds > -1.5 && seconds < 1.5 ? "now" : relative(Math.abs(seconds) >= 60 ? coarse(seconds) : Math.round(seconds));
  return html`<time datetime=${at} title=${exact(at)}>${shown}</time>`;
}

/** Whole minutes, and whole hours beyond two of them, so that a list does not flicker. */
function coarse(seconds) {
  const size = Math.abs(seconds) > 7200 ? 3600 : 60;
  return Math.trunc(seconds / size) * size;
}

/** A moment as clock time, with the day unless it is today. */
export function Moment({ at }) {
  if (!at) return html`<span class="faint">–</span>`;
  const today = day(Date.now()) === day(at);
  return html`<time datetime=${at} title=${exact(at)}>${today ? "" : `${day(at)} `}${clock(at)}</time>`;
}

/** How long something takes, from a moment until another, or until now. */
export function Elapsed({ from, until = null }) {
  const time = useNow();
  if (!from) return html`<span class="faint">–</span>`;
  const end = until ? Date.parse(until) : time;
  const title = `${exact(from)} – ${until ? exact(until) : "now"}`;
  return html`<time title=${title}>${duration(Math.max(0, Math.round((end - Date.parse(from)) / 1000)))}</time>`;
}

/** A value that is drawn again only when it has not changed for a while: for what is typed. */
export function useSettled(value, afterMs = 250) {
  const [settled, setSettled] = useState(value);
  useEffect(() => {
    const waiting = setTimeout(() => setSettled(value), afterMs);
    return () => clearTimeout(waiting);
  }, [value]);
  return settled;
}
