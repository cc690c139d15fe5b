/** What happened to the job, the last first. */
import { html, useMemo, useState } from "../../lib.js";
import { Button, Panel } from "../../ui/elements.js";
import { count, measure, words } from "../../ui/format.js";
import { Empty } from "../../ui/states.js";
import { Moment, useSettled } from "../../ui/time.js";

const STEP = 200;

/** Events with a text in kind, message or detail, of one kind if that is given; the last first. */
export function filterEvents(events, text, kind) {
  const wanted = text.trim().toLowerCase();
  return events.filter((one) => (!kind || one.kind === kind)
    && (!wanted || `${one.kind} ${one.message} ${JSON.stringify(one.detail)}`.toLowerCase().includes(wanted))).reverse();
}

/** The events of a job. */
export function Events({ events }) {
  const [text, setText] = useState("");
  const [kind, setKind] = useState("");
  const [most, setMost] = useState(STEP);
  const settled = useSettled(text, 150);
  const found = useMemo(() => filterEvents(events, settled, kind), [events, settled, kind]);
  const kinds = useMemo(() => [...new Set(events.map((one) => one.kind))].sort(), [events]);
  return html`<${Panel} class="flush" title="Events" note=${count(found.length)} actions=${html`
      <input type="search" aria-label="Search in events" placeholder="Search" value=${text} onInput=${(event) => setText(event.target.value)} />
      <select aria-label="Kind" value=${kind} onChange=${(event) => setKind(event.target.value)}><option value="">All kinds</option>${kinds.map((one) => html`<option key=${one} value=${one}>${words(one)}</option>`)}</select>`}>
    ${found.length === 0 ? html`<${Empty} title=${events.length ? "No event matches" : "Nothing has happened yet"} />` : html`<ol class="timeline">${found.slice(0, most).map((one) => html`<${Event} key=${one.id} event=${one} />`)}</ol>`}
    ${found.length > most && html`<div class="pages"><${Button} onClick=${() => setMost(most + STEP)}>Show ${Math.min(STEP, found.length - most)} more<//></div>`}
  <//>`;
}

/** What an event tells besides its message: `loss 0.1611 · accuracy 0.9861`. */
export function detailText(detail) {
  const parts = [];
  for (const [name, value] of Object.entries(detail)) {
    if (value === null || value === "" || (typeof value === "object" && Object.keys(value).length === 0)) continue;
    if (Array.isArray(value)) parts.push(`${words(name)} ${JSON.stringify(value)}`);
    else if (typeof value === "object") parts.push(...Object.entries(value).map(([key, one]) => `${key} ${typeof one === "object" ? JSON.stringify(one) : measure(one)}`));
    else parts.push(`${words(name)} ${typeof value === "number" ? measure(value) : value}`);
  }
  return parts.join(" · ");
}

function Event({ event }) {
  const said = detailText(event.detail || {});
  return html`<li><span class="faint"><${Moment} at=${event.at} /></span><span><span class="tag">${words(event.kind)}</span></span>
    <span class="what">${event.message}${said && html` <span class="faint">${said.length > 300 ? `${said.slice(0, 300)}…` : said}</span>`}</span></li>`;
}
