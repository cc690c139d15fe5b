/** What a change would do to jobs, by the scheduler's own policy: asked, never done. */
import { send } from "../api.js";
import { html, useEffect, useState } from "../lib.js";
import { href } from "../address.js";
import { count, duration, plural } from "./format.js";
import { ErrorState, Loading } from "./states.js";
import { Table } from "./table.js";
import { Moment, useSettled } from "./time.js";

/**
 * The answer of POST /scheduler/what-if to a question, asked anew when it changes; null asks nothing.
 *
 * @returns {{answer: any, error: any, loading: boolean}}
 */
export function useForecast(question) {
  const key = useSettled(question === null ? "" : JSON.stringify(question), 300);
  const [state, setState] = useState({ key: null, answer: null, error: null });
  useEffect(() => {
    if (!key) return undefined;
    const controller = new AbortController();
    send("POST", "/scheduler/what-if", JSON.parse(key), { signal: controller.signal }).then(
      (answer) => setState({ key, answer, error: null }),
      (error) => error.name !== "AbortError" && setState({ key, answer: null, error }),
    );
    return () => controller.abort();
  }, [key]);
  return { answer: state.answer, error: key === state.key ? state.error : null, loading: Boolean(key) && key !== state.key };
}

/** Effects that are worth a line: other workers, another start, or an end that moves by more than a second. */
export function notable(effects) {
  return effects.filter(({ before, after, delay_s: delay }) =>
    before === null || after === null || before.workers !== after.workers || Math.abs(delay || 0) >= 1);
}

function delayText(effect) {
  if (effect.after === null) return "leaves";
  if (effect.before === null) return "new";
  if (effect.delay_s === null || effect.delay_s === undefined) return "–";
  if (Math.abs(effect.delay_s) < 1) return "as before";
  return `${duration(Math.round(Math.abs(effect.delay_s)))} ${effect.delay_s > 0 ? "later" : "sooner"}`;
}

const columns = [
  { key: "job", label: "Job", cell: (one) => (one.hypothetical ? html`<b>${one.job_id}</b>` : html`<a href=${href(`/jobs/${one.job_id}`)}>${one.job_id}</a>`) },
  { key: "workers", label: "Workers", number: true, cell: (one) => `${one.before ? count(one.before.workers) : "–"} → ${one.after ? count(one.after.workers) : "–"}` },
  { key: "starts", label: "Starts", number: true, cell: (one) => (one.after && one.after.starts_at ? html`<${Moment} at=${one.after.starts_at} />` : "–"), narrow: "hide" },
  { key: "ends", label: "Ends", number: true, cell: (one) => (one.after && one.after.ends_at ? html`<${Moment} at=${one.after.ends_at} />` : "–"), narrow: "hide" },
  { key: "delay", label: "Change of the end", number: true, cell: delayText },
];

/** A forecast as a table: whom it slows, whom it speeds up. */
export function Forecast({ of, nothing = "No job's workers or end would change." }) {
  if (of.error) return html`<${ErrorState} error=${of.error} />`;
  if (!of.answer) return of.loading ? html`<${Loading} height="76" label="Asking the scheduler" />` : null;
  const effects = notable(of.answer.jobs);
  const { others } = of.answer;
  return html`<div class="forecast" aria-busy=${of.loading}>
    <h3>Forecast</h3>
    ${effects.length === 0 ? html`<p class="note">${nothing}</p>` : html`<${Table} caption="Forecast" columns=${columns} rows=${effects.slice(0, 12)} id=${(one) => one.job_id} />`}
    ${effects.length > 12 && html`<p class="note">and ${plural(effects.length - 12, "more job")}</p>`}
    ${others.jobs > 0 && (others.sooner > 0 || others.later > 0) && html`<p class="note">Of other namespaces: ${plural(others.later, "job")} later, ${others.sooner} sooner.</p>`}
  </div>`;
}
