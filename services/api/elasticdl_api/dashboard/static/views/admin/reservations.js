/** Reservations: slots taken from jobs for what is not the cluster's, such as a service. */
import { send } from "../../api.js";
import { html, useState } from "../../lib.js";
import { Badge, Button, Field, Panel } from "../../ui/elements.js";
import { Confirm } from "../../ui/dialog.js";
import { count, duration, plural } from "../../ui/format.js";
import { Empty, ErrorState } from "../../ui/states.js";
import { Table } from "../../ui/table.js";
import { Ago } from "../../ui/time.js";
import { Listed, useChange, useEdited, wholeOf } from "./pages.js";

/** The part. */
export function Reservations() {
  const { listed, edited, setEdited, leaving, setLeaving, done } = useEdited("/cluster/reservations");
  const note = listed.data ? `${plural(listed.data.slots, "slot")}, ${count(listed.data.for_jobs)} of them for jobs${listed.data.headroom ? `, ${count(listed.data.headroom)} kept free` : ""}` : "";
  return html`<${Panel} title="Reservations" note=${note} class="flush" actions=${html`<${Button} kind="primary" onClick=${() => setEdited({})}>Reserve slots<//>`}>
    <${Listed} of=${listed} what="the reservations">${(data) => html`<${Table} caption="Reservations" rows=${data.reservations} id=${(one) => one.name} columns=${columns(setEdited, setLeaving)}
      empty=${html`<${Empty} title="Nothing is reserved">All slots are for jobs.<//>`} />`}<//>
    ${edited && html`<${Edit} reservation=${edited} onDone=${(name) => done(`${name} is reserved.`)} onClose=${() => setEdited(null)} />`}
    ${leaving && html`<${Release} reservation=${leaving} onDone=${() => done(`The slots of ${leaving.name} are given back.`)} onClose=${() => setLeaving(null)} />`}
  <//>`;
}

const columns = (edit, release) => [
  { key: "name", label: "For", cell: (one) => one.name },
  { key: "slots", label: "Slots", number: true, cell: (one) => count(one.slots) },
  { key: "granted", label: "Free of workers", cell: (one) => html`<${Badge} tone=${one.granted === one.slots ? "good" : "busy"}>${count(one.granted)} of ${count(one.slots)}<//>` },
  { key: "grace", label: "Grace", number: true, cell: (one) => duration(one.grace_s), narrow: "hide" },
  { key: "changed", label: "Changed", number: true, cell: (one) => html`<${Ago} at=${one.changed_at} />`, narrow: "hide" },
  { key: "act", label: html`<span class="hidden">Actions</span>`, number: true, cell: (one) => html`<${Button} class="small" aria-label=${`Change ${one.name}`} onClick=${() => edit(one)}>Change<//>
    <${Button} class="small" aria-label=${`Give back ${one.name}`} onClick=${() => release(one)}>Give back<//>` },
];

function Edit({ reservation, onDone, onClose }) {
  const [name, setName] = useState(reservation.name || "");
  const [slots, setSlots] = useState(String(reservation.slots ?? ""));
  const [grace, setGrace] = useState(String(reservation.grace_s ?? 30));
  const wanted = { slots: wholeOf(slots) ?? "", grace_s: Number(grace) };
  const change = useChange(() => send("PUT", `/cluster/reservations/${encodeURIComponent(name)}`, wanted), () => onDone(name));
  return html`<${Confirm} title=${reservation.name ? `Change ${name}` : "Reserve slots"} label="Reserve" busy=${change.busy} disabled=${!name || !slots} act=${change.run} onClose=${onClose}><div class="stack">
    ${change.error && html`<${ErrorState} error=${change.error} />`}
    ${!reservation.name && html`<${Field} id="reservation-name" label="For" hint="Who takes them: web-shop." problem=${change.problemOf("name")}>
      <input id="reservation-name" value=${name} maxlength="63" autocomplete="off" spellcheck=${false} aria-describedby="reservation-name-hint" onInput=${(event) => setName(event.target.value.trim())} /><//>`}
    <div class="fields"><${Field} id="reservation-slots" label="Slots" problem=${change.problemOf("slots")}>
      <input id="reservation-slots" inputmode="numeric" autocomplete="off" value=${slots} onInput=${(event) => setSlots(event.target.value)} /><//>
    <${Field} id="reservation-grace" label="Grace, seconds" hint="Workers have that long to leave; then they are ended." problem=${change.problemOf("grace_s")}>
      <input id="reservation-grace" inputmode="numeric" autocomplete="off" value=${grace} aria-describedby="reservation-grace-hint" onInput=${(event) => setGrace(event.target.value)} /><//></div>
  </div><//>`;
}

function Release({ reservation, onDone, onClose }) {
  const change = useChange(() => send("DELETE", `/cluster/reservations/${encodeURIComponent(reservation.name)}`), onDone);
  return html`<${Confirm} title=${`Give back the slots of ${reservation.name}?`} label="Give back" busy=${change.busy} act=${change.run} onClose=${onClose}>
    <p>${plural(reservation.slots, "slot")} will be for jobs again.</p>
    ${change.error && html`<${ErrorState} error=${change.error} />`}
  <//>`;
}
