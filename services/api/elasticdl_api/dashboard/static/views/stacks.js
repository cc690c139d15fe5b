/** Where a job's processes stand: the stacks of all of them, asked for at once, grouped by what they wait for. */
import { html, useMemo, useState } from "../lib.js";
import { href } from "../address.js";
import { useResource } from "../resource.js";
import { Badge, Button, Choice, Panel } from "../ui/elements.js";
import { duration, plural, words } from "../ui/format.js";
import { Empty, ErrorState, Loading, NotAvailable } from "../ui/states.js";

/** The view's title. */
export const title = ({ id }) => `Stacks of ${id}`;

const nameOf = (process) => `${process.role} ${process.index}`;
const fileOf = (path) => path.split("/").slice(-2).join("/");

/** Processes by what they wait for, the largest group first; those that did not answer come last. */
export function groupProcesses(processes) {
  const groups = new Map();
  for (const process of processes) {
    const key = process.error ? "error" : process.waits_for || "unknown";
    const group = groups.get(key) || { key, processes: [], stacks: new Map() };
    group.processes.push(process);
    const shape = JSON.stringify((process.threads || []).map((thread) => [thread.name, (thread.frames || []).map((frame) => [frame.function, frame.file, frame.line])]));
    group.stacks.set(shape, [...(group.stacks.get(shape) || []), process]);
    groups.set(key, group);
  }
  return [...groups.values()].sort((a, b) => (a.key === "error") - (b.key === "error") || b.processes.length - a.processes.length);
}

/** Some names, and how many there are besides. */
export function someNames(processes, most = 8) {
  const names = processes.map(nameOf);
  return names.length > most ? `${names.slice(0, most).join(", ")} and ${names.length - most} others` : names.join(", ");
}

/** The view. */
export default function Stacks({ params }) {
  const asked = useResource(`/jobs/${encodeURIComponent(params.id)}/stacks`);
  const [role, setRole] = useState("");
  const processes = (asked.data && asked.data.processes) || [];
  const roles = [...new Set(processes.map((one) => one.role))];
  const groups = useMemo(() => groupProcesses(processes.filter((one) => !role || one.role === role)), [asked.data, role]);
  return html`<div class="view">
    <div class="head"><h1>Stacks</h1><a href=${href(`/jobs/${params.id}`)}>${params.id}</a>
      ${asked.data && html`<span class="note" role="status">${plural(processes.length, "process", "processes")} in ${duration(asked.data.took_s)}</span>`}<span class="grow"></span>
      ${roles.length > 1 && html`<${Choice} label="Which processes" value=${role} onChoose=${setRole} options=${[["", "All"], ...roles.map((one) => [one, words(one)])]} />`}
      <${Button} kind="primary" busy=${asked.loading || (!asked.data && !asked.error)} onClick=${asked.reload}>Take them again<//></div>
    ${asked.missing ? html`<${NotAvailable} what="Stacks">${asked.error.message}<//>` : asked.error && html`<${ErrorState} error=${asked.error} retry=${asked.reload} />`}
    ${!asked.data && !asked.error && html`<${Loading} height="240" label="Asking every process" />`}
    ${asked.data && processes.length === 0 && html`<${Empty} title="No process of this job runs">Stacks are of processes that run now.<//>`}
    ${groups.map((group) => html`<${Group} key=${group.key} group=${group} open=${groups.length === 1} />`)}
  </div>`;
}

function Group({ group, open }) {
  const failed = group.key === "error";
  const heading = failed ? "No answer" : words(group.key);
  return html`<${Panel} title=${html`<${Badge} tone=${failed ? "bad" : "busy"}>${heading}<//>`} note=${`${plural(group.processes.length, "process", "processes")}: ${someNames(group.processes)}`}>
    ${[...group.stacks.values()].map((alike) => html`<${Alike} key=${nameOf(alike[0])} processes=${alike} open=${open} failed=${failed} />`)}
  <//>`;
}

function Alike({ processes, open, failed }) {
  if (failed) return html`<ul class="plain">${processes.map((one) => html`<li key=${nameOf(one)}><b>${nameOf(one)}</b> <span class="faint">${one.error}</span></li>`)}</ul>`;
  const [first] = processes;
  const top = first.threads.flatMap((thread) => thread.frames.slice(0, 1))[0];
  const where = top ? `${top.function} (${fileOf(top.file)}:${top.line})` : "no frames";
  return html`<details class="group" open=${open}><summary><b>${someNames(processes, 4)}</b> <span class="faint">${where}</span></summary>
    ${first.threads.map((thread) => html`<section key=${thread.name} class="thread"><h3>${thread.name} ${thread.waits_for && html`<span class="tag">${words(thread.waits_for)}</span>`}</h3>
      <ol class="frames">${thread.frames.map((frame, place) => html`<li key=${place}><b>${frame.function}</b> <span class="faint" title=${frame.file}>${fileOf(frame.file)}:${frame.line}</span></li>`)}</ol></section>`)}
  </details>`;
}
