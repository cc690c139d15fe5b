/** Curves over time or model versions, with the band between the least and the most, exact points, and marks. */
import { html, useMemo } from "../lib.js";
import uPlot from "../vendor/uplot.js";
import { isNumber, measure } from "../ui/format.js";
import { color, faded, seriesColor } from "./colors.js";
import { axes, Blank, placeText, Plot } from "./plot.js";

const MOST_DOTS = 80;

/**
 * @typedef {{key: string, label: string, points: number[][], format?: (value: number) => string, color?: string,
 *   stepped?: boolean, dots?: boolean, dashed?: boolean, loading?: boolean}} Curve  points are [x, mean, min?, max?], by x.
 *
 * @param {{title: string, curves: Curve[], by?: "time" | "version", height?: number, fromZero?: boolean, log?: boolean, note?: any, axis?: string,
 *   marks?: {x: number, label: string, tone?: string}[], range?: [number, number] | null,
 *   onRange?: (range: [number, number] | null) => void, empty?: string, loading?: boolean}} props
 */
export function LineChart({ title, curves, by = "time", height = 180, fromZero = false, log = false, note, axis = by, marks = [], range, onRange, empty = "No points yet", loading = curves.some((curve) => curve.loading) }) {
  const odd = curves.reduce((sum, curve) => sum + oddPoints(curve), 0);
  const drawn = curves.map((curve) => (log ? { ...curve, points: curve.points.filter((point) => point[1] > 0).map(([x, mean]) => [x, mean]) } : curve))
    .filter((curve) => curve.points.some((point) => isNumber(point[1])));
  const key = drawn.map((curve) => `${curve.key}:${curve.points.length}:${curve.points.at(-1)[0]}:${curve.points.at(-1)[1]}:${curve.points[0][0]}`).join("|");
  const { data, parts } = useMemo(() => align(drawn), [key]);
  const few = (curve) => curve.points.length <= MOST_DOTS;
  const shape = `${by}|${fromZero}|${log}|${drawn.map(few).join()}|${drawn.map((one) => one.key).join("|")}|${parts.map((part) => part.band).join()}|${marks.length}`;
  if (drawn.length === 0) {
    return html`<${Blank} title=${title} note=${note} height=${height} loading=${loading} empty=${odd ? saidOfOdd(odd) : empty} />`;
  }
  const format = drawn[0].format || measure;
  const names = drawn.map((curve, place) => curve.color || seriesColor(place));
  const options = () => ({
    scales: { x: { time: by === "time" }, y: log ? { distr: 3 } : { range: (_plot, least, most) => spread(least, most, fromZero) } },
    axes: axes(by, format, log),
    series: [{}, ...parts.map((part) => line(part, drawn[part.curve], names[part.curve]))],
    bands: parts.flatMap((part, place) => (part.band === "max" ? [{ series: [place + 1, place + 2], fill: () => faded(names[part.curve], 0.16) }] : [])),
    hooks: { draw: [(plot) => drawMarks(plot, marks)] },
  });
  const legend = drawn.map((curve, place) => ({
    key: curve.key, label: curve.label, color: names[place],
    at: (plot, at) => {
      const values = plot.data[parts.findIndex((part) => part.curve === place && part.band === "") + 1];
      const value = at === null ? curve.points.at(-1)[1] : nearest(values, at);
      return (curve.format || measure)(value);
    },
  }));
  return html`<${Plot} title=${title} summary=${summarize(drawn, by, marks)} options=${options} data=${data} shape=${shape} by=${by}
    height=${height} range=${range} onRange=${onRange} legend=${legend} curves=${curves} axis=${axis} note=${odd ? html`${note} ${saidOfOdd(odd)}` : note} />`;
}

/** How many points of a curve cannot be drawn: NaN and the infinities. */
export const oddPoints = (curve) => curve.points.filter((point) => point[1] !== null && !isNumber(point[1])).length;

/** What is said of points that cannot be drawn. */
export const saidOfOdd = (many) => (many === 1 ? "1 point is NaN or infinite" : `${many} points are NaN or infinite`);

/** A curve of whole numbers: of a span the most that there were, where the mean is none. */
export const whole = (curve) => ({ ...curve, stepped: true, points: curve.points.map(([x, mean, , most]) => [x, isNumber(most) ? most : mean]) });

/** The curves on one list of x: uPlot's form. A curve with a band is three lines: most, least, mean. */
export function align(curves) {
  const parts = [];
  const tables = [];
  curves.forEach((curve, place) => {
    const numbers = curve.points.filter((point) => isNumber(point[1]));
    const xs = numbers.map((point) => point[0]);
    const bands = numbers.some((point) => point.length > 3 && point[3] > point[2]);
    const columns = [];
    for (const [band, index] of bands ? [["max", 3], ["min", 2], ["", 1]] : [["", 1]]) {
      parts.push({ curve: place, band });
      columns.push(numbers.map((point) => (isNumber(point[index]) ? point[index] : point[1])));
    }
    tables.push([xs, ...columns]);
  });
  return { data: tables.length === 1 ? tables[0] : tables.length ? uPlot.join(tables) : [[]], parts };
}

function line(part, curve, name) {
  const paths = curve.stepped ? uPlot.paths.stepped({ align: 1 }) : undefined;
  if (part.band) return { show: true, width: 0, points: { show: false }, spanGaps: true, paths };
  const points = { show: Boolean(curve.dots && curve.points.length <= MOST_DOTS) || curve.points.length === 1, size: curve.dots ? 6 : 5, width: 1, fill: () => color(name), stroke: () => color(name) };
  return {
    stroke: () => color(name), width: 1.5, spanGaps: true, points, dash: curve.dashed ? [5, 4] : undefined, paths,
  };
}

/** The values that an axis shows, with a little room; from zero where that is the honest picture. */
export function spread(least, most, fromZero) {
  if (!isNumber(least) || !isNumber(most)) return [0, 1];
  if (fromZero) return [Math.min(0, least), most > 0 ? most * 1.1 : 1];
  const room = (most - least || Math.abs(most) || 1) * 0.08;
  return [least - room, most + room];
}

function nearest(values, at) {
  if (!values) return null;
  for (let back = 0; back < 200; back += 1) {
    if (isNumber(values[at - back])) return values[at - back];
    if (isNumber(values[at + back])) return values[at + back];
  }
  return null;
}

function drawMarks(plot, marks) {
  const { ctx, bbox } = plot;
  ctx.save();
  ctx.lineWidth = devicePixelRatio;
  ctx.setLineDash([2 * devicePixelRatio, 3 * devicePixelRatio]);
  for (const mark of marks) {
    const x = Math.round(plot.valToPos(mark.x, "x", true));
    if (x < bbox.left || x > bbox.left + bbox.width) continue;
    ctx.strokeStyle = color(mark.tone || "faint");
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
  }
  ctx.restore();
}

/** What a chart shows, in words. */
export function summarize(curves, by, marks = []) {
  const said = curves.map((curve) => {
    const numbers = curve.points.map((point) => point[1]).filter(isNumber);
    if (numbers.length === 0) return `${curve.label}: no numbers`;
    let least = numbers[0];
    let most = numbers[0];
    for (const value of numbers) {
      if (value < least) least = value;
      if (value > most) most = value;
    }
    const format = curve.format || measure;
    const from = placeText(by, curve.points[0][0]);
    const until = placeText(by, curve.points.at(-1)[0]);
    return `${curve.label} last ${format(numbers.at(-1))}, least ${format(least)}, most ${format(most)}, from ${from} to ${until}`;
  });
  return [...said, ...marks.slice(-5).map((mark) => `${placeText(by, mark.x)}: ${mark.label}`)].join("; ");
}
