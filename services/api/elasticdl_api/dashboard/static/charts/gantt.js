/** The lives of processes: a row each, a bar for each incarnation, and at its end what it died of. */
import { html, useEffect, useLayoutEffect, useMemo, useRef, useState } from "../lib.js";
import { clock, duration, exact, plural, words } from "../ui/format.js";
import { color, faded } from "./colors.js";

const ROW = 20;
const GUTTER = 92;
const FOOT = 22;
const TONES = { finished: "done", stopped: "off", drained: "wait", superseded: "off", preempted: "warn", killed: "bad", out_of_memory: "bad", crashed: "bad", lost: "bad" };
const ROLES = ["master", "ps", "worker"];

/** Rows of lives: by role, then index. @returns {{name: string, lives: object[]}[]} */
export function rowsOf(processes) {
  const rows = new Map();
  for (const one of processes) {
    const key = `${one.role} ${one.index}`;
    if (!rows.has(key)) rows.set(key, { name: one.role === "master" ? "master" : key, role: one.role, index: one.index, lives: [] });
    rows.get(key).lives.push(one);
  }
  return [...rows.values()].sort((a, b) => ROLES.indexOf(a.role) - ROLES.indexOf(b.role) || a.index - b.index);
}

/** From the first launch until the last end, or `now`, in ms. */
export function extent(processes, now) {
  const starts = processes.map((one) => Date.parse(one.launched_at)).filter(Number.isFinite);
  const ends = processes.map((one) => (one.ended_at ? Date.parse(one.ended_at) : now));
  const from = starts.length ? Math.min(...starts) : now - 1000;
  return [from, Math.max(from + 1000, ...ends)];
}

/** What a life was, in words. */
export function lifeText(one) {
  const who = `${one.role === "master" ? "master" : `${one.role} ${one.index}`}, incarnation ${one.incarnation}`;
  const end = one.ended_at ? `${words(one.cause || "ended").toLowerCase()} after ${duration((Date.parse(one.ended_at) - Date.parse(one.launched_at)) / 1000)}` : one.drained_at ? "draining" : one.state || "alive";
  return `${who}: ${end}${one.exit_code ? ` (exit code ${one.exit_code})` : ""}`;
}

/**
 * @param {{processes: object[], range?: [number, number] | null, now: number, height?: number,
 *   onPick?: (process: object) => void}} props  `range` in Unix seconds; without it all of the time.
 */
export function Gantt({ processes, range, now, height = 300, onPick }) {
  const rows = useMemo(() => rowsOf(processes), [processes]);
  const scroller = useRef(null);
  const canvas = useRef(null);
  const [hover, setHover] = useState(null);
  const [width, setWidth] = useState(0);
  const [scroll, setScroll] = useState(0);
  const [look, setLook] = useState(0);
  const span = range ? [range[0] * 1000, range[1] * 1000] : extent(processes, now);
  const tall = Math.min(height, rows.length * ROW + FOOT);

  useLayoutEffect(() => {
    const size = new ResizeObserver(([entry]) => setWidth(Math.floor(entry.contentRect.width)));
    size.observe(scroller.current);
    const redraw = () => setLook((count) => count + 1);
    window.addEventListener("themechange", redraw);
    return () => {
      size.disconnect();
      window.removeEventListener("themechange", redraw);
    };
  }, []);
  useEffect(() => {
    if (width > 0) draw(canvas.current, rows, span, { width, height: tall, scroll, now });
  }, [rows, span[0], span[1], width, tall, scroll, now, look]);

  const find = (event) => {
    const box = canvas.current.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    const row = y < tall - FOOT ? rows[Math.floor((y + scroll) / ROW)] : null;
    const at = span[0] + ((x - GUTTER) / (width - GUTTER)) * (span[1] - span[0]);
    const life = row && row.lives.findLast((one) => Date.parse(one.launched_at) <= at && (one.ended_at ? Date.parse(one.ended_at) : now) + 3000 >= at);
    return life ? { life, x: Math.min(x, width - 240), y } : null;
  };
  const pick = (event) => {
    const found = find(event);
    if (found && onPick) onPick(found.life);
  };
  const deaths = processes.filter((one) => TONES[one.cause] === "bad").length;
  const summary = `${plural(rows.length, "process", "processes")}, ${plural(processes.length, "incarnation")}, ${plural(deaths, "unplanned end")}`;
  return html`<div class="gantt">
    <ul class="legend" aria-hidden="true"><li><i style=${{ background: "var(--line-1)", opacity: "0.4" }}></i>starting</li><li><i style=${{ background: "var(--line-1)" }}></i>at work</li>
      <li><i style=${{ background: "var(--wait)" }}></i>draining</li><li><i class="dot" style=${{ background: "var(--bad)" }}></i>died</li><li><i class="dot" style=${{ background: "var(--done)" }}></i>done</li></ul>
    <div class="scroller" ref=${scroller} style=${{ height: `${tall}px` }} onScroll=${(event) => setScroll(event.target.scrollTop)}
      onMouseMove=${(event) => setHover(find(event))} onMouseLeave=${() => setHover(null)} onClick=${pick} role="img" aria-label=${`Lives of processes: ${summary}`}>
      <div style=${{ height: `${rows.length * ROW + FOOT}px` }}><canvas ref=${canvas}></canvas></div>
    </div>
    ${hover && html`<div class="tip" style=${{ left: `${hover.x}px`, top: `${hover.y + 34}px` }}><b>${lifeText(hover.life)}</b>
      <span>${exact(hover.life.launched_at)}</span>${hover.life.message && html`<span>${hover.life.message}</span>`}</div>`}
  </div>`;
}

function draw(canvas, rows, [from, until], { width, height, scroll, now }) {
  const ratio = devicePixelRatio || 1;
  canvas.width = width * ratio;
  canvas.height = height * ratio;
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const ctx = canvas.getContext("2d");
  ctx.scale(ratio, ratio);
  ctx.font = "11px system-ui, sans-serif";
  ctx.textBaseline = "middle";
  const place = (at) => GUTTER + ((at - from) / (until - from)) * (width - GUTTER - 6);
  drawTicks(ctx, from, until, place, width, height);
  ctx.save();
  ctx.beginPath();
  ctx.rect(0, 0, width, height - FOOT);
  ctx.clip();
  const first = Math.floor(scroll / ROW);
  for (let at = first; at < rows.length && (at - first) * ROW < height + ROW; at += 1) {
    const y = at * ROW - scroll;
    ctx.fillStyle = color("text-2");
    ctx.textAlign = "left";
    ctx.fillText(rows[at].name, 2, y + ROW / 2);
    for (const life of rows[at].lives) drawLife(ctx, life, y, place, now);
  }
  ctx.restore();
}

function drawTicks(ctx, from, until, place, width, height) {
  const steps = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14_400, 28_800, 86_400, 172_800, 604_800];
  const wanted = ((until - from) / 1000) * (80 / Math.max(80, width - GUTTER));
  const step = (steps.find((one) => one >= wanted) || 2_592_000) * 1000;
  ctx.textAlign = "center";
  for (let at = Math.ceil(from / step) * step; at <= until; at += step) {
    const x = Math.round(place(at)) + 0.5;
    ctx.strokeStyle = color("grid");
    ctx.beginPath();
    ctx.moveTo(x, 0);
    ctx.lineTo(x, height - FOOT);
    ctx.stroke();
    ctx.fillStyle = color("faint");
    if (x > GUTTER + 16 && x < width - 20) ctx.fillText(step >= 60_000 ? clock(at).slice(0, 5) : clock(at), x, height - FOOT / 2);
  }
}

function drawLife(ctx, life, y, place, now) {
  const [begun, ready, drained, ended] = [life.launched_at, life.ready_at, life.drained_at, life.ended_at].map((at) => (at ? Date.parse(at) : null));
  const end = ended ?? now;
  const left = Math.max(GUTTER, place(begun));
  const right = Math.max(left + 2, place(end));
  if (right < GUTTER) return;
  const bar = (a, b, fill) => {
    ctx.fillStyle = fill;
    const start = Math.max(left, place(a));
    if (place(b) > start) ctx.fillRect(start, y + 5, Math.max(1, Math.min(right, place(b)) - start), ROW - 10);
  };
  const name = { master: "line-4", ps: "line-2" }[life.role] || "line-1";
  bar(begun, ready ?? end, faded(name, 0.4));
  if (ready !== null) bar(ready, drained ?? end, color(name));
  if (drained !== null) bar(drained, end, color("wait"));
  if (ended !== null) {
    ctx.fillStyle = color(TONES[life.cause] || "off");
    ctx.beginPath();
    ctx.arc(right, y + ROW / 2, 4, 0, 2 * Math.PI);
    ctx.fill();
  }
}
