/** Tokens: who holds one, what it may do, when it was used; a new one, shown once; revoking. */
import { send } from "../../api.js";
import { html, useState } from "../../lib.js";
import { Badge, Button, Copyable, Field, Panel } from "../../ui/elements.js";
import { Confirm, Dialog } from "../../ui/dialog.js";
import { Empty, ErrorState } from "../../ui/states.js";
import { Table } from "../../ui/table.js";
import { Ago, Moment } from "../../ui/time.js";
import { tell } from "../../ui/toast.js";
import { Listed, useChange, usePages } from "./pages.js";

const TONES = { valid: "good", expired: "off", revoked: "bad" };
const LIVES = [["", "until it is revoked"], ["86400", "for a day"], ["2592000", "for 30 days"], ["31536000", "for a year"]];

/** The part. */
export function Tokens() {
  const [ended, setEnded] = useState(false);
  const [making, setMaking] = useState(false);
  const [shown, setShown] = useState(null);
  const [leaving, setLeaving] = useState(null);
  const listed = usePages("/tokens", { ended: ended || null, limit: 50 });
  const made = (token) => {
    setMaking(false);
    setShown(token);
    listed.reload();
  };
  const revoked = (token) => {
    setLeaving(null);
    tell(`The token ${token.name} is revoked.`);
    listed.reload();
  };
  const actions = html`<label class="row"><input type="checkbox" checked=${ended} onChange=${(event) => setEnded(event.target.checked)} />Also ended ones</label>
    <${Button} kind="primary" onClick=${() => setMaking(true)}>New token<//>`;
  return html`<${Panel} title="Tokens" class="flush" actions=${actions}>
    <${Listed} of=${listed} what="the tokens">${(data) => html`<${Table} caption="Tokens" rows=${data.tokens} id=${(one) => one.id} columns=${columns(setLeaving)}
      empty=${html`<${Empty} title="No tokens yet">The token of the cluster itself is not in this list.<//>`} />`}<//>
    ${listed.turn}
    ${making && html`<${NewToken} onMade=${made} onClose=${() => setMaking(false)} />`}
    ${shown && html`<${Secret} token=${shown} onClose=${() => setShown(null)} />`}
    ${leaving && html`<${Revoke} token=${leaving} onDone=${() => revoked(leaving)} onClose=${() => setLeaving(null)} />`}
  <//>`;
}

const columns = (revoke) => [
  { key: "name", label: "Name", cell: (one) => html`<span class="name"><span>${one.name}</span><small>${one.id}</small></span>` },
  { key: "state", label: "State", cell: (one) => html`<${Badge} tone=${TONES[one.state]}>${one.state}<//>` },
  { key: "owner", label: "Owner", cell: (one) => one.owner, narrow: "hide" },
  { key: "namespace", label: "Namespace", cell: (one) => one.namespace || html`<span class="faint">all</span>`, narrow: "hide" },
  { key: "scope", label: "May", cell: (one) => one.scope },
  { key: "used", label: "Last used", number: true, cell: (one) => html`<${Ago} at=${one.last_used_at} />`, narrow: "hide" },
  { key: "created", label: "Created", number: true, cell: (one) => html`<${Ago} at=${one.created_at} />`, narrow: "hide" },
  { key: "expires", label: "Ends", number: true, cell: (one) => html`<${Moment} at=${one.revoked_at || one.expires_at} />`, narrow: "hide" },
  { key: "act", label: html`<span class="hidden">Actions</span>`, number: true, cell: (one) => one.state === "valid" && html`<${Button} class="small" aria-label=${`Revoke ${one.name}`} onClick=${() => revoke(one)}>Revoke<//>` },
];

function NewToken({ onMade, onClose }) {
  const [name, setName] = useState("");
  const [scope, setScope] = useState("submit");
  const [namespace, setNamespace] = useState("");
  const [owner, setOwner] = useState("");
  const [life, setLife] = useState("");
  const wanted = {
    name, scope, ...(namespace === "*" ? { of_cluster: true } : namespace && { namespace }), ...(owner && { owner }), ...(life && { expires_in_s: Number(life) }),
  };
  const change = useChange(() => send("POST", "/tokens", wanted), onMade);
  return html`<${Confirm} title="New token" label="Make it" busy=${change.busy} disabled=${!name} act=${change.run} onClose=${onClose}><div class="stack">
    ${change.error && html`<${ErrorState} error=${change.error} />`}
    <${Field} id="token-name" label="Name" hint="What it is for: ada-laptop, ci." problem=${change.problemOf("name")}>
      <input id="token-name" value=${name} maxlength="64" autocomplete="off" spellcheck=${false} aria-describedby="token-name-hint" onInput=${(event) => setName(event.target.value)} /><//>
    <${Field} id="token-scope" label="Its holder may"><select id="token-scope" value=${scope} onChange=${(event) => setScope(event.target.value)}>
      <option value="read">read</option><option value="submit">read and submit</option><option value="admin">administer, too</option></select><//>
    <${Field} id="token-namespace" label="Namespace" hint="Empty: yours. * sees all of them." problem=${change.problemOf("namespace")}>
      <input id="token-namespace" value=${namespace} maxlength="40" autocomplete="off" spellcheck=${false} aria-describedby="token-namespace-hint" onInput=${(event) => setNamespace(event.target.value.trim())} /><//>
    <${Field} id="token-owner" label="Owner" hint="Who will hold it, and own what is submitted with it. Empty: you." problem=${change.problemOf("owner")}>
      <input id="token-owner" value=${owner} maxlength="100" autocomplete="off" spellcheck=${false} aria-describedby="token-owner-hint" onInput=${(event) => setOwner(event.target.value.trim())} /><//>
    <${Field} id="token-life" label="Valid"><select id="token-life" value=${life} onChange=${(event) => setLife(event.target.value)}>
      ${LIVES.map(([seconds, text]) => html`<option key=${seconds} value=${seconds}>${text}</option>`)}</select><//>
  </div><//>`;
}

/** The new token itself: the API shows it this once. */
function Secret({ token, onClose }) {
  return html`<${Dialog} title=${`Token ${token.name}`} onClose=${onClose} actions=${html`<${Button} kind="primary" onClick=${onClose}>I have it<//>`}>
    <p>Copy it now: it is not shown again.</p>
    <p class="row secret"><code>${token.token}</code><${Copyable} text=${token.token} label="Copy the token" /></p>
  <//>`;
}

function Revoke({ token, onDone, onClose }) {
  const change = useChange(() => send("DELETE", `/tokens/${token.id}`), onDone);
  return html`<${Confirm} title=${`Revoke ${token.name}?`} label="Revoke" kind="danger" busy=${change.busy} act=${change.run} onClose=${onClose}>
    <p>Requests with it are refused from now on, and sessions that began with it end. This cannot be undone.</p>
    ${change.error && html`<${ErrorState} error=${change.error} />`}
  <//>`;
}
