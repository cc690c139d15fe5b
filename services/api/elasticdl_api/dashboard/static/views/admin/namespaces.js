/** Namespaces: what their jobs may read, what they may take. */
import { send } from "../../api.js";
import { html, useState } from "../../lib.js";
import { href } from "../../address.js";
import { Button, Field, Panel } from "../../ui/elements.js";
import { Confirm } from "../../ui/dialog.js";
import { bytes, count, words } from "../../ui/format.js";
import { Empty, ErrorState } from "../../ui/states.js";
import { Table } from "../../ui/table.js";
import { Ago } from "../../ui/time.js";
import { Listed, useChange, useEdited, wholeOf } from "./pages.js";

const LIMITS = [
  ["disk_mib", "Disk, MiB", "What its jobs and bundles may fill; 0 for no limit."],
  ["max_ps", "Parameter servers of a job", ""],
  ["requests_per_second", "Requests per second of a token", ""],
  ["max_streams", "Live streams of a token", ""],
  ["max_priority", "Highest priority of a job", ""],
  ["guaranteed_slots", "Slots, guaranteed", "It gets them back from others; empty: none."],
  ["max_slots", "Slots, at most", "Even while the cluster is idle."],
  ["weight", "Weight", "Its share of slots beside others; empty: 1."],
];

/** The part. */
export function Namespaces() {
  const { listed, edited, setEdited, leaving, setLeaving, done } = useEdited("/namespaces");
  return html`<${Panel} title="Namespaces" class="flush" actions=${html`<${Button} kind="primary" onClick=${() => setEdited({})}>New namespace<//>`}>
    <${Listed} of=${listed} what="the namespaces">${(data) => html`<${Table} caption="Namespaces" rows=${data.namespaces} id=${(one) => one.name} columns=${columns(setEdited, setLeaving)}
      empty=${html`<${Empty} title="No namespaces yet">Jobs of administrators are in “default”.<//>`} />`}<//>
    ${edited && html`<${Edit} namespace=${edited} onDone=${(name) => done(`The namespace ${name} is as you said.`)} onClose=${() => setEdited(null)} />`}
    ${leaving && html`<${Remove} namespace=${leaving} onDone=${() => done(`The namespace ${leaving.name} is removed.`)} onClose=${() => setLeaving(null)} />`}
  <//>`;
}

const columns = (edit, remove) => [
  { key: "name", label: "Name", cell: (one) => html`<a href=${href("/jobs", { namespace: one.name })}>${one.name}</a>` },
  { key: "jobs", label: "Jobs", number: true, cell: (one) => count(one.jobs) },
  { key: "tokens", label: "Tokens", number: true, cell: (one) => count(one.tokens) },
  { key: "limits", label: "Limits", wide: true, cell: (one) => html`<span title=${limitsOf(one)}>${limitsOf(one)}</span>`, narrow: "hide" },
  { key: "roots", label: "Reads", cell: (one) => one.data_roots.map((root) => html`<code key=${root} class="tag">${root}</code> `), narrow: "hide" },
  { key: "sources", label: "Databases", cell: (one) => one.sources.join(", ") || "–", narrow: "hide" },
  { key: "created", label: "Created", number: true, cell: (one) => html`<${Ago} at=${one.created_at} />`, narrow: "hide" },
  { key: "act", label: html`<span class="hidden">Actions</span>`, number: true, cell: (one) => html`<${Button} class="small" aria-label=${`Change ${one.name}`} onClick=${() => edit(one)}>Change<//>
    <${Button} class="small" aria-label=${`Remove ${one.name}`} disabled=${one.jobs > 0} title=${one.jobs > 0 ? "It has jobs." : ""} onClick=${() => remove(one)}>Remove<//>` },
];

function limitsOf(namespace) {
  const told = Object.entries(namespace.limits).map(([name, value]) => (name === "disk_mib" ? `disk ${value ? bytes(value * 2 ** 20) : "without limit"}` : `${words(name).toLowerCase()} ${count(value)}`));
  return told.join(", ") || "as for everybody";
}

/** Databases by name out of lines NAME=URL; a line without "=" is a name without an address, which the API refuses. */
const sourcesOf = (text) => Object.fromEntries(text.split("\n").map((one) => one.trim()).filter(Boolean).map((one) => {
  const [name, ...rest] = one.split("=");
  return [name.trim(), rest.join("=").trim()];
}));

function Edit({ namespace, onDone, onClose }) {
  const isNew = !namespace.name;
  const [name, setName] = useState(namespace.name || "");
  const [roots, setRoots] = useState((namespace.data_roots || []).join("\n"));
  const [added, setAdded] = useState("");
  const [leaving, setLeaving] = useState([]);
  const [limits, setLimits] = useState(Object.fromEntries(LIMITS.map(([key]) => [key, String((namespace.limits || {})[key] ?? "")])));
  const wanted = {
    data_roots: roots.split("\n").map((one) => one.trim()).filter(Boolean),
    sources: { ...Object.fromEntries(leaving.map((one) => [one, null])), ...sourcesOf(added) },
    limits: Object.fromEntries(LIMITS.map(([key]) => [key, wholeOf(limits[key])]).filter(([, value]) => value !== undefined)),
  };
  const change = useChange(() => send("PUT", `/namespaces/${encodeURIComponent(name)}`, wanted), () => onDone(name));
  return html`<${Confirm} title=${isNew ? "New namespace" : `Change ${name}`} label=${isNew ? "Make it" : "Change it"} busy=${change.busy} disabled=${!name} act=${change.run} onClose=${onClose}><div class="stack">
    ${change.error && html`<${ErrorState} error=${change.error} />`}
    ${isNew && html`<${Field} id="namespace-name" label="Name" hint="Lower-case letters, digits and dashes." problem=${change.problemOf("name")}>
      <input id="namespace-name" value=${name} maxlength="40" autocomplete="off" spellcheck=${false} aria-describedby="namespace-name-hint" onInput=${(event) => setName(event.target.value.trim())} /><//>`}
    <${Field} id="namespace-roots" label="Places that its jobs may read and write" hint="Absolute paths and beginnings of URLs, one a line." problem=${change.problemOf("data_roots")}>
      <textarea id="namespace-roots" rows="3" spellcheck=${false} value=${roots} aria-describedby="namespace-roots-hint" onInput=${(event) => setRoots(event.target.value)}></textarea><//>
    <${Field} id="namespace-sources" label="Databases that its statements may read" problem=${change.problemOf("sources")}
      hint="NAME=URL, one a line, to add or replace: sqlite:///FILE or postgresql://USER:PASSWORD@HOST/DATABASE, of a user who may only read. Addresses are not shown again.">
      <textarea id="namespace-sources" rows="2" spellcheck=${false} value=${added} aria-describedby="namespace-sources-hint" onInput=${(event) => setAdded(event.target.value)}></textarea><//>
    ${(namespace.sources || []).map((one) => html`<label key=${one} class="row"><input type="checkbox" checked=${!leaving.includes(one)}
      onChange=${(event) => setLeaving(event.target.checked ? leaving.filter((other) => other !== one) : [...leaving, one])} />Keep the database ${one}</label>`)}
    <div class="fields">${LIMITS.map(([key, label, hint]) => html`<${Field} key=${key} id="limit-${key}" label=${label} hint=${hint || "Empty: as for everybody."} problem=${change.problemOf(key)}>
      <input id="limit-${key}" inputmode="numeric" autocomplete="off" value=${limits[key]} aria-describedby="limit-${key}-hint" onInput=${(event) => setLimits({ ...limits, [key]: event.target.value })} /><//>`)}</div>
  </div><//>`;
}

function Remove({ namespace, onDone, onClose }) {
  const change = useChange(() => send("DELETE", `/namespaces/${encodeURIComponent(namespace.name)}`), onDone);
  return html`<${Confirm} title=${`Remove ${namespace.name}?`} label="Remove" kind="danger" busy=${change.busy} act=${change.run} onClose=${onClose}>
    <p>Its tokens go with it: ${count(namespace.tokens)}. This cannot be undone.</p>
    ${change.error && html`<${ErrorState} error=${change.error} />`}
  <//>`;
}
