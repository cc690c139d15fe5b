/** The job at a glance: its failure, its ledger, its curves, its workers and their lives. */
import { Gantt } from "../../charts/gantt.js";
import { LineChart, whole } from "../../charts/line.js";
import { seriesColor } from "../../charts/colors.js";
import { isOver } from "../../facts.js";
import { html, useEffect, useMemo, useState } from "../../lib.js";
import { useResource, useThrottled } from "../../resource.js";
import { go, href, setQuery } from "../../address.js";
import { formatOf, SeriesNote, useJobSeries } from "../../series.js";
import { Button, Choice, Panel } from "../../ui/elements.js";
import { count, words } from "../../ui/format.js";
import { Empty, Loaded } from "../../ui/states.js";
import { Moment, useNow } from "../../ui/time.js";
import { Records } from "./records.js";

/** Kinds of events that no process begins or ends with. */
const QUIET = new Set(["evaluation", "checkpoint", "loss"]);

/** Lives of a job's processes, read anew when something happened to it. */
export function useProcesses(job, events) {
  const read = useResource(`/jobs/${encodeURIComponent(job.id)}/processes`, { limit: 1000 });
  const reloadSoon = useThrottled(read.reload, 3_000);
  const { workers = [], ps = [] } = job.status || {};
  const alive = [...workers, ...ps].map((one) => `${one.index}.${one.incarnation}.${one.state}.${one.phase}`).join();
  const told = events.filter((one) => !QUIET.has(one.kind)).length;
  useEffect(() => {
    if (read.data && !read.missing) reloadSoon();
  }, [alive, job.state, told]);
  return read;
}

/** The overview. */
export function Overview({ job, events, query }) {
  const by = query.by === "version" ? "version" : "time";
  const [range, setRange] = useState(null);
  const overTime = useJobSeries(job, "time", range);
  const overVersions = useJobSeries(by === "version" ? job : null, "version");
  const series = by === "version" ? overVersions : overTime;
  const clock = useNow(10_000) / 1000 + 10;
  const now = job.finished_at ? Date.parse(job.finished_at) / 1000 : clock;
  const began = Date.parse(job.started_at || job.created_at) / 1000;
  const zoom = { range: range || [began, Math.max(now, began + 30)], onRange: setRange };
  const curves = by === "time" ? zoom : {};
  return html`<div class="grid">
    ${job.error && job.state === "FAILED" && html`<${Failure} error=${job.error} />`}
    ${job.status.degraded && !isOver(job) && html`<p class="callout" role="status"><b>Degraded:</b> ${job.status.degraded}</p>`}
    <${Records} job=${job} />
    <${Panel} title="Curves" actions=${html`${range && html`<${Button} class="small" onClick=${() => setRange(null)}>Whole time<//>`}
        <label class="row"><input type="checkbox" checked=${query.log === "1"} onChange=${(event) => setQuery({ log: event.target.checked ? "1" : null })} /> Log scale of the loss</label>
        <${Choice} label="Horizontal axis" options=${[["time", "Over time"], ["version", "Over model versions"]]} value=${by} onChoose=${(value) => setQuery({ by: value === "time" ? null : value })} />`}>
      <${SeriesNote} series=${series} />
      <div class="grid">
        <div class="half"><${LineChart} title="Speed" by=${by} fromZero curves=${[curve(series, "samples_per_second", "samples/s", seriesColor(0))]} ...${curves} /></div>
        <div class="half"><${LineChart} title="Loss" by=${by} log=${query.log === "1"} curves=${[curve(series, "loss", "training", seriesColor(0)), { ...curve(series, "evaluation.loss", "evaluated", seriesColor(2)), dots: true }]} ...${curves} /></div>
        ${metricNames(series.names).map((name) => html`<div class="half" key=${name}><${LineChart} title=${words(name)} by=${by} ...${curves}
          curves=${[curve(series, `training.${name}`, "training", seriesColor(0)), { ...curve(series, `evaluation.${name}`, "evaluated", seriesColor(2)), dots: true }]} /></div>`)}
      </div>
    <//>
    <${WorkersPanel} job=${job} series=${overTime} ...${zoom} />
    <${LivesPanel} job=${job} events=${events} range=${zoom.range} />
  </div>`;
}

/** One of the series as a curve. */
export const curve = (series, name, label, color) => ({ key: name, label, color, points: series.get(name), format: formatOf(series.unit(name), name), loading: series.loading });

/** The metrics that have curves, loss aside. */
export function metricNames(names) {
  const found = names.filter((name) => /^(training|evaluation)\./.test(name)).map((name) => name.replace(/^\w+\./, ""));
  return [...new Set(found)].filter((name) => name !== "loss").sort();
}

/** Why a job failed, beside what to do about it. */
export function Failure({ error }) {
  return html`<${Panel} title="Why it failed" class="failure">
    <div class="grid">
      <div class=${error.traceback ? "two-thirds stack" : "stack"}><p class="cause">${error.message}</p>${error.traceback && html`<pre tabindex="0" aria-label="Traceback">${error.traceback}</pre>`}</div>
      ${error.fix && html`<div class="third stack"><h3>What to do</h3><p class="fix">${error.fix}</p></div>`}
    </div><//>`;
}

/** Decisions of the scheduler on a job, the last first. */
export function useDecisions(job, limit = 100) {
  const read = useResource("/scheduler/decisions", { job: job.id, limit });
  useEffect(() => {
    if (read.data) read.reload();
  }, [job.target_workers, job.target_reason]);
  return useMemo(() => ((read.data && read.data.decisions) || []).flatMap((one) => one.changes.filter((change) => change.job_id === job.id)), [read.data]);
}

function WorkersPanel({ job, series, range, onRange }) {
  const decisions = useDecisions(job);
  const marks = useMemo(() => decisions.map((one) => ({ x: Date.parse(one.at) / 1000, label: `${one.before} to ${one.after}: ${one.text}`, tone: one.after < one.before ? "warn" : "good" })), [decisions]);
  const target = { ...whole(curve(series, "workers.target", "target", "line-5")), dashed: true, format: count };
  const running = { ...whole(curve(series, "workers.running", "at work", "line-1")), format: count };
  return html`<${Panel} title="Workers" note="Decisions of the scheduler are marked"><div class="grid">
    <div class="two-thirds"><${LineChart} title="Target and actual" fromZero height=${170} curves=${[target, running]} marks=${marks} range=${range} onRange=${onRange} /></div>
    <div class="third"><h3>Last decisions</h3>${decisions.length === 0 ? html`<${Empty} title="None yet" />` : html`<ol class="decisions">${decisions.slice(0, 5).map((one) => html`
      <li key=${one.sequence}><span class="faint"><${Moment} at=${one.at} /></span> <b>${one.before} → ${one.after}</b><p>${one.text}</p></li>`)}</ol>`}</div>
  </div><//>`;
}

function LivesPanel({ job, events, range }) {
  const read = useProcesses(job, events);
  const now = useNow(isOver(job) ? 3_600_000 : 2_000);
  const pick = (one) => go(`/jobs/${job.id}/logs`, { role: one.role, index: one.index });
  return html`<${Panel} title="Lives of processes" note="Click one for its log" actions=${html`<a href=${href(`/jobs/${job.id}/processes`)}>All numbers</a>`}>
    <${Loaded} of=${read} what="Lives of processes" height=${120}>${({ processes }) => (processes.length === 0
      ? html`<${Empty} title="No process was launched yet" />`
      : html`<${Gantt} processes=${processes} now=${now} range=${range} onPick=${pick} />`)}<//><//>`;
}
