/** Where the planned records are: committed, leased, still to do, passed over. The parts are always the plan. */
import { html, useState } from "../lib.js";
import { Button } from "../ui/elements.js";
import { count, percent } from "../ui/format.js";

const PARTS = [
  ["committed", "Committed"],
  ["leased", "In work"],
  ["todo", "To do"],
  ["skipped", "Passed over"],
];
const FEW = 6;

/** One bar; `of` has planned, committed, leased, todo and skipped. */
export function LedgerBar({ label, of, small = false }) {
  const said = PARTS.filter(([name]) => of[name] > 0).map(([name, text]) => `${text} ${count(of[name])}`).join(", ");
  return html`<div class="ledger ${small ? "small" : ""}">
    <span class="label">${label}</span>
    <span class="bar" role="img" aria-label=${`${label}: ${said || "nothing planned"}, of ${count(of.planned)} planned`}>
      ${PARTS.map(([name, text]) => of[name] > 0 && html`<i key=${name} data-part=${name} title=${`${text}: ${count(of[name])}`} style=${{ flexGrow: String(of[name]) }}></i>`)}
    </span>
    <span class="sum">${percent(of.planned ? of.committed / of.planned : 0)}</span>
  </div>`;
}

/** All epochs and their sum. `ledger` is as GET /jobs/{id}/ledger gives it. */
export function Ledger({ ledger }) {
  const [whole, setWhole] = useState(false);
  const { total, epochs, unit } = ledger;
  const open = epochs.findIndex((epoch) => epoch.committed + epoch.skipped < epoch.planned);
  const middle = open < 0 ? epochs.length : open;
  const start = Math.max(0, Math.min(middle - 2, epochs.length - FEW));
  const shown = whole ? epochs : epochs.slice(start, start + FEW);
  return html`<div class="ledgers">
    <ul class="legend">${PARTS.map(([name, text]) => html`<li key=${name}><i data-part=${name}></i>${text}<b>${count(total[name])}</b></li>`)}
      <li class="total">Planned<b>${count(total.planned)} ${unit}</b></li></ul>
    <${LedgerBar} label="All" of=${total} />
    <div class=${whole ? "scroll" : ""}>${epochs.length > 1 && shown.map((epoch) => html`<${LedgerBar} key=${epoch.epoch} small label=${`Epoch ${epoch.epoch}`} of=${epoch} />`)}</div>
    ${epochs.length > FEW && html`<${Button} kind="quiet" class="small" onClick=${() => setWhole(!whole)}>${whole ? "Show fewer epochs" : `Show ${epochs.length} epochs`}<//>`}
  </div>`;
}
