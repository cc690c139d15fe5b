/** What can be done with a job: asked for after a confirmation that shows what the scheduler expects of it. */
import { send } from "../api.js";
import { isOver } from "../facts.js";
import { html, useEffect, useState } from "../lib.js";
import { go, href } from "../address.js";
import { useMay } from "../session.js";
import { Confirm } from "./dialog.js";
import { Button, Field } from "./elements.js";
import { Forecast, useForecast } from "./forecast.js";
import { pairsOf, pairsText, patchOf } from "./pairs.js";
import { ErrorState } from "./states.js";
import { tell } from "./toast.js";

/** Which actions a job takes now, in the order in which they are offered. */
export function actionsOf(job) {
  if (isOver(job)) return ["labels", "again", "delete"];
  const found = [];
  // A job that waited when it was suspended never had a master to be asked: its state alone says it.
  if (job.state === "SUSPENDED" || job.desired === "suspend") found.push("resume", "priority");
  else if (job.desired === "run" || job.desired === "evict") found.push("scale", "priority", "suspend");
  if (job.desired !== "cancel" && job.state !== "CANCELLING") found.push("cancel");
  return [...found, "labels", "again"];
}

const LABELS = { scale: "Scale", priority: "Priority", labels: "Labels", suspend: "Suspend", resume: "Resume", cancel: "Cancel", delete: "Delete", again: "Submit again" };

/** Buttons for all that can be done with a job. `onDone` is called with the job as it is then. */
export function JobActions({ job, onDone = () => {} }) {
  const may = useMay("submit");
  const [open, setOpen] = useState("");
  if (!may) return null;
  const close = () => setOpen("");
  const done = (answer) => {
    close();
    onDone(answer);
  };
  const dialogs = { scale: Scale, priority: Priority, labels: Labels, delete: Delete };
  const Asked = open && (dialogs[open] || Plain);
  return html`<div class="actions row" role="group" aria-label="Actions">
    ${actionsOf(job).map((name) => (name === "again"
      ? html`<${Button} key=${name} href=${href("/submit", { like: job.id })} title="A new job with the same specification, to be changed">${LABELS[name]}<//>`
      : html`<${Button} key=${name} onClick=${() => setOpen(name)}>${LABELS[name]}<//>`))}
    ${open && html`<${Asked} what=${open} job=${job} onDone=${done} onClose=${close} />`}
  </div>`;
}

/** One change that is under way. */
function useAct(onDone) {
  const [state, setState] = useState({ busy: false, error: null });
  const act = async (ask, text) => {
    setState({ busy: true, error: null });
    try {
      const answer = await ask();
      tell(text);
      onDone(answer);
    } catch (error) {
      setState({ busy: false, error });
    }
  };
  return { ...state, act };
}

const PLAIN = {
  cancel: { title: "Cancel the job?", label: "Cancel the job", kind: "danger", said: "is being cancelled", text: "That is final: its processes end within 30 seconds. Checkpoints and artifacts that it has made stay." },
  suspend: { title: "Suspend the job?", label: "Suspend", kind: "primary", said: "is being suspended", text: "It saves a checkpoint, gives its workers back, and waits until it is resumed." },
  resume: { title: "Resume the job?", label: "Resume", kind: "primary", said: "waits for its workers", text: "It waits for its workers, and goes on where it was." },
};

function Plain({ what, job, onDone, onClose }) {
  const about = PLAIN[what];
  const { busy, error, act } = useAct(onDone);
  const forecast = useForecast(what === "resume" ? null : { cancel: [job.id] });
  const change = () => act(() => send("POST", `/jobs/${encodeURIComponent(job.id)}/${what}`), `${job.id} ${about.said}.`);
  return html`<${Confirm} title=${about.title} label=${about.label} kind=${about.kind} busy=${busy} act=${change} onClose=${onClose}>
    <p><b>${job.name}</b> <span class="mono faint">${job.id}</span></p><p>${about.text}</p>
    ${what !== "resume" && html`<${Forecast} of=${forecast} nothing="No other job would get more workers or end sooner." />`}
    ${error && html`<${ErrorState} error=${error} />`}
  <//>`;
}

function Scale({ job, onDone, onClose }) {
  const [least, setLeast] = useState(String(job.min_workers));
  const [most, setMost] = useState(String(job.max_workers));
  const { busy, error, act } = useAct(onDone);
  const [low, high] = [Number(least), Number(most)];
  const whole = [low, high].every((one) => Number.isInteger(one) && one >= 1 && one <= 10_000);
  const problem = !whole ? "Whole numbers from 1 to 10,000." : low > high ? "The least is more than the most." : "";
  const changes = {};
  if (low !== job.min_workers) changes.min_workers = low;
  if (high !== job.max_workers) changes.max_workers = high;
  const changed = Object.keys(changes).length > 0;
  const forecast = useForecast(problem || !changed ? null : { sizes: { [job.id]: { min_workers: low, max_workers: high } } });
  const change = () => act(() => send("PATCH", `/jobs/${encodeURIComponent(job.id)}`, changes), `${job.id} may have ${low} to ${high} workers now.`);
  return html`<${Confirm} title="Scale the job" label="Scale" busy=${busy} disabled=${Boolean(problem) || !changed} act=${change} onClose=${onClose}>
    <p class="note">The scheduler gives it as many as do the most good within these bounds; nothing is restarted.</p>
    <div class="fields">
      <${Field} id="least" label="Least workers"><input id="least" type="number" min="1" max="10000" value=${least} onInput=${(event) => setLeast(event.target.value)} /><//>
      <${Field} id="most" label="Most workers" problem=${problem}><input id="most" type="number" min="1" max="10000" value=${most} onInput=${(event) => setMost(event.target.value)} /><//>
    </div>
    <${Forecast} of=${forecast} />
    ${error && html`<${ErrorState} error=${error} />`}
  <//>`;
}

function Priority({ job, onDone, onClose }) {
  const [text, setText] = useState(String(job.priority));
  const { busy, error, act } = useAct(onDone);
  const priority = Number(text);
  const problem = text.trim() !== "" && Number.isInteger(priority) && Math.abs(priority) <= 1000 ? "" : "A whole number from -1000 to 1000.";
  const forecast = useForecast(problem || priority === job.priority ? null : { priorities: { [job.id]: priority } });
  const change = () => act(() => send("PATCH", `/jobs/${encodeURIComponent(job.id)}`, { priority }), `${job.id} has priority ${priority} now.`);
  return html`<${Confirm} title="Change the priority" label="Change" busy=${busy} disabled=${Boolean(problem) || priority === job.priority} act=${change} onClose=${onClose}>
    <${Field} id="priority" label="Priority" hint="The higher one goes first. It may take workers from jobs below it." problem=${problem}>
      <input id="priority" type="number" min="-1000" max="1000" value=${text} onInput=${(event) => setText(event.target.value)} /><//>
    <${Forecast} of=${forecast} />
    ${error && html`<${ErrorState} error=${error} />`}
  <//>`;
}

function Labels({ job, onDone, onClose }) {
  const [text, setText] = useState(pairsText(job.spec.labels, true));
  const { busy, error, act } = useAct(onDone);
  const wanted = pairsOf(text, true);
  const problem = typeof wanted === "string" ? "Write each as key=value, one a line." : "";
  const labels = problem ? {} : patchOf(job.spec.labels, wanted);
  const changed = Object.keys(labels).length > 0;
  const change = () => act(() => send("PATCH", `/jobs/${encodeURIComponent(job.id)}`, { labels }), `${job.id} has other labels now.`);
  return html`<${Confirm} title="Change the labels" label="Change" busy=${busy} disabled=${Boolean(problem) || !changed} act=${change} onClose=${onClose}>
    <${Field} id="labels" label="Labels" hint="Lists of jobs are filtered by them; they change nothing of what the job does." problem=${problem}>
      <textarea id="labels" rows="5" spellcheck=${false} placeholder="key=value, one a line" value=${text} onInput=${(event) => setText(event.target.value)}></textarea><//>
    ${error && html`<${ErrorState} error=${error} />`}
  <//>`;
}

function Delete({ job, onClose }) {
  const { busy, error, act } = useAct(() => go("/jobs"));
  const [sure, setSure] = useState(false);
  useEffect(() => setSure(false), [job.id]);
  const change = () => act(() => send("DELETE", `/jobs/${encodeURIComponent(job.id)}`), `${job.id} was deleted.`);
  return html`<${Confirm} title="Delete the job?" label="Delete the job" kind="danger" busy=${busy} disabled=${!sure} act=${change} onClose=${onClose}>
    <p>Its events, logs, checkpoints and the artifacts in its own folder are removed. That cannot be undone.</p>
    <label class="row"><input type="checkbox" checked=${sure} onChange=${(event) => setSure(event.target.checked)} /> Delete <span class="mono">${job.id}</span> and all that belongs to it</label>
    ${error && html`<${ErrorState} error=${error} />`}
  <//>`;
}
