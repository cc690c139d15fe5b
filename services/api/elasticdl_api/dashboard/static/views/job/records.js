/** What became of a job's records: the ledger, and on request the audit of it from outside. */
import { Ledger } from "../../charts/ledger.js";
import { freshLedger, isOver, isStale } from "../../facts.js";
import { html, useEffect, useRef, useState } from "../../lib.js";
import { useResource, useThrottled } from "../../resource.js";
import { Badge, Button, Panel } from "../../ui/elements.js";
import { count, plural, words } from "../../ui/format.js";
import { Empty, ErrorState, Loaded } from "../../ui/states.js";
import { Table } from "../../ui/table.js";

const MOST_WORKERS = 200;
const RELOAD_MS = 5_000;
const VERDICTS = {
  held: ["good", "Every committed record was processed"],
  broken: ["bad", "Not every committed record was processed"],
  running: ["busy", "Nothing is wrong so far"],
};

/** The audit of a job, which is made when it is asked for: it reads all that the workers wrote down. */
function useAudit(job) {
  const [asked, setAsked] = useState(false);
  const { data, error, loading, reload } = useResource(asked ? `/jobs/${encodeURIComponent(job.id)}/audit` : null);
  return { data, error, busy: loading, ask: () => (asked ? reload() : setAsked(true)) };
}

/** What an audit found. */
function Audited({ data, error, ask }) {
  if (error) return html`<${ErrorState} error=${error} retry=${ask} />`;
  if (!data) return null;
  const [tone, said] = VERDICTS[data.verdict];
  return html`<div class="callout audited" role="status"><${Badge} tone=${tone}>${said}<//>
    <span class="note">${count(data.total.committed)} of ${count(data.total.planned)} committed, ${plural(data.workers.length, "worker")} wrote down what they did${data.redone ? `, ${plural(data.redone, "record")} done again` : ""}${data.duplicates ? `, ${plural(data.duplicates, "record")} twice in the model` : ""}</span>
    ${data.findings.length > 0 && html`<ul class="plain">${data.findings.map((one) => html`<li key=${one}>${one}</li>`)}</ul>`}
    ${data.workers.length > 0 && html`<${Table} caption="Who processed them" columns=${workerColumns} rows=${data.workers.slice(0, MOST_WORKERS)} id=${(one) => one.owner} />`}
    ${data.workers.length > MOST_WORKERS && html`<p class="note">and ${plural(data.workers.length - MOST_WORKERS, "more worker")}</p>`}</div>`;
}

const workerColumns = [
  { key: "owner", label: "Worker", cell: (one) => html`<code>${one.owner}</code>` },
  { key: "records", label: "Records", number: true, title: "with those that it did again", cell: (one) => count(one.records) },
  { key: "tasks", label: "Leases", number: true, cell: (one) => count(one.tasks) },
  { key: "first", label: "First version", number: true, cell: (one) => count(one.first_version), narrow: "hide" },
  { key: "last", label: "Last version", number: true, cell: (one) => count(one.last_version), narrow: "hide" },
];

/** The ledger as it was read, with all that streams told since: each tells only the epochs around the present one. */
function useLedger(job) {
  const read = useResource(`/jobs/${encodeURIComponent(job.id)}/ledger`);
  const kept = useRef({ of: null, ledger: null });
  if (kept.current.of !== read.data) kept.current = { of: read.data, ledger: read.data };
  if (kept.current.ledger) kept.current.ledger = freshLedger(kept.current.ledger, job.ledger);
  const { ledger } = kept.current;
  const readSoon = useThrottled(read.reload, RELOAD_MS);
  useEffect(() => {
    if (ledger && isStale(ledger, job.ledger)) readSoon();
  }, [ledger]);
  return { ...read, data: ledger || read.data };
}

/** The ledger of a job. */
export function Records({ job }) {
  const audited = useAudit(job);
  const read = useLedger(job);
  useEffect(() => {
    if (read.data && !read.missing) read.reload();
  }, [job.state]);
  const { duplicates, redone, skipped = [], audit } = job.status;
  const lost = skipped.map((one) => `${one.records === null ? "some" : count(one.records)} passed over (${words(one.reason).toLowerCase()})`);
  const said = [
    ...lost, duplicates ? `${plural(duplicates, "record")} twice in the model` : "", redone ? `${plural(redone, "record")} done again` : "",
  ].filter(Boolean);
  const note = audit ? `Audit ${audit.state}` : said.length || !(read.data && read.data.total.planned) ? "" : "Every planned record is in one of these places";
  return html`<${Panel} title="Records" note=${note} actions=${html`<${Button} class="small" busy=${audited.busy} onClick=${audited.ask}
    title="Counts anew what was processed and by whom, from what the workers wrote down">Audit<//>`}>
    <${Loaded} of=${read} what="The ledger" height=${90}>${(ledger) => (ledger.total.planned > 0 ? html`<${Ledger} ledger=${ledger} />`
      : html`<${Empty} title=${isOver(job) ? "No records were planned" : "The records are not planned yet"} />`)}<//>
    ${said.length > 0 && html`<p class="note">${said.join(" · ")}</p>`}
    <${Audited} ...${audited} /><//>`;
}
