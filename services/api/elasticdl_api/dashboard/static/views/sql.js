/** Statements of SQL: written, planned, run; their jobs and results. */
import { send } from "../api.js";
import { html, useEffect, useRef, useState } from "../lib.js";
import { href, setQuery } from "../address.js";
import { useJobStream } from "../live.js";
import { useResource } from "../resource.js";
import { Button, Field, Panel, StateBadge } from "../ui/elements.js";
import { count, measure, plural, words } from "../ui/format.js";
import { saveBlob } from "../ui/save.js";
import { Empty, Loaded } from "../ui/states.js";
import { Table } from "../ui/table.js";
import { randomKey } from "./submit/values.js";

const POLL_MS = 2000;
const OVER = ["SUCCEEDED", "SUCCEEDED_WITH_SKIPS", "FAILED", "CANCELLED"];
const STEPS = { COMPARING: "Models are being compared", CHOSEN: "The best model is known", STOPPING: "The comparison is being stopped" };
const FORMS = [
  ["Train", "SELECT * FROM table\nTO TRAIN DNNClassifier\nLABEL column\nINTO model"],
  ["Evaluate", "SELECT * FROM table\nTO EVALUATE model\nLABEL column"],
  ["Explain", "SELECT * FROM table\nTO EXPLAIN model"],
  ["Find a model", "SELECT * FROM table\nLABEL column\nINTO model"],
  ["Predict", "SELECT * FROM table\nTO PREDICT table.column\nUSING model"],
];

/** The view's title. */
export const title = () => "SQL";

/** The view. `job` in the address names the job whose statement and result it shows. */
export default function Sql({ query }) {
  const who = useResource("/whoami");
  return html`<div class="view"><div class="head"><h1>SQL</h1><span class="note">one statement at a time; the database is only read</span></div>
    <${Loaded} of=${who} what="who you are">${({ home }) => html`<${Statement} home=${home} job=${query.job || ""} />`}<//></div>`;
}

function Statement({ home, job }) {
  const namespace = useResource(`/namespaces/${home}`);
  const shown = useResource(job ? `/sql/${encodeURIComponent(job)}` : null);
  const [text, setText] = useState("");
  const [source, setSource] = useState("");
  const [problem, setProblem] = useState(null);
  const [plan, setPlan] = useState(null);
  const [busy, setBusy] = useState("");
  const area = useRef(null);
  const sent = useRef({ body: "", key: "" });
  const sources = (namespace.data && namespace.data.sources) || [];
  const chosen = source || (shown.data && shown.data.source) || sources[0] || "";
  useEffect(() => {
    if (shown.data && !text) setText(shown.data.statement);
  }, [shown.data]);
  const ask = async (dryRun) => {
    const wanted = { statement: text, source: chosen, dry_run: dryRun };
    const body = JSON.stringify(wanted);
    // The same statement under the same name: however often the button is pressed before it is answered, there is one job.
    if (sent.current.body !== body) sent.current = { body, key: randomKey() };
    setBusy(dryRun ? "plan" : "run");
    setProblem(null);
    setPlan(null);
    try {
      const told = await send("POST", "/sql", wanted, { headers: { "Idempotency-Key": sent.current.key } });
      sent.current = { body: "", key: "" };
      if (told.job_id && told.verb !== "SHOW") setQuery({ job: told.job_id });
      setPlan(told);
    } catch (error) {
      setProblem(error);
      mark(area.current, text, error.position);
    }
    setBusy("");
  };
  const running = busy !== "";
  return html`<div class="stack">
    <${Panel} title="Statement" actions=${html`<span class="row">${FORMS.map(([name, form]) => html`<${Button} key=${name} class="small" onClick=${() => { setText(form); area.current.focus(); }}>${name}<//>`)}</span>`}>
      <form class="stack" onSubmit=${(event) => { event.preventDefault(); if (!running && text.trim()) ask(false); }}>
        ${!namespace.loading && sources.length === 0 && html`<${Empty} title="No database has a name here yet">An administrator gives your namespace one: Admin, Namespaces.<//>`}
        <${Field} id="source" label="Database"><select id="source" value=${chosen} onChange=${(event) => setSource(event.target.value)}>
          ${sources.map((one) => html`<option key=${one} value=${one}>${one}</option>`)}</select><//>
        <${Field} id="statement" label="Statement" hint="SELECT ... TO TRAIN, EVALUATE, EXPLAIN or PREDICT, SHOW TRAIN, or SELECT ... LABEL column INTO model, which finds one." problem=${problem && said(problem)}>
          <textarea id="statement" ref=${area} class="statement" rows="9" spellcheck=${false} value=${text} aria-invalid=${Boolean(problem)}
            aria-describedby="statement-hint${problem ? " statement-problem" : ""}" onInput=${(event) => setText(event.target.value)}></textarea><//>
        <div class="row"><${Button} kind="primary" busy=${busy === "run"} disabled=${running || !text.trim()} onClick=${() => ask(false)}>Run<//>
          <${Button} busy=${busy === "plan"} disabled=${running || !text.trim()} onClick=${() => ask(true)}>Show the plan<//>
          <span class="note" role="status">${running ? "The rows are being read." : ""}</span></div>
      </form><//>
    ${plan && html`<${Plan} plan=${plan} />`}
    ${job && html`<${Result} key=${job} job=${job} of=${shown} />`}
  </div>`;
}

/** What the API says of a statement, in a line: its text is above. */
const said = (error) => [error.message.split("\n")[0], error.fix, ...(error.problems || []).map((one) => `${words(one.message)}${one.fix ? `: ${one.fix}` : ""}`)].filter(Boolean).join("; ");

/** Selects the word of a statement at which something is wrong. */
function mark(area, text, position) {
  if (!area) return;
  area.focus();
  if (!position) return;
  const lines = text.split("\n");
  const start = lines.slice(0, position.line - 1).reduce((length, line) => length + line.length + 1, 0) + position.column - 1;
  const word = /^\w+/.exec(text.slice(start));
  area.setSelectionRange(start, start + (word ? word[0].length : 1));
}

function Plan({ plan }) {
  const facts = [`${words(plan.verb.toLowerCase())} ${plan.model}`, plural(plan.rows, "row"), plan.columns.join(", ")];
  return html`<${Panel} title="Plan" note=${facts.join(" · ")}><div class="stack">
    ${plan.classes.length > 0 && html`<p>Classes: ${plan.classes.slice(0, 20).join(", ")}${plan.classes.length > 20 ? ` and ${plan.classes.length - 20} more` : ""}</p>`}
    ${plan.verb === "SHOW" && html`<pre class="sent" tabindex="0">${plan.statement}</pre>`}
    ${plan.search ? html`<${Tried} search=${plan.search} />` : html`<${PlannedJob} plan=${plan} />`}
  </div><//>`;
}

const PlannedJob = ({ plan }) => html`<details><summary>The job</summary><pre class="sent" tabindex="0">${JSON.stringify(plan.spec, null, 2)}</pre></details>
    <details><summary>The model's module</summary><pre class="sent" tabindex="0">${plan.module}</pre></details>`;

/** What a search looks at and tries. */
function Tried({ search }) {
  const columns = ["column", "holds", "features"].map((key, at) => ({ key, label: key, cell: (row) => row[at] }));
  return html`<details><summary>Features of the columns</summary><${Table} caption="Features of the columns" columns=${columns} rows=${search.features} id=${(row) => row[0]} /></details>
    <details><summary>Models that are tried</summary>${search.statements.map((one, at) => html`<pre key=${at} class="sent" tabindex="0">${one}</pre>`)}</details>`;
}

function Result({ job, of }) {
  const search = of.data && of.data.search;
  if (!of.data) return html`<${Panel} title="Result"><${Loaded} of=${of} what="the result">${() => null}<//><//>`;
  return search && search.state !== "DONE" ? html`<${Search} job=${job} of=${of} />` : html`<${JobResult} job=${job} of=${of} />`;
}

/** A search for a model, until its job is made or it ends without one. */
function Search({ job, of }) {
  const [problem, setProblem] = useState(null);
  const { search, state } = of.data;
  const step = STEPS[search.state];
  useEffect(() => {
    if (!step) return undefined;
    const timer = setInterval(of.reload, POLL_MS);
    return () => clearInterval(timer);
  }, [search.state]);
  const stop = () => send("POST", `/sql/${encodeURIComponent(job)}/cancel`).then(of.reload, setProblem);
  const failed = problem || search.error;
  return html`<${Panel} title="Result" class="flush" note=${job} actions=${html`<span class="row"><${StateBadge} state=${state} />
      ${search.state === "COMPARING" && html`<${Button} class="small" onClick=${stop}>Stop<//>`}</span>`}>
    ${step && html`<p class="inset" role="status">${step}: round ${search.round} of ${search.epochs.length}, by ${search.metric} over ${plural(search.held_rows, "row")} that none is trained on.</p>`}
    ${failed && html`<p class="problem inset" role="alert">${failed.message}${failed.fix && `: ${failed.fix}`}</p>`}
    <${Rows} result=${of.data} /><div class="inset stack"><${Tried} search=${search} /></div><//>`;
}

function JobResult({ job, of }) {
  const live = useResource(`/jobs/${encodeURIComponent(job)}`);
  const [told, setTold] = useState(null);
  const state = told || (live.data && live.data.state);
  useJobStream(job, (messages) => {
    const latest = messages.findLast((one) => one.event === "status" || one.event === "end");
    if (latest && latest.data.state && latest.data.state !== state) {
      setTold(latest.data.state);
      of.reload();
      live.reload();
    }
  });
  const failed = live.data && live.data.error;
  return html`<${Panel} title="Result" class="flush" note=${html`<a href=${href(`/jobs/${job}`)}>${job}</a>`} actions=${state && html`<${StateBadge} state=${state} />`}>
    <${Loaded} of=${of} what="the result">${(result) => html`<div>
      ${failed && html`<p class="problem inset" role="alert">${failed.message}${failed.fix && `: ${failed.fix}`}</p>`}
      ${result.search && state && state.startsWith("SUCCEEDED") && html`<p class="inset">The model ${result.model} is trained.</p>`}
      ${result.rows.length > 0 ? html`<${Rows} result=${result} />` : html`<${Empty} title=${nothing(result, state)} />`}
    </div>`}<//><//>`;
}

function nothing(result, state) {
  if (!OVER.includes(state)) return "The job is not over yet.";
  if (state.startsWith("SUCCEEDED") && result.verb === "TRAIN") return `The model ${result.model} is trained.`;
  return "There is no result.";
}

function Rows({ result }) {
  const rows = result.rows.map((cells, number) => ({ number, cells }));
  const columns = result.columns.map((name, at) => ({
    key: name, label: name, number: typeof result.rows[0][at] === "number",
    cell: (row) => (typeof row.cells[at] === "number" ? measure(row.cells[at]) : String(row.cells[at] ?? "")),
  }));
  const save = () => saveBlob(`${result.target || result.verb.toLowerCase()}.csv`, new Blob([csvOf(result)], { type: "text/csv" }));
  return html`<${Table} caption=${`Result of ${result.verb} ${result.model}`} columns=${columns} rows=${rows} id=${(row) => row.number} />
    <p class="inset row"><${Button} class="small" icon="download" onClick=${save}>Save as CSV<//>
      ${result.more && html`<span class="note">the first ${count(rows.length)} rows; the <a href=${href(`/jobs/${result.job_id}/files`)}>files of the job</a> have all</span>`}</p>`;
}

const cellOf = (value) => (/[",\n]/.test(value) ? `"${value.replaceAll('"', '""')}"` : value);
const csvOf = (result) => [result.columns, ...result.rows].map((row) => row.map((one) => cellOf(String(one ?? ""))).join(",")).join("\n") + "\n";
