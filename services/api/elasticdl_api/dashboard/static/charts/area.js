/** Areas stacked on each other over time, with a line for what they may be together. */
import { html, useMemo } from "../lib.js";
import uPlot from "../vendor/uplot.js";
import { isNumber, measure } from "../ui/format.js";
import { color, faded, seriesColor } from "./colors.js";
import { summarize } from "./line.js";
import { axes, Blank, Plot } from "./plot.js";

/**
 * @param {{title: string, areas: import("./line.js").Curve[], limit?: import("./line.js").Curve, height?: number, note?: any,
 *   range?: any, onRange?: any, empty?: string, loading?: boolean}} props  areas are stacked from the first up; `limit` is a dashed line.
 */
export function AreaChart({ title, areas, limit, height = 200, note, range, onRange, empty = "Nothing yet", loading = areas.some((area) => area.loading) }) {
  const drawn = areas.filter((area) => area.points.length > 0);
  const all = limit && limit.points.length ? [...drawn, limit] : drawn;
  const key = all.map((one) => `${one.key}:${one.points.length}:${one.points.at(-1)[0]}:${one.points.at(-1)[1]}`).join("|");
  const { data, own } = useMemo(() => stack(drawn, limit && limit.points.length ? limit : null), [key]);
  if (all.length === 0) {
    return html`<${Blank} title=${title} note=${note} height=${height} loading=${loading} empty=${empty} />`;
  }
  const names = drawn.map((area, place) => area.color || seriesColor(place));
  const stepped = uPlot.paths.stepped({ align: 1 });
  const options = () => ({
    scales: { x: { time: true }, y: { range: (_plot, _least, most) => [0, isNumber(most) && most > 0 ? most * 1.1 : 1] } },
    axes: axes("time", (limit || drawn[0]).format || measure),
    series: [
      {},
      // The highest first, so that lower ones are painted over it.
      ...drawn.map((_, place) => drawn.length - 1 - place).map((place) => ({
        stroke: () => color(names[place]), fill: () => faded(names[place], 0.35), width: 1, paths: stepped, points: { show: false }, spanGaps: true,
      })),
      ...(all.length > drawn.length ? [{ stroke: () => color("faint"), width: 1, dash: [4, 4], paths: stepped, points: { show: false }, spanGaps: true }] : []),
    ],
    bands: drawn.slice(1).map((_, place) => ({ series: [place + 1, place + 2] })),
  });
  const legend = [
    ...drawn.map((area, place) => ({
      key: area.key, label: area.label, color: names[place],
      at: (_plot, at) => (area.format || measure)(at === null ? area.points.at(-1)[1] : own[place][at]),
    })),
    ...(all.length > drawn.length ? [{ key: limit.key, label: limit.label, color: "faint", at: (plot, at) => measure(at === null ? limit.points.at(-1)[1] : plot.data.at(-1)[at]) }] : []),
  ];
  return html`<${Plot} title=${title} summary=${summarize(all, "time")} options=${options} data=${data} by="time" height=${height} range=${range}
    onRange=${onRange} note=${note} legend=${legend} curves=${all} shape=${all.map((one) => one.key).join("|")} />`;
}

/** The areas as heights above zero, highest first, on one list of x; a value stays until the next one. */
export function stack(areas, limit = null) {
  const tables = [...areas, ...(limit ? [limit] : [])].map((one) => [one.points.map((point) => point[0]), one.points.map((point) => point[1])]);
  if (tables.length === 0) return { data: [[]], own: [] };
  const joined = tables.length === 1 ? tables[0] : uPlot.join(tables);
  const filled = joined.slice(1).map((values, place) => {
    const until = areas[place] ? areas[place].points.at(-1)[0] : Infinity;
    let last = 0;
    return values.map((value, at) => {
      if (isNumber(value)) last = value;
      return joined[0][at] > until ? 0 : last;
    });
  });
  const own = filled.slice(0, areas.length);
  const heights = [];
  let below = joined[0].map(() => 0);
  for (const values of own) {
    below = values.map((value, at) => value + below[at]);
    heights.push(below);
  }
  return { data: [joined[0], ...heights.reverse(), ...filled.slice(areas.length)], own };
}
