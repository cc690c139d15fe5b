/** Each process in numbers: speed, where a step's time goes, memory, and how it ended. */
import { send } from "../../api.js";
import { AreaChart } from "../../charts/area.js";
import { Gantt } from "../../charts/gantt.js";
import { LineChart } from "../../charts/line.js";
import { seriesColor } from "../../charts/colors.js";
import { isOver } from "../../facts.js";
import { html, useState } from "../../lib.js";
import { go, href } from "../../address.js";
import { SeriesNote, useJobSeries } from "../../series.js";
import { Badge, Button, Panel } from "../../ui/elements.js";
import { bytes, count, duration, plural, words } from "../../ui/format.js";
import { saveJson } from "../../ui/save.js";
import { Empty, Loaded } from "../../ui/states.js";
import { Table } from "../../ui/table.js";
import { Elapsed, Moment, useNow } from "../../ui/time.js";
import { tellProblem } from "../../ui/toast.js";
import { curve, useProcesses } from "./overview.js";

const SERVER_TONES = { ready: "good", stopped: "off", lost: "bad" };
const SPEED_OF_WORKER = /^worker\.(\d+)\.samples_per_second$/;
const STEP = [["data", "line-5"], ["pull", "line-2"], ["compute", "line-1"], ["push", "line-4"], ["wait", "off"]];
const BAD = new Set(["killed", "out_of_memory", "crashed", "lost"]);
const FEW = 8;
const TRACE_S = [1, 5, 10, 30];

/** A bar of where the time of a step goes. */
function Split({ step }) {
  if (!step) return html`<span class="faint">–</span>`;
  const parts = STEP.filter(([name]) => step[name] > 0);
  const said = parts.map(([name]) => `${name} ${duration(step[name])}`).join(", ");
  return html`<span class="split" role="img" aria-label=${said} title=${said}>${parts.map(([name, color]) => html`<i key=${name} style=${{ flexGrow: String((100 * step[name]) / total(step)), background: `var(--${color})` }}></i>`)}</span>`;
}

const total = (step) => (step ? STEP.reduce((sum, [name]) => sum + (step[name] || 0), 0) : null);

const workerColumns = (job) => [
  { key: "index", label: "Worker", cell: (one) => html`<a href=${href(`/jobs/${job.id}/logs`, { role: "worker", index: one.index })}>worker ${one.index}</a>` },
  { key: "state", label: "State", cell: (one) => html`<${Badge} tone=${one.state === "running" ? (one.phase === "draining" ? "wait" : "good") : "busy"}>${words(one.phase || one.state)}<//>` },
  { key: "straggler", label: "", cell: (one) => one.straggler && html`<${Badge} tone="warn" title="Markedly slower than the others">Straggler<//>` },
  { key: "incarnation", label: "Incarnation", number: true, cell: (one) => count(one.incarnation), narrow: "hide" },
  { key: "records", label: "Records", number: true, cell: (one) => count(one.records), narrow: "hide" },
  { key: "speed", label: "Samples/s", number: true, cell: (one) => count(one.samples_per_second) },
  { key: "step", label: "Step", number: true, cell: (one) => duration(total(one.step)), narrow: "hide" },
  { key: "split", label: "Where a step's time goes", cell: (one) => html`<${Split} step=${one.step} />` },
];
const serverColumns = (job) => [
  { key: "index", label: "Parameter server", cell: (one) => html`<a href=${href(`/jobs/${job.id}/logs`, { role: "ps", index: one.index })}>ps ${one.index}</a>` },
  { key: "state", label: "State", cell: (one) => html`<${Badge} tone=${SERVER_TONES[one.state] || "busy"}>${words(one.state)}<//>` },
  { key: "version", label: "Version", number: true, cell: (one) => count(one.version) },
  { key: "bytes", label: "Memory", number: true, cell: (one) => bytes(one.bytes) },
  { key: "rows", label: "Rows", number: true, cell: (one) => count(one.rows) },
  { key: "load", label: "Load", number: true, title: "Share of the time that it is at work", cell: (one) => (typeof one.load === "number" ? `${Math.round(one.load * 100)} %` : "–") },
];
const lifeColumns = (job) => [
  { key: "who", label: "Process", cell: (one) => html`<a href=${href(`/jobs/${job.id}/logs`, { role: one.role, index: one.index })}>${one.role === "master" ? "master" : `${one.role} ${one.index}`}</a>` },
  { key: "incarnation", label: "Incarnation", number: true, cell: (one) => count(one.incarnation) },
  { key: "end", label: "Ended", cell: (one) => html`<${Badge} tone=${!one.ended_at ? "good" : BAD.has(one.cause) ? "bad" : "off"}>${one.ended_at ? words(one.cause || "ended") : words(one.state || "alive")}<//>` },
  { key: "launched", label: "Launched", number: true, cell: (one) => html`<${Moment} at=${one.launched_at} />`, narrow: "hide" },
  { key: "took", label: "Lived", number: true, cell: (one) => html`<${Elapsed} from=${one.launched_at} until=${one.ended_at} />` },
  { key: "code", label: "Exit code", number: true, cell: (one) => (one.exit_code === null || one.exit_code === undefined ? "–" : one.exit_code), narrow: "hide" },
  { key: "message", label: "Why", wide: true, cell: (one) => html`<span title=${one.message}>${one.message}</span>` },
];

/** Records what all processes do for some seconds; the answer is kept as a file. */
function Trace({ job }) {
  const [busy, setBusy] = useState(false);
  const [seconds, setSeconds] = useState(5);
  const record = async () => {
    setBusy(true);
    try {
      saveJson(`${job.id}.trace.json`, await send("POST", `/jobs/${encodeURIComponent(job.id)}/trace`, { seconds }));
    } catch (error) {
      tellProblem(error);
    }
    setBusy(false);
  };
  return html`<select aria-label="How long to record" disabled=${busy} value=${seconds} onChange=${(event) => setSeconds(Number(event.target.value))}>
      ${TRACE_S.map((one) => html`<option key=${one} value=${one}>${one} s</option>`)}</select>
    <${Button} class="small" icon="download" busy=${busy} onClick=${record}
      title="What all processes do meanwhile, for Perfetto or chrome://tracing">${busy ? `Recording ${seconds} s` : "Record a trace"}<//>`;
}

/** The workers whose speed was recorded, from the names of series. */
function recordedWorkers(names) {
  return names.map((name) => SPEED_OF_WORKER.exec(name)).filter(Boolean).map((found) => Number(found[1])).sort((one, other) => one - other);
}

/** The processes of a job. */
export function Processes({ job, events }) {
  const series = useJobSeries(job, "time");
  const lives = useProcesses(job, events);
  const over = isOver(job);
  const now = useNow(over ? 3_600_000 : 2_000);
  const { workers = [], ps: servers = [] } = job.status;
  const stragglers = workers.filter((one) => one.straggler);
  // A job that is over has no workers, and what they did is still to be seen.
  const indices = workers.length ? workers.map((one) => one.index) : recordedWorkers(series.names);
  const perWorker = indices.slice(0, FEW).map((index, place) => curve(series, `worker.${index}.samples_per_second`, `worker ${index}`, seriesColor(place)));
  const steps = STEP.map(([name, color]) => curve(series, `step.${name}`, name, color)).map((one) => ({ ...one, format: duration }));
  const pick = (one) => go(`/jobs/${job.id}/logs`, { role: one.role, index: one.index });
  return html`<div class="grid">
    <${SeriesNote} series=${series} />
    <${Panel} title="Workers" class="flush" note=${stragglers.length ? `${plural(stragglers.length, "straggler")}: ${stragglers.map((one) => one.index).join(", ")}` : over ? "" : plural(workers.length, "worker")}
      actions=${!over && html`<${Trace} job=${job} /><${Button} class="small" href=${href(`/jobs/${job.id}/stacks`)}>Stacks of all<//>`}>
      <${Table} caption="Workers" columns=${workerColumns(job)} rows=${workers} id=${(one) => String(one.index)} mark=${(one) => (one.straggler ? "warn" : undefined)} empty=${html`<${Empty} title=${over ? "The job is over" : "No worker is there yet"} />`} /><//>
    <${Panel} title="Speed of workers" class="half"><${LineChart} title=${indices.length > FEW ? `The first ${FEW} of ${indices.length}` : "Samples/s"} fromZero curves=${perWorker} /><//>
    <${Panel} title="Where the time of a step goes" class="half"><${AreaChart} title="Seconds per step, mean of workers" height=${180} areas=${steps} empty="No steps were measured yet" /><//>
    ${(servers.length > 0 || series.get("ps.bytes").length > 0) && html`
      <${Panel} title="Parameter servers" class="flush"><${Table} caption="Parameter servers" columns=${serverColumns(job)} rows=${servers} id=${(one) => String(one.index)} empty=${html`<${Empty} title="None is there" />`} /><//>
      <${Panel} class="third"><${LineChart} title="Memory of parameter servers" height=${130} fromZero curves=${[{ ...curve(series, "ps.bytes", "all", "line-2"), format: bytes }]} /><//>
      <${Panel} class="third"><${LineChart} title="Rows of tables" height=${130} fromZero curves=${[{ ...curve(series, "ps.rows", "all", "line-4"), format: count }]} /><//>
      <${Panel} class="third"><${LineChart} title="Load of parameter servers" height=${130} fromZero curves=${[{ ...curve(series, "ps.load", "mean", "line-3"), format: (value) => `${Math.round(value * 100)} %` }]} /><//>`}
    <${Panel} title="Lives" class="flush"><${Loaded} of=${lives} what="Lives of processes">${({ processes }) => html`
      <div class="inset"><${Gantt} processes=${processes} now=${now} height=${420} onPick=${pick} /></div>
      <${Table} caption="Lives of processes" columns=${lifeColumns(job)} rows=${processes.slice(-200).reverse()} id=${(one) => `${one.role}.${one.index}.${one.incarnation}`}
        mark=${(one) => (BAD.has(one.cause) ? "bad" : undefined)} empty=${html`<${Empty} title="None yet" />`} />`}<//><//>
  </div>`;
}
