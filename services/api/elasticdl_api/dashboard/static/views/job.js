/** One job: what it does, why, and what was lost. */
import { endOf, fractionOf, isOver, workersOf } from "../facts.js";
import { html, useMemo, useRef, useState } from "../lib.js";
import { useJobStream } from "../live.js";
import { useResource, useThrottled } from "../resource.js";
import { href } from "../address.js";
import { JobActions } from "../ui/actions.js";
import { Copyable, Meter, Stat, StateBadge, Tabs } from "../ui/elements.js";
import { compact, count, measure, percent, words } from "../ui/format.js";
import { Empty, ErrorState, Loading } from "../ui/states.js";
import { Ago, Elapsed } from "../ui/time.js";
import { Events } from "./job/events.js";
import { Files } from "./job/files.js";
import { Logs } from "./job/logs.js";
import { Overview } from "./job/overview.js";
import { Processes } from "./job/processes.js";
import { Specification } from "./job/specification.js";
import { Why } from "./job/why.js";

const PARTS = [
  ["", "Overview", Overview],
  ["processes", "Processes", Processes],
  ["why", "Why and what if", Why],
  ["events", "Events", Events],
  ["logs", "Logs", Logs],
  ["files", "Files", Files],
  ["specification", "Specification", Specification],
];
const MOST_EVENTS = 5_000;
const RELOAD_MS = 5_000;

/** The view's title. */
export const title = (params) => params.id;

/** The view. */
export default function Job({ params, query }) {
  const { id } = params;
  const read = useResource(`/jobs/${encodeURIComponent(id)}`);
  const [live, setLive] = useState(null);
  const [events, setEvents] = useState([]);
  const seen = useRef(0);
  const reloadSoon = useThrottled(read.reload, RELOAD_MS);
  useJobStream(id, (messages) => {
    const status = messages.findLast((one) => one.event === "status");
    if (status) setLive(status.data);
    const fresh = messages.filter((one) => one.event === "event" && one.data.id > seen.current).map((one) => one.data);
    if (fresh.length) {
      const first = seen.current === 0;
      seen.current = fresh.at(-1).id;
      setEvents((now) => [...now, ...fresh].slice(-MOST_EVENTS));
      if (!first) reloadSoon(); // checkpoints, evaluations and artifacts come with events
    }
    if (messages.some((one) => one.event === "end")) read.reload();
  });
  const job = useMemo(() => {
    if (!read.data) return null;
    return live && Date.parse(live.updated_at) >= Date.parse(read.data.updated_at) ? { ...read.data, ...live } : read.data;
  }, [read.data, live]);

  if (job === null) {
    if (read.missing) return html`<${Empty} title=${`There is no job ${id}`}><a href="#/jobs">All jobs</a><//>`;
    if (read.error) return html`<${ErrorState} error=${read.error} retry=${read.reload} />`;
    return html`<${Loading} height=${400} label="Loading the job" />`;
  }
  const done = (answer) => {
    if (answer) setLive(answer);
    read.reload(); // what streams do not tell: labels
  };
  const part = PARTS.find(([name]) => name === (params.tab || ""));
  const Part = part ? part[2] : () => html`<${Empty} title="There is no such part of a job" />`;
  const counts = { events: events.length, files: job.artifacts.length + job.checkpoints.length };
  const tabs = PARTS.map(([name, label]) => ({ name, label, href: href(`/jobs/${id}${name && `/${name}`}`), count: counts[name] }));
  return html`<div class="view">
    <div class="head"><h1>${job.name}</h1><span class="row"><code class="faint">${job.id}</code><${Copyable} text=${job.id} label="Copy the id" /></span>
      <${StateBadge} state=${job.state} desired=${job.desired} /><span class="grow"></span>
      <${JobActions} job=${job} onDone=${done} />
      <p class="reason" title=${job.reason}>${isOver(job) ? job.reason : job.target_reason || job.reason}</p>
      <${Labels} labels=${job.spec.labels} /></div>
    <${Numbers} job=${job} />
    <${Tabs} tabs=${tabs} chosen=${params.tab || ""} label="Parts of the job" />
    <${Part} job=${job} events=${events} query=${query} reload=${read.reload} />
  </div>`;
}

/** A job's labels; each leads to all jobs that have it. */
function Labels({ labels }) {
  const all = Object.entries(labels || {}).map(([key, value]) => `${key}=${value}`);
  if (all.length === 0) return null;
  return html`<ul class="labels" aria-label="Labels">${all.map((label) => html`<li key=${label}><a href=${href("/jobs", { label })} title=${`All jobs with ${label}`}>${label}</a></li>`)}</ul>`;
}

/** The most important numbers. */
function Numbers({ job }) {
  const status = job.status || {};
  const progress = status.progress || {};
  const over = isOver(job);
  const fraction = fractionOf(job);
  const end = endOf(job);
  const metrics = Object.entries(status.metrics || {});
  const [name, value] = metrics.find(([one]) => one !== "loss") || metrics[0] || [];
  return html`<dl class="stats">
    <${Stat} name="Progress" value=${fraction === null ? "–" : percent(fraction)} title=${`${count(progress.records_done)} of ${count(progress.records_total)} records`}
      note=${html`<span class="hidden">${count(progress.records_done)} records</span><${Meter} value=${fraction || 0} label="Progress" />`} />
    <${Stat} name="Records" value=${html`${compact(progress.records_done)} <span class="faint">/ ${compact(progress.records_total)}</span>`} note=${`epoch ${count(progress.epoch)} of ${count(progress.num_epochs)} · version ${count(status.model_version)}`} title=${`${count(progress.records_done)} of ${count(progress.records_total)} records`} />
    <${Stat} name="Speed" value=${over ? "–" : compact(status.samples_per_second)} note="samples/s" />
    <${Stat} name="Loss" value=${measure(status.loss)} note=${typeof status.learning_rate === "number" ? `learning rate ${measure(status.learning_rate)}` : "training"} />
    <${Stat} name=${name ? words(name) : "Evaluation"} value=${measure(value)} note=${typeof status.metrics_version === "number" ? `version ${count(status.metrics_version)}` : "last evaluation"} title="Of the last evaluation" />
    <${Stat} name="Workers" value=${over ? "–" : html`${workersOf(job)} <span class="faint">/ ${job.target_workers}</span>`} note=${`${job.min_workers} to ${job.max_workers} · priority ${job.priority}`} />
    ${job.spec.worker_resource_request && html`<${Stat} name="Devices" value=${job.spec.worker_resource_request} note="for each worker" />`}
    ${over
      ? html`<${Stat} name="Took" value=${job.started_at ? html`<${Elapsed} from=${job.started_at} until=${job.finished_at} />` : "–"} note=${html`ended <${Ago} at=${job.finished_at} />`} />`
      : html`<${Stat} name="Ends in" value=${end ? end.text : "–"} note=${end && end.band ? end.band : html`created <${Ago} at=${job.created_at} />`} />`}
  </dl>`;
}
