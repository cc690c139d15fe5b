/** The cluster: who has the slots, who waits and why, what was decided, and how the parts are. */
import { AreaChart } from "../charts/area.js";
import { LineChart } from "../charts/line.js";
import { seriesColor } from "../charts/colors.js";
import { html, useEffect, useMemo, useRef, useState } from "../lib.js";
import { cluster as liveCluster, useOverview } from "../live.js";
import { href } from "../address.js";
import { useResource, useThrottled } from "../resource.js";
import { inOrder, moment, pointsForScreen } from "../series.js";
import { useStore } from "../store.js";
import { Badge, Choice, Meter, Panel, Stat, StateBadge } from "../ui/elements.js";
import { bytes, count, duration, measure, percent, plural, words } from "../ui/format.js";
import { Empty, ErrorState, Loaded, Loading } from "../ui/states.js";
import { Table } from "../ui/table.js";
import { Ago, Moment } from "../ui/time.js";

const SPANS = [["1800", "30 min"], ["21600", "6 h"], ["86400", "24 h"], ["604800", "7 d"]];
const PLAN_MS = 3_000;
const NUMBERS_MS = 15_000;
const SERIES_MS = 15_000;

/** The view's title. */
export const title = () => "Cluster";

/**
 * Whether jobs stand otherwise than was told before: came, left, changed their state or their number of workers.
 * `seen` is brought up to date.
 */
export function standing(seen, messages) {
  let changed = false;
  for (const { event, data } of messages) {
    if (event === "job") {
      const now = `${data.state} ${data.target_workers} ${data.priority}`;
      changed = changed || seen.get(data.id) !== now;
      seen.set(data.id, now);
    } else if (event === "deleted") {
      changed = true;
      seen.delete(data.id);
    } else if (event === "reset") {
      changed = true;
    }
  }
  return changed;
}

/** The view. */
export default function Cluster() {
  const now = useStore(liveCluster);
  const first = useResource("/cluster");
  const plan = useResource("/scheduler/plan");
  const decisions = useResource("/scheduler/decisions", { limit: 15 });
  const planSoon = useThrottled(plan.reload, PLAN_MS);
  const planLater = useThrottled(plan.reload, NUMBERS_MS);
  const decisionsSoon = useThrottled(decisions.reload, PLAN_MS);
  const seen = useRef(new Map());
  useOverview((messages) => {
    if (standing(seen.current, messages)) {
      planSoon();
      decisionsSoon();
    } else if (messages.some((one) => one.event === "job")) {
      planLater(); // they only went on
    }
  }, Boolean(first.data || first.error));
  const cluster = now || first.data;
  return html`<div class="view">
    <div class="head"><h1>Cluster</h1>${plan.data && html`<span class="note">policy ${plan.data.policy}</span>`}</div>
    ${cluster ? html`<${Numbers} cluster=${cluster} plan=${plan.data} />`
      : first.error ? html`<${ErrorState} error=${first.error} retry=${first.reload} />` : html`<${Loading} height=${66} />`}
    <div class="grid">
      <${Slots} cluster=${cluster} plan=${plan.data} />
      <${Queue} plan=${plan} />
      <${Running} plan=${plan} />
      ${cluster && cluster.devices.length > 0 && html`<${Devices} devices=${cluster.devices} plan=${plan.data} />`}
      <${Panel} title="Last decisions" class="flush two-thirds"><${Loaded} of=${decisions} what="The decisions" height=${160}>${(page) => html`<${Decisions} decisions=${page.decisions} />`}<//><//>
      <div class="third stack"><${Components} cluster=${cluster} plan=${plan.data} /><${Nodes} plan=${plan.data} /></div>
    </div>
  </div>`;
}

function Numbers({ cluster, plan }) {
  const { total, used, reserved } = cluster.slots;
  const jobs = (states) => states.reduce((sum, state) => sum + (cluster.jobs[state] || 0), 0);
  const wrong = Object.values(cluster.components).filter((one) => one !== "ok").length;
  return html`<dl class="stats">
    <${Stat} name="Slots in use" value=${html`${count(used)} <span class="faint">/ ${count(total)}</span>`} note=${html`<${Meter} value=${total ? used / total : 0} label="Slots in use" />`} title=${percent(total ? used / total : 0)} />
    <${Stat} name="Free" value=${count(Math.max(0, total - used - reserved))} note=${reserved ? `${count(reserved)} reserved for others` : "slots"} />
    ${cluster.devices.length > 0 && html`<${Stat} name="GPUs in use" value=${html`${measure(inUse(cluster.devices))} <span class="faint">/ ${count(cluster.devices.length)}</span>`} note=${html`<${Meter} value=${inUse(cluster.devices) / cluster.devices.length} label="GPUs in use" />`} title=${percent(inUse(cluster.devices) / cluster.devices.length)} />`}
    <${Stat} name="Running" value=${html`<a href=${href("/jobs", { of: "live" })}>${count(jobs(["RUNNING", "STARTING"]))}</a>`} note=${jobs(["STARTING"]) ? `${jobs(["STARTING"])} starting` : "jobs"} />
    <${Stat} name="Waiting" value=${html`<a href=${href("/jobs", { state: "QUEUED" })}>${count(jobs(["QUEUED"]))}</a>`} note=${jobs(["SUSPENDED"]) ? `${plural(jobs(["SUSPENDED"]), "job")} suspended` : "jobs"} />
    <${Stat} name="Failed" value=${html`<a href=${href("/jobs", { state: "FAILED" })}>${count(jobs(["FAILED"]))}</a>`} note=${`${count(jobs(["SUCCEEDED", "SUCCEEDED_WITH_SKIPS"]))} succeeded`} />
    <${Stat} name="Scheduler looked" value=${plan && plan.decided_at ? html`<${Ago} at=${plan.decided_at} />` : "–"} note=${plan && plan.seconds !== null ? `in ${duration(plan.seconds)}` : ""} />
    <${Stat} name="Health" value=${html`<${Badge} tone=${wrong ? "bad" : "good"}>${wrong ? `${wrong} of ${Object.keys(cluster.components).length}` : "All well"}<//>`} note=${wrong ? "see the components" : plural(Object.keys(cluster.components).length, "component")} />
  </dl>`;
}

/** Areas that can be told from each other: of the other jobs there is the sum. */
const MOST_AREAS = 8;

/** Series of the cluster as areas of jobs, those with the most slots first and the sum of all others last, and the lines around them. */
export function slotAreas(series, names) {
  const byName = new Map(series.map((one) => [one.name, one.points]));
  const most = (one) => (one.name === "job.other" ? -1 : Math.max(...one.points.map((point) => point[1])));
  const found = series.filter((one) => one.name.startsWith("job.") && one.points.some((point) => point[1] > 0)).sort((a, b) => most(b) - most(a));
  const own = found.filter((one) => one.name !== "job.other").slice(0, MOST_AREAS);
  const others = found.filter((one) => !own.includes(one));
  const shared = new Set(own.map((one) => names.get(one.name.slice(4))).filter((name, place, all) => all.indexOf(name) < place));
  const label = (id) => (names.has(id) && !shared.has(names.get(id)) ? names.get(id) : id);
  const jobs = own.map((one) => ({ key: one.name, label: label(one.name.slice(4)), points: one.points, format: count }));
  if (others.length) jobs.push({ key: "job.other", label: "others", color: "off", points: summed(others.map((one) => one.points)), format: count });
  return { jobs, total: byName.get("slots.total") || [], used: byName.get("slots.used") || [], queue: byName.get("queue") || [] };
}

/** The sum of several series, at each moment at which one of them has a value; each keeps its last one until its end. */
export function summed(all) {
  const moments = [...new Set(all.flatMap((points) => points.map((point) => point[0])))].sort((a, b) => a - b);
  const places = all.map(() => -1);
  return moments.map((x) => [x, all.reduce((sum, points, series) => {
    while (places[series] + 1 < points.length && points[places[series] + 1][0] <= x) places[series] += 1;
    return sum + (places[series] < 0 || x > points.at(-1)[0] ? 0 : points[places[series]][1]);
  }, 0)]);
}

function Slots({ cluster, plan }) {
  const [span, setSpan] = useState("1800");
  const [range, setRange] = useState(null);
  const [turn, setTurn] = useState(0);
  useEffect(() => {
    const timer = setInterval(() => document.visibilityState === "visible" && setTurn((now) => now + 1), SERIES_MS);
    return () => clearInterval(timer);
  }, []);
  const since = useMemo(() => moment(range ? range[0] : Date.now() / 1000 - Number(span)), [span, range, turn]);
  const read = useResource("/cluster/series", { since, until: range ? moment(range[1]) : null, points: pointsForScreen() });
  const names = useMemo(() => new Map(((plan && plan.jobs) || []).map((one) => [one.job_id, one.name])), [plan]);
  const shown = useMemo(() => slotAreas((read.data ? read.data.series : []).map((one) => ({ ...one, points: inOrder(one.points, read.data.to) })), names), [read.data, names]);
  const choose = (value) => {
    setRange(null);
    setSpan(value);
  };
  const loading = read.loading && read.data === undefined;
  const limit = { key: "slots.total", label: "slots", points: shown.total, format: count };
  return html`<${Panel} title="Slots" note="Stacked by job" actions=${html`<${Choice} label="Span" options=${SPANS} value=${range ? "" : span} onChoose=${choose} />`}>
    ${read.missing ? html`<${Empty} title="This cluster keeps no history of its slots">${cluster && `${cluster.slots.used} of ${cluster.slots.total} are in use now.`}<//>` : html`<div class="grid">
      <div class="two-thirds"><${AreaChart} title="Slots used" areas=${shown.jobs} limit=${limit} height=${200} range=${range} onRange=${setRange} loading=${loading} empty="No slot was used" /></div>
      <div class="third"><${LineChart} title="Jobs waiting" fromZero height=${200} range=${range} onRange=${setRange} curves=${[{ key: "queue", label: "waiting", points: shown.queue, stepped: true, format: count, color: seriesColor(4) }]} loading=${loading} empty="None" /></div></div>`}
  <//>`;
}

const waitingColumns = [
  { key: "place", label: "#", number: true, cell: (one) => one.place },
  { key: "job", label: "Job", cell: (one) => html`<a class="name" href=${href(`/jobs/${one.job_id}`)}><span>${one.name}</span><small>${one.job_id}</small></a>` },
  { key: "priority", label: "Priority", number: true, cell: (one) => one.priority, narrow: "hide" },
  { key: "workers", label: "Needs", number: true, cell: (one) => one.workers.min },
  { key: "starts", label: "Expected start", number: true, cell: (one) => (one.expected.starts_at ? html`<${Ago} at=${one.expected.starts_at} />` : html`<span class="faint" title=${one.expected.why_unknown}>unknown</span>`) },
  { key: "why", label: "Why it waits", wide: true, cell: (one) => html`<span title=${one.reason.text}>${one.reason.text}</span>` },
];

/** The waiting jobs of a plan with their places. */
export const waiting = (plan) => plan.jobs.filter((one) => one.state === "QUEUED").map((one, place) => ({ ...one, place: place + 1 }));

function Queue({ plan }) {
  const rows = useMemo(() => (plan.data ? waiting(plan.data) : []), [plan.data]);
  return html`<${Panel} title="Queue" class="flush" note=${rows.length ? plural(rows.length, "job") : ""}><${Loaded} of=${plan} what="The queue" height=${80}>${() => html`
    <${Table} caption="Queue" columns=${waitingColumns} rows=${rows.slice(0, 50)} id=${(one) => one.job_id} empty=${html`<${Empty} title="Nothing waits" />`} />
    ${rows.length > 50 && html`<div class="pages"><a href=${href("/jobs", { state: "QUEUED" })}>All ${count(rows.length)} that wait</a></div>`}`}<//><//>`;
}

const runningColumns = [
  { key: "job", label: "Job", cell: (one) => html`<a class="name" href=${href(`/jobs/${one.job_id}`)}><span>${one.name}</span><small>${one.job_id}</small></a>` },
  { key: "state", label: "State", cell: (one) => html`<${StateBadge} state=${one.state} />`, narrow: "hide" },
  { key: "progress", label: "Progress", number: true, cell: (one) => (one.progress === null ? "–" : html`<span class="progress"><${Meter} value=${one.progress} label=${`Progress of ${one.job_id}`} /><span>${percent(one.progress)}</span></span>`) },
  { key: "workers", label: "Workers", number: true, cell: (one) => html`<b>${one.workers.present}</b> / ${one.workers.target} <span class="faint">(${one.workers.min}–${one.workers.max})</span>` },
  { key: "speed", label: "Records/s", number: true, cell: (one) => count(one.records_per_second), narrow: "hide" },
  { key: "ends", label: "Ends", number: true, cell: (one) => (one.expected.ends_at ? html`<span title=${one.expected.seconds_low !== null ? `four of five ends: ${duration(one.expected.seconds_low)} – ${duration(one.expected.seconds_high)}` : ""}><${Ago} at=${one.expected.ends_at} /></span>` : html`<span class="faint" title=${one.expected.why_unknown}>unknown</span>`) },
  { key: "why", label: "Why", wide: true, cell: (one) => html`<span title=${one.reason.text}>${one.reason.text}</span>`, narrow: "hide" },
];

function Running({ plan }) {
  const rows = useMemo(() => (plan.data ? plan.data.jobs.filter((one) => one.workers.present > 0 || one.state === "RUNNING" || one.state === "STARTING") : []), [plan.data]);
  const others = plan.data && plan.data.others.jobs ? `and ${plural(plan.data.others.jobs, "job")} of other namespaces with ${plural(plan.data.others.workers, "worker")}` : "";
  return html`<${Panel} title="At work" class="flush" note=${others}><${Loaded} of=${plan} what="The plan" height=${80}>${() => html`
    <${Table} caption="Jobs at work" columns=${runningColumns} rows=${rows.slice(0, 50)} id=${(one) => one.job_id} empty=${html`<${Empty} title="No job is at work" />`} />
    ${rows.length > 50 && html`<div class="pages"><a href=${href("/jobs", { of: "live" })}>All ${count(rows.length)}</a></div>`}`}<//><//>`;
}

/** How much of all devices is given out; sums of hundredths have no other digits. */
export const inUse = (devices) => Math.round(100 * devices.reduce((sum, one) => sum + one.used, 0)) / 100;

/** What a device is, in words. */
const kindOf = (one) => [one.declared ? "declared" : one.model || "found", one.memory_mib && bytes(one.memory_mib * 2 ** 20)].filter(Boolean).join(", ");

function Devices({ devices, plan }) {
  const names = useMemo(() => new Map(((plan && plan.jobs) || []).map((one) => [one.job_id, one.name])), [plan]);
  const holder = (one) => html`<li key=${one.job_id}><a href=${href(`/jobs/${one.job_id}`)} title=${one.job_id}>${names.get(one.job_id) || one.job_id}</a> <span class="faint">${measure(one.used)} by ${plural(one.workers, "worker")}</span></li>`;
  const columns = [
    { key: "name", label: "Device", cell: (one) => html`<span class="name"><span>${one.name}</span><small class="kind">${kindOf(one)}</small></span>` },
    { key: "used", label: "In use", number: true, cell: (one) => html`<span class="progress"><${Meter} value=${one.used} label=${`In use of ${one.name}`} /><span>${percent(one.used)}</span></span>` },
    { key: "jobs", label: "By", wide: true, cell: (one) => html`<ul class="holders">${one.jobs.map(holder)}${others(one) > 0 && html`<li class="faint">${plural(others(one), "worker")} of other namespaces</li>`}${one.workers === 0 && html`<li class="faint">nobody</li>`}</ul>` },
  ];
  return html`<${Panel} title="Devices" class="flush" note="Workers on one device compute in turns"><${Table} caption="Devices" columns=${columns} rows=${devices} id=${(one) => one.name} /><//>`;
}

/** Workers on a device whose jobs are not for the reader to see. */
const others = (device) => device.workers - device.jobs.reduce((sum, one) => sum + one.workers, 0);

const decisionColumns = [
  { key: "at", label: "When", cell: (one) => html`<${Moment} at=${one.at} />` },
  { key: "job", label: "Job", cell: (one) => html`<a href=${href(`/jobs/${one.job_id}`)}>${one.job_id}</a>` },
  { key: "workers", label: "Workers", number: true, cell: (one) => html`<b>${one.before} → ${one.after}</b>` },
  { key: "why", label: "Why", wide: true, cell: (one) => html`<span title=${one.text}>${one.text}</span>` },
];

function Decisions({ decisions }) {
  const changes = decisions.flatMap((one) => one.changes).slice(0, 20);
  return html`<${Table} caption="Last decisions" columns=${decisionColumns} rows=${changes} id=${(one) => `${one.sequence}.${one.job_id}`} empty=${html`<${Empty} title="Nothing was decided yet" />`} />`;
}

function Components({ cluster, plan }) {
  const parts = cluster ? Object.entries(cluster.components) : [];
  return html`<${Panel} title="Components"><ul class="components">${parts.map(([name, state]) => html`<li key=${name}><${Badge} tone=${state === "ok" ? "good" : "bad"}>${words(name)}<//><span class="faint">${state === "ok" ? "" : state}</span></li>`)}
    ${plan && html`<li><${Badge} tone=${plan.alive ? "good" : "bad"}>Plan<//><span class="faint">${plan.alive ? `${count(plan.passes)} looks, decision ${count(plan.sequence)}` : "no scheduler leads"}</span></li>`}</ul><//>`;
}

function Nodes({ plan }) {
  if (!plan) return null;
  return html`<${Panel} title="Nodes" note=${plural(plan.nodes.length, "node")}><ul class="components">${plan.nodes.slice(0, 100).map((one) => html`<li key=${one.name}><span>${one.name}</span><span class="faint">${count(one.slots)} slots for jobs</span></li>`)}</ul>
    <p class="note">${count(plan.slots.used)} used, ${count(plan.slots.free)} free${plan.slots.leaving ? `, ${count(plan.slots.leaving)} leaving` : ""}</p><//>`;
}
