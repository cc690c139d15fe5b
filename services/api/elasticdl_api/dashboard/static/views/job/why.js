/** Why the job has the workers that it has, what would help, and what would happen if. */
import { LineChart } from "../../charts/line.js";
import { isOver } from "../../facts.js";
import { html, useEffect, useState } from "../../lib.js";
import { href } from "../../address.js";
import { useResource } from "../../resource.js";
import { Copyable, Facts, Field, Panel } from "../../ui/elements.js";
import { count, duration, measure, rate, words } from "../../ui/format.js";
import { Forecast, useForecast } from "../../ui/forecast.js";
import { Empty, Loaded } from "../../ui/states.js";
import { Table } from "../../ui/table.js";
import { Moment } from "../../ui/time.js";

/** The explanation of a job. */
export function Why({ job }) {
  const read = useResource(`/jobs/${encodeURIComponent(job.id)}/explain`);
  useEffect(() => {
    if (read.data) read.reload();
  }, [job.target_workers, job.target_reason, job.state, job.priority]);
  return html`<${Loaded} of=${read} what="The explanation" height=${300}>${(why) => html`<div class="grid">
    <${Panel} title="Why" class="half" note=${words(why.reason.code)}><div class="stack">
      <p class="said">${why.reason.text}</p>
      ${why.next && html`<p class="note">After the next look of the scheduler: ${why.next.text}</p>`}
      <${Facts} items=${factsOf(why)} /></div><//>
    <${Panel} title="Speed by number of workers" class="half"><${Speed} why=${why} /><//>
    ${(why.blockers.length > 0 || why.hidden_blockers.jobs > 0) && html`<${Blockers} why=${why} />`}
    ${why.remedies.length > 0 && html`<${Panel} title="What would help" note="Each was tried on the scheduler's policy"><ul class="remedies">${why.remedies.map((one) => html`
      <li key=${one.text}><span>${one.text}</span>${one.command && html`<span class="row"><code>${one.command}</code><${Copyable} text=${one.command} label="Copy the command" /></span>`}</li>`)}</ul><//>`}
    ${!isOver(job) && html`<${WhatIf} job=${job} />`}
    <${Panel} title="Last decisions" class="flush"><${Table} caption="Last decisions" columns=${decisionColumns} rows=${why.decisions} id=${(one) => String(one.sequence)} empty=${html`<${Empty} title="None yet" />`} /><//>
  </div>`}<//>`;
}

const decisionColumns = [
  { key: "at", label: "When", cell: (one) => html`<${Moment} at=${one.at} />` },
  { key: "workers", label: "Workers", number: true, cell: (one) => `${one.before} → ${one.after}` },
  { key: "why", label: "Why", wide: true, cell: (one) => html`<span title=${one.text}>${one.text}</span>` },
];

/** What a worker takes of the devices, in words. */
const shareOf = (share) => (share < 1 ? `${measure(share)} of a GPU` : plural(share, "GPU"));

function factsOf(why) {
  const { expected, slots, workers, quota, devices } = why;
  const band = expected.seconds_low !== null ? `${duration(Math.round(expected.seconds_low))} – ${duration(Math.round(expected.seconds_high))}` : "";
  return [
    ["Workers", `${workers.present} of ${workers.target} (${workers.min} to ${workers.max})`],
    ["Slots of the cluster", `${count(slots.used)} of ${count(slots.total)} used, ${count(slots.free)} free${slots.leaving ? `, ${count(slots.leaving)} leaving` : ""}`],
    ["Each worker takes", devices && shareOf(devices.share)],
    ["Devices of the cluster", devices && `${measure(devices.used)} of ${count(devices.total)} in use`],
    ["Devices of its workers", devices && devices.held.map((one) => `worker ${one.worker}: ${one.devices.join(", ")}`).join("; ")],
    ["Starts", expected.starts_at && html`<${Moment} at=${expected.starts_at} />`],
    ["Ends", expected.ends_at ? html`<${Moment} at=${expected.ends_at} /> <span class="faint">${band && `in ${band}`}</span>` : expected.why_unknown],
    ["Speed is", expected.basis],
    ["Left", why.remaining_records === null ? "" : `${count(why.remaining_records)} records`],
    ["Quota", quota && `${measure(quota.used)} used${quota.guaranteed === null ? "" : `, ${measure(quota.guaranteed)} guaranteed`}${quota.limit === null ? "" : `, ${measure(quota.limit)} at most`}`],
  ];
}

function Speed({ why }) {
  const known = why.speed.filter((one) => one.records_per_second !== null);
  if (known.length === 0) return html`<${Empty} title="Nothing is known of its speed yet" />`;
  if (known.length === 1) return html`<${Facts} items=${[[`With ${known[0].workers} workers`, rate(known[0].records_per_second, "records")]]} />`;
  const curves = [{ key: "speed", label: "records/s", points: known.map((one) => [one.workers, one.records_per_second]), dots: true }];
  return html`<${LineChart} title="Records/s" by="version" height=${150} fromZero curves=${curves} note=${`now ${why.workers.present} workers`} marks=${[{ x: why.workers.target, label: "target", tone: "good" }]} />`;
}

function Blockers({ why }) {
  const columns = [
    { key: "job", label: "Job", cell: (one) => html`<a href=${href(`/jobs/${one.job_id}`)}>${one.job_id}</a>` },
    { key: "workers", label: "Workers", number: true, cell: (one) => count(one.workers) },
    { key: "priority", label: "Priority", number: true, cell: (one) => one.priority },
    { key: "ends", label: "Expected end", wide: true, cell: (one) => (one.ends_at ? html`<${Moment} at=${one.ends_at} />` : "unknown") },
  ];
  const { jobs, workers } = why.hidden_blockers;
  return html`<${Panel} title="Who holds what it lacks" class="flush" note=${jobs ? `and ${jobs} jobs of other namespaces with ${workers} workers` : ""}>
    <${Table} caption="Who holds what it lacks" columns=${columns} rows=${why.blockers} id=${(one) => one.job_id} /><//>`;
}

/** The question of the form, or null where nothing is changed. */
export function questionOf(job, { least, most, priority, slots }) {
  const question = {};
  const whole = (text) => (text.trim() !== "" && Number.isInteger(Number(text)) ? Number(text) : null);
  const [low, high, rank, more] = [least, most, priority, slots].map(whole);
  if (low !== null && high !== null && low >= 1 && low <= high && (low !== job.min_workers || high !== job.max_workers)) question.sizes = { [job.id]: { min_workers: low, max_workers: high } };
  if (rank !== null && rank !== job.priority && Math.abs(rank) <= 1000) question.priorities = { [job.id]: rank };
  if (more) question.add_slots = more;
  return Object.keys(question).length ? question : null;
}

function WhatIf({ job }) {
  const [form, setForm] = useState({ least: String(job.min_workers), most: String(job.max_workers), priority: String(job.priority), slots: "0" });
  const question = questionOf(job, form);
  const forecast = useForecast(question);
  const field = (name, label, least) => html`<${Field} id=${`if-${name}`} label=${label}>
    <input id=${`if-${name}`} type="number" min=${least} value=${form[name]} onInput=${(event) => setForm({ ...form, [name]: event.target.value })} /><//>`;
  return html`<${Panel} title="What if" note="Nothing is changed: the scheduler's policy is asked"><div class="stack">
    <div class="fields">${field("least", "Least workers", "1")}${field("most", "Most workers", "1")}${field("priority", "Priority", "-1000")}${field("slots", "Slots more in the cluster", "-100000")}</div>
    ${question ? html`<${Forecast} of=${forecast} />` : html`<p class="note">Change a number to see what would come of it.</p>`}
  </div><//>`;
}
