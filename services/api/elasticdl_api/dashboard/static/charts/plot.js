/** A uPlot in a figure: made, resized, redrawn in other colours, and taken away. Charts say what is in it. */
import { html, useEffect, useLayoutEffect, useRef, useState } from "../lib.js";
import uPlot from "../vendor/uplot.js";
import { Button } from "../ui/elements.js";
import { clock, count, day, exact, isNumber, measure } from "../ui/format.js";
import { saveBlob } from "../ui/save.js";
import { Empty, Loading } from "../ui/states.js";
import { color } from "./colors.js";

export const FONT = "11px system-ui, sans-serif";
/** Around a plot, from the top clockwise: at the right half of the widest label of the time axis, which may stand there. */
export const PADDING = [8, 30, 0, 0];

/** What stands at an axis of time: more of the clock the finer it is. */
function timeTicks(_plot, splits, _axis, _space, step) {
  return splits.map((at) => {
    const text = clock(at * 1000);
    if (step >= 86_400) return day(at * 1000).slice(5);
    return step >= 60 ? text.slice(0, 5) : text;
  });
}

const WHOLE = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 1e6, 1e7, 1e8, 1e9];

/** Some powers of ten between two numbers, six at most. */
export function powers(_plot, _axis, least, most) {
  const [first, last] = [Math.ceil(Math.log10(least) - 1e-9), Math.floor(Math.log10(most) + 1e-9)];
  const step = Math.max(1, Math.ceil((last - first) / 5));
  const found = [];
  for (let power = first; power <= last; power += step) found.push(Number(`1e${power}`));
  return found;
}

/** The axes of a chart. `unit` formats values. */
export function axes(by, unit = measure, log = false) {
  const look = { stroke: () => color("faint"), font: FONT, grid: { stroke: () => color("grid"), width: 1 }, ticks: { show: false } };
  return [
    { ...look, space: 70, size: 26, ...(by === "time" ? { values: timeTicks } : { incrs: WHOLE, values: (_plot, splits) => splits.map((at) => count(at)) }) },
    { ...look, space: 32, size: 58, gap: 4, ...(unit === count ? { incrs: WHOLE } : {}), ...(log ? { splits: powers, filter: (_plot, splits) => splits } : {}), values: (_plot, splits) => splits.map((value) => (value === null ? "" : unit(value))) },
  ];
}

/** The horizontal axis: never so narrow that its marks mean nothing. */
export function around(first, last, by) {
  const least = by === "time" ? 30 : 1;
  if (!isNumber(first) || !isNumber(last)) return [0, least];
  return last - first >= least ? [first, last] : [last - least, last];
}

/** A place on the horizontal axis as text. */
export const placeText = (by, x) => (by === "time" ? exact(x * 1000).replace(/\.000 UTC.*$/, "") : `version ${measure(x)}`);

/** The place of a chart that has nothing to show: not yet, or nothing. */
export function Blank({ title, note, height, loading = false, empty }) {
  return html`<figure class="chart" aria-label=${title}><figcaption><h3>${title}</h3>${note && html`<span class="note">${note}</span>`}</figcaption>
    <div class="canvas blank" style=${{ height: `${height + 22}px` }}>${loading ? html`<${Loading} height=${height} label=${`Loading ${title}`} />` : html`<${Empty} title=${empty} />`}</div></figure>`;
}

/** A cell of a CSV file: quoted where it has to be; no spreadsheet takes a name for a formula. */
const cell = (text) => {
  const safe = /^[=+\-@\t]/.test(text) ? `'${text}` : text;
  return /[",\r\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
};

/** Curves as CSV: a row for each x, in order, and a column for each curve; times as in the API. */
export function csvOf(curves, axis) {
  const rows = new Map();
  curves.forEach((curve, place) => {
    for (const [x, value] of curve.points) {
      if (!rows.has(x)) rows.set(x, new Array(curves.length).fill(""));
      rows.get(x)[place] = value === null ? "" : String(value);
    }
  });
  const places = [...rows.keys()].sort((a, b) => a - b);
  const lines = places.map((x) => [axis === "time" ? new Date(x * 1000).toISOString() : String(x), ...rows.get(x)].join());
  return [[axis, ...curves.map((curve) => cell(curve.label))].join(), ...lines, ""].join("\n");
}

/** A chart as a picture to be pasted elsewhere: on the page's ground, under its title and the names of its curves. */
function pictureOf(canvas, title, legend) {
  const scale = devicePixelRatio;
  const head = 24 * scale;
  const picture = Object.assign(document.createElement("canvas"), { width: canvas.width, height: canvas.height + head });
  const draw = picture.getContext("2d");
  draw.fillStyle = getComputedStyle(document.body).backgroundColor;
  draw.fillRect(0, 0, picture.width, picture.height);
  draw.font = `${12 * scale}px system-ui, sans-serif`;
  let left = 8 * scale;
  for (const [text, name] of [[title, "text"], ...legend.map((one) => [one.label, one.color])]) {
    draw.fillStyle = color(name);
    draw.fillText(text, left, 16 * scale);
    left += draw.measureText(text).width + 12 * scale;
  }
  draw.drawImage(canvas, 0, head);
  return picture;
}

/**
 * @param {{title: string, summary: string, options: (width: number) => object, data: any[], shape: string, by: string,
 *   height?: number, range?: [number, number] | null, onRange?: (range: [number, number] | null) => void,
 *   legend: {key: string, label: string, color: string, at: (plot: object, place: number | null) => string}[], note?: any,
 *   curves: import("./line.js").Curve[], axis?: string}} props  `curves` are saved as CSV, `axis` heads their column of x.
 *   `shape` names how the options are; when it changes the plot is made anew, else it only gets new data.
 */
export function Plot({ title, summary, options, data, shape, by, height = 180, range = null, onRange, legend, note, curves, axis = by }) {
  const holder = useRef(null);
  const plot = useRef(null);
  const latest = useRef({});
  latest.current = { legend, onRange, range, data };
  const values = useRef(new Map());
  const where = useRef(null);
  const [look, setLook] = useState(0);

  useEffect(() => {
    const redraw = () => setLook((count) => count + 1);
    window.addEventListener("themechange", redraw);
    return () => window.removeEventListener("themechange", redraw);
  }, []);

  useLayoutEffect(() => {
    const width = Math.max(120, holder.current.clientWidth);
    const read = (self) => {
      const place = self.cursor.idx ?? null;
      const x = place === null ? null : self.data[0][place];
      if (where.current) where.current.textContent = x === null || x === undefined ? "" : placeText(by, x);
      for (const one of latest.current.legend) {
        const element = values.current.get(one.key);
        if (element) element.textContent = one.at(self, place);
      }
    };
    const select = (self) => {
      const { left, width: wide } = self.select;
      if (wide > 4 && latest.current.onRange) latest.current.onRange([self.posToVal(left, "x"), self.posToVal(left + wide, "x")]);
    };
    const made = options(width);
    const all = {
      ...made, width, height, legend: { show: false }, padding: PADDING,
      cursor: { points: { size: 6 }, drag: { x: true, y: false, setScale: !onRange }, bind: onRange ? { dblclick: () => () => latest.current.onRange(null) } : {}, ...made.cursor },
      hooks: { ...made.hooks, setCursor: [read], setData: [read], ready: [read], setSelect: [select] },
    };
    const chart = new uPlot(all, latest.current.data, holder.current);
    plot.current = chart;
    const size = new ResizeObserver(([entry]) => {
      const next = Math.floor(entry.contentRect.width);
      if (next > 0 && next !== chart.width) chart.setSize({ width: next, height });
    });
    size.observe(holder.current);
    return () => {
      size.disconnect();
      chart.destroy();
      plot.current = null;
    };
  }, [shape, look, height]);

  const first = useRef(true);
  useEffect(() => {
    if (first.current) first.current = false;
    else if (plot.current) plot.current.setData(data);
    const [min, max] = range || around(data[0][0], data[0].at(-1), by); // uPlot would show years around a single moment
    if (plot.current) plot.current.setScale("x", { min, max });
    if (plot.current) plot.current.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
  }, [data, range && range[0], range && range[1]]);

  const keep = (key) => (element) => {
    if (element) values.current.set(key, element);
  };
  const file = title.toLowerCase().replace(/[^a-z0-9]+/g, "-");
  const saveCsv = () => saveBlob(`${file}.csv`, new Blob([csvOf(curves, axis)], { type: "text/csv" }));
  const savePng = () => pictureOf(plot.current.ctx.canvas, title, latest.current.legend).toBlob((blob) => saveBlob(`${file}.png`, blob));
  return html`<figure class="chart" aria-label=${title}>
    <figcaption><h3>${title}</h3>${note && html`<span class="note">${note}</span>`}<span class="where" ref=${where} aria-hidden="true"></span>
      <span class="save"><${Button} kind="quiet" class="small" aria-label=${`${title} as CSV`} onClick=${saveCsv}>CSV<//><${Button} kind="quiet" class="small" aria-label=${`${title} as PNG`} onClick=${savePng}>PNG<//></span></figcaption>
    <ul class="legend" aria-hidden="true">${legend.map((one) => html`<li key=${one.key}><i style=${{ background: `var(--${one.color})` }}></i>${one.label}<b ref=${keep(one.key)}></b></li>`)}</ul>
    <div class="canvas" ref=${holder} style=${{ height: `${height}px` }} role="img" aria-label=${`${title}: ${summary}`}></div>
  </figure>`;
}
