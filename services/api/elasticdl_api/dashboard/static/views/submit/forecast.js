/** What the scheduler would do with the job that is being written: when it would start, and whom it would slow. */
import { html } from "../../lib.js";
import { Facts, Panel } from "../../ui/elements.js";
import { Forecast, useForecast } from "../../ui/forecast.js";
import { ErrorState, Loading } from "../../ui/states.js";
import { Ago } from "../../ui/time.js";

const NAME = "this job";

/** The question to `POST /scheduler/what-if` for a specification; null while its numbers make no sense. */
export function questionOf(spec) {
  const { min_workers: least = 1, max_workers: most = 1, priority = 0 } = spec;
  if (![least, most, priority].every(Number.isInteger) || least < 1 || most < least) return null;
  const job = { name: NAME, min_workers: least, max_workers: most, priority };
  for (const name of ["model_def", "use_async"]) {
    if (spec[name] !== undefined && spec[name] !== "") job[name] = spec[name];
  }
  for (const name of ["minibatch_size", "num_ps"]) {
    if (Number.isInteger(spec[name])) job[name] = spec[name];
  }
  return { add: [job] };
}

/** The panel beside the form. */
export function Expected({ spec }) {
  const question = questionOf(spec);
  const asked = useForecast(question);
  const known = question !== null && asked.answer;
  return html`<${Panel} title="What would happen" note="by the scheduler's policy; nothing is changed">
    ${question === null && html`<p class="note">Give a number of workers to see it.</p>`}
    ${asked.error && html`<${ErrorState} error=${asked.error} />`}
    ${known && html`<${Answer} answer=${asked.answer} loading=${asked.loading} />`}
    ${question !== null && !asked.answer && !asked.error && html`<${Loading} height="90" label="Asking the scheduler" />`}
  <//>`;
}

function Answer({ answer, loading }) {
  const mine = answer.jobs.find((one) => one.hypothetical);
  const others = { ...answer, jobs: answer.jobs.filter((one) => !one.hypothetical) };
  const { after } = mine;
  return html`<div class="stack" role="status">
    <${Facts} items=${[
      ["Starts", after.starts_at ? html`<${Ago} at=${after.starts_at} />` : "unknown"],
      ["Workers at first", String(after.workers)],
      ["Ends", after.ends_at ? html`<${Ago} at=${after.ends_at} />` : "unknown until its speed is"],
    ]} /><p class="note">${after.reason.text}</p>
    <${Forecast} of=${{ answer: others, error: null, loading }} nothing="No other job would wait for it." />
  </div>`;
}
