/** What was asked for, field by field. */
import { html, useState } from "../../lib.js";
import { href } from "../../address.js";
import { Button, Copyable, Panel } from "../../ui/elements.js";
import { Empty } from "../../ui/states.js";
import { Table } from "../../ui/table.js";

/** A value of a specification as text. */
export function valueText(value) {
  if (value === null || value === "" || value === undefined) return "";
  if (typeof value === "object") return Object.keys(value).length ? JSON.stringify(value) : "";
  return String(value);
}

const columns = [
  { key: "name", label: "Field", cell: ([name]) => html`<code>${name}</code>` },
  { key: "value", label: "Value", wide: true, cell: ([, value]) => html`<span class="wrap">${valueText(value) || html`<span class="faint">–</span>`}</span>` },
];

/** The specification of a job. */
export function Specification({ job }) {
  const [text, setText] = useState("");
  const wanted = text.trim().toLowerCase();
  const fields = Object.entries(job.spec).filter(([name, value]) => `${name} ${valueText(value)}`.toLowerCase().includes(wanted))
    .sort(([a, one], [b, other]) => Boolean(valueText(other)) - Boolean(valueText(one)) || a.localeCompare(b));
  return html`<${Panel} title="Specification" class="flush" note="As it was submitted, with defaults" actions=${html`
      <input type="search" aria-label="Search in the specification" placeholder="Search" value=${text} onInput=${(event) => setText(event.target.value)} />
      <${Copyable} text=${JSON.stringify(job.spec, null, 2)} label="Copy as JSON" />
      <${Button} kind="primary" href=${href("/submit", { like: job.id })}>Submit again with changes<//>`}>
    <${Table} caption="Specification" columns=${columns} rows=${fields} id=${([name]) => name} empty=${html`<${Empty} title="No field matches" />`} /><//>`;
}
