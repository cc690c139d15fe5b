/** Administration: namespaces with their limits, tokens, who changed what, reservations of slots. */
import { href } from "../address.js";
import { html } from "../lib.js";
import { Tabs } from "../ui/elements.js";
import { Empty } from "../ui/states.js";
import { Changes } from "./admin/changes.js";
import { Namespaces } from "./admin/namespaces.js";
import { Reservations } from "./admin/reservations.js";
import { Tokens } from "./admin/tokens.js";

const PARTS = [
  ["tokens", "Tokens", Tokens],
  ["namespaces", "Namespaces", Namespaces],
  ["reservations", "Reservations", Reservations],
  ["audit", "Audit log", Changes],
];

/** The view's title. */
export const title = () => "Admin";

/** The view. */
export default function Admin({ params, query }) {
  const chosen = params.part || PARTS[0][0];
  const part = PARTS.find(([name]) => name === chosen);
  return html`<div class="view"><div class="head"><h1>Admin</h1></div>
    <${Tabs} label="Parts of administration" chosen=${chosen} tabs=${PARTS.map(([name, label]) => ({ name, label, href: href(`/admin/${name}`) }))} />
    ${part ? html`<${part[2]} query=${query} />` : html`<${Empty} title="There is no such part"><a href="#/admin">Go to the tokens</a><//>`}
  </div>`;
}
