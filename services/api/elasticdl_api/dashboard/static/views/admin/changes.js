/** The audit log: who changed what, the latest first. Its filters are in the address. */
import { html, useEffect, useState } from "../../lib.js";
import { href, setQuery } from "../../address.js";
import { Button, Panel } from "../../ui/elements.js";
import { Empty } from "../../ui/states.js";
import { Table } from "../../ui/table.js";
import { Moment } from "../../ui/time.js";
import { Listed, usePages } from "./pages.js";

const FILTERS = ["actor", "action", "target", "namespace"];

/** The part. */
export function Changes({ query }) {
  const filters = Object.fromEntries(FILTERS.map((name) => [name, query[name] || null]));
  const listed = usePages("/audit", { ...filters, limit: 50 });
  const given = FILTERS.filter((name) => filters[name]);
  return html`<${Panel} title="Audit log" note="every change that a user made, the latest first" class="flush">
    <div class="filters">${FILTERS.map((name) => html`<${Filter} key=${name} name=${name} given=${filters[name] || ""} />`)}
      ${given.length > 0 && html`<${Button} kind="quiet" onClick=${() => setQuery(Object.fromEntries(FILTERS.map((name) => [name, null])))}>Clear filters<//>`}</div>
    <${Listed} of=${listed} what="the log">${(data) => html`<${Table} caption="Changes" rows=${data.entries} id=${(one) => one.id} busy=${listed.loading} columns=${COLUMNS}
      empty=${html`<${Empty} title=${given.length ? "No change matches" : "Nothing was changed yet"} />`} />`}<//>
    ${listed.turn}
  <//>`;
}

/** What is typed stays while the list is drawn anew, until it is given or the address changes. */
function Filter({ name, given }) {
  const [text, setText] = useState(given);
  useEffect(() => setText(given), [given]);
  return html`<label class="row"><span class="hidden">${`Only of that ${name}`}</span>
    <input type="search" placeholder=${name} maxlength="100" value=${text} onInput=${(event) => setText(event.target.value)}
      onChange=${(event) => setQuery({ [name]: event.target.value.trim() || null })} /></label>`;
}

const COLUMNS = [
  { key: "at", label: "When", cell: (one) => html`<${Moment} at=${one.at} />` },
  { key: "actor", label: "Who", cell: (one) => html`<span title=${`Token ${one.token_id}`}>${one.actor}</span>` },
  { key: "action", label: "What", cell: (one) => one.action },
  { key: "target", label: "Of", cell: (one) => (one.action.startsWith("job.") && one.action !== "job.delete" ? html`<a href=${href(`/jobs/${one.target}`)}>${one.target}</a>` : html`<span>${short(one.target)}</span>`) },
  { key: "detail", label: "How", wide: true, cell: (one) => html`<code title=${JSON.stringify(one.detail)}>${detailOf(one.detail)}</code>`, narrow: "hide" },
  { key: "namespace", label: "Namespace", cell: (one) => one.namespace || html`<span class="faint">cluster</span>`, narrow: "hide" },
];

const short = (target) => (target.length > 40 ? `${target.slice(0, 24)}…` : target);
const detailOf = (detail) => Object.entries(detail).map(([name, value]) => `${name}: ${typeof value === "object" ? JSON.stringify(value) : value}`).join(", ");
