/** Series of a job or of the cluster: read at the resolution of the screen, and gone on with from what streams tell. */
import { html, useEffect, useMemo, useState } from "./lib.js";
import { useResource } from "./resource.js";
import { bytes, compact, count, duration, isNumber, measure } from "./ui/format.js";

/** How many points a chart of half the screen can show. */
export const pointsForScreen = () => Math.max(120, Math.min(600, Math.round(window.innerWidth / 2)));

const FORMATS = { bytes, s: duration, seconds: duration, "seconds per step": duration, records: count, rows: count, workers: count, slots: count };

/** How values of a unit are shown. */
export function formatOf(unit, name = "") {
  if (name.endsWith("samples_per_second")) return compact;
  return FORMATS[unit] || FORMATS[String(unit).split("/")[0]] || measure;
}

/** What a job's status says, as values of series, by name. */
export function valuesOf(job) {
  const status = job.status || {};
  const workers = status.workers || [];
  const values = {
    samples_per_second: status.samples_per_second, loss: status.loss, learning_rate: status.learning_rate,
    records_done: status.progress && status.progress.records_done, eta_seconds: status.eta_seconds,
    "workers.target": job.target_workers, "workers.running": workers.filter((one) => one.state === "running").length,
  };
  for (const worker of workers) values[`worker.${worker.index}.samples_per_second`] = worker.samples_per_second;
  for (const [name, value] of Object.entries(status.training_metrics || {})) values[`training.${name}`] = value;
  const servers = status.ps || [];
  if (servers.length) {
    values["ps.bytes"] = servers.reduce((sum, one) => sum + (one.bytes || 0), 0);
    values["ps.rows"] = servers.reduce((sum, one) => sum + (one.rows || 0), 0);
  }
  return values;
}

const NOTHING = new Map();
const EVERY_S = 1;
const MOST_TOLD = 1200;

/** Points told by streams since the page was opened, by name; `told` is changed and given back. */
export function append(told, job, by) {
  const now = by === "version" ? (job.status || {}).model_version : Date.parse(job.finished_at || new Date().toISOString()) / 1000;
  if (!isNumber(now)) return told;
  const measured = (job.status || {}).training_metrics_version;
  for (const [name, value] of Object.entries(valuesOf(job))) {
    if (!isNumber(value)) continue;
    const points = told.get(name) || [];
    const last = points.at(-1);
    const x = by === "version" && name.startsWith("training.") && isNumber(measured) ? measured : now;
    if (last && (x <= last[0] || (by === "time" && x - last[0] < EVERY_S && !name.startsWith("workers.")))) continue;
    points.push([x, value]);
    if (points.length > MOST_TOLD) points.splice(0, points.length - MOST_TOLD);
    told.set(name, points);
  }
  return told;
}

/** Points in order, up to the end of what was read: a point of a long span gives way to finer ones of the same time. */
export function inOrder(points, end) {
  const found = [];
  let next = Infinity;
  for (let place = points.length - 1; place >= 0; place -= 1) {
    const x = points[place][0];
    if (x < next && x <= end) {
      found.push(points[place]);
      next = x;
    }
  }
  return found.reverse();
}

/** What was read, and after its end what was told. */
export function joined(read, told, end = Infinity) {
  const byName = new Map(read.map((one) => [one.name, { ...one, points: inOrder(one.points, end) }]));
  for (const [name, points] of told) {
    const known = byName.get(name);
    const last = known && known.points.length ? known.points.at(-1)[0] : -Infinity;
    const later = points.filter((point) => point[0] > last);
    if (later.length) byName.set(name, { name, unit: known ? known.unit : "", points: [...(known ? known.points : []), ...later] });
  }
  return byName;
}

/**
 * All series of a job.
 *
 * @param {any} job as it stands; each new state of it is a point. Null: there are none.
 * @param {"time" | "version"} by
 * @param {[number, number] | null} range Unix seconds, or null for all.
 * @returns {{get: (name: string) => number[][], unit: (name: string) => string, names: string[], missing: boolean, error: any, loading: boolean}}
 *   loading: what was recorded is on its way; until then there are no points, not even those that streams tell.
 */
export function useJobSeries(job, by, range = null) {
  const query = { by, points: pointsForScreen() };
  const id = job && job.id;
  if (range && by === "time") Object.assign(query, { since: moment(range[0]), until: moment(range[1]) });
  const read = useResource(id && `/jobs/${encodeURIComponent(id)}/series`, query);
  const told = useMemo(() => new Map(), [id, by]);
  const [drawn, draw] = useState(0);
  useEffect(() => {
    if (job) append(told, job, by);
    draw((now) => now + 1);
  }, [job, told]);
  const loading = read.loading && read.data === undefined;
  const newest = range || loading ? NOTHING : told;
  const all = useMemo(() => joined(read.data ? read.data.series : [], newest, read.data && by === "time" ? read.data.to : Infinity), [read.data, newest, drawn]);
  return {
    get: (name) => (all.get(name) || { points: [] }).points,
    unit: (name) => (all.get(name) || { unit: "" }).unit,
    names: [...all.keys()].sort(),
    missing: read.missing, error: read.error, loading,
    said: read.data,
  };
}

/** Unix seconds as the API takes times. */
export const moment = (seconds) => new Date(seconds * 1000).toISOString();

/** What stands above charts whose history the API does not keep. */
export function SeriesNote({ series }) {
  if (!series.missing) return null;
  return html`<p class="note" role="status">This cluster keeps no history of this job: curves begin when this page was opened.</p>`;
}
