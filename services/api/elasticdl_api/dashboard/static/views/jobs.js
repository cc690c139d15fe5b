/** All jobs: filtered, sorted and paged by the API; what changes on the page shown is changed in place. */
import { url } from "../api.js";
import { endOf, fractionOf, GROUPS, isOver, STATES, workersOf } from "../facts.js";
import { html, useCallback, useEffect, useMemo, useState } from "../lib.js";
import { useOverview } from "../live.js";
import { href, setQuery } from "../address.js";
import { usePageTokens, useResource, useThrottled } from "../resource.js";
import { useMay } from "../session.js";
import { Button, Icon, Meter, StateBadge } from "../ui/elements.js";
import { count, measure, percent, plural } from "../ui/format.js";
import { Empty, ErrorState, Loading } from "../ui/states.js";
import { Table } from "../ui/table.js";
import { Ago, useSettled } from "../ui/time.js";
import { conditionOf, holds, inOrderOf, isKey, keysOf, offeredKeys, valueOf } from "./jobs/values.js";

const PAGE = 50;
const RELOAD_MS = 3_000;
/** As many jobs are looked at where the API does not sort or filter: by values of theirs. */
const LOOKED_AT = 500;

/** The view's title. */
export const title = () => "Jobs";

const shownValue = (value) => (value === undefined || value === null ? html`<span class="faint">–</span>` : typeof value === "number" ? measure(value) : String(value));

const columns = (compare, toggle, keys) => [
  { key: "pick", label: "", cell: (job) => html`<input type="checkbox" aria-label=${`Compare ${job.id}`} checked=${compare.includes(job.id)} onChange=${() => toggle(job.id)} />`, narrow: "hide" },
  { key: "name", label: "Job", sort: "name", cell: (job) => html`<a class="name" href=${href(`/jobs/${job.id}`)}><span>${job.name}</span><small>${job.id}</small></a>` },
  { key: "state", label: "State", sort: "state", cell: (job) => html`<${StateBadge} state=${job.state} desired=${job.desired} />` },
  { key: "progress", label: "Progress", number: true, sort: "progress", cell: (job) => html`<${Progress} job=${job} />` },
  { key: "workers", label: "Workers", number: true, sort: "workers", title: "now / target (least–most)", cell: (job) => html`${isOver(job) ? "" : html`<b>${workersOf(job)}</b> / ${job.target_workers} `}<span class="faint">(${job.min_workers}–${job.max_workers})</span>`, narrow: "hide" },
  { key: "speed", label: "Samples/s", number: true, cell: (job) => (isOver(job) || !job.status.samples_per_second ? html`<span class="faint">–</span>` : count(job.status.samples_per_second)), narrow: "hide" },
  { key: "end", label: "End", title: "when it ended, or is expected to", number: true, sort: "end", cell: (job) => html`<${End} job=${job} />`, narrow: "hide" },
  { key: "priority", label: "Priority", number: true, sort: "priority", cell: (job) => job.priority, narrow: "hide" },
  ...keys.map((key) => ({ key, label: key.replace(/^metric:/, ""), title: key, number: true, sort: key, cell: (job) => shownValue(valueOf(job, key)) })),
  { key: "owner", label: "Owner", sort: "owner", cell: (job) => html`${job.owner ? html`<a href=${href("/jobs", { owner: job.owner })} title=${`Only jobs of ${job.owner}`}>${job.owner}</a>` : html`<span class="faint">–</span>`} <span class="faint">${job.namespace === "default" ? "" : job.namespace}</span>`, narrow: "hide" },
  { key: "age", label: "Created", number: true, sort: "created_at", cell: (job) => html`<${Ago} at=${job.created_at} />`, narrow: "hide" },
  { key: "why", label: "Why", wide: true, cell: (job) => html`<span title=${why(job)}>${why(job)}</span>`, narrow: "hide" },
];

const why = (job) => (job.state === "FAILED" && job.error && job.error.message) || (isOver(job) ? job.reason : job.target_reason || job.reason);

function Progress({ job }) {
  const fraction = fractionOf(job);
  if (fraction === null) return html`<span class="faint">–</span>`;
  return html`<span class="progress"><${Meter} value=${fraction} label=${`Progress of ${job.id}`} /><span>${percent(fraction)}</span></span>`;
}

function End({ job }) {
  if (job.finished_at) return html`<${Ago} at=${job.finished_at} />`;
  const end = endOf(job);
  if (end === null) return html`<span class="faint">–</span>`;
  return html`<span title=${end.band && `four of five ends: ${end.band}`}>in ${end.text}</span>`;
}

/** The filters in the address as the API takes them. */
function filtersOf(query, all) {
  const states = all("state");
  return { state: query.of in GROUPS && states.length === 0 ? GROUPS[query.of] : states, q: query.q, label: all("label"), namespace: query.namespace, sort: isKey((query.sort || "").replace(/^-/, "")) ? "-created_at" : query.sort || "-created_at", owner: query.owner, ids: query.ids, view: query.show || query.where ? undefined : "summary" };
}

/** A job with what was told of it, which has fewer numbers than lists that were asked for all. */
const freshened = (job, told) => ({ ...job, ...told, ...(job.status && told.status ? { status: { ...job.status, ...told.status } } : {}) });

/** Jobs of one page with what was told of them since. A job that is new to the page, or left, needs the page anew. */
export function mergeJobs(jobs, messages) {
  const told = new Map();
  let known = jobs;
  let reload = false;
  for (const { event, data } of messages) {
    if (event === "job") told.set(data.id, data);
    else if (event === "deleted") known = known.filter((job) => job.id !== data.id);
    else if (event === "reset") reload = true;
  }
  if (told.size) {
    const ids = new Set(known.map((job) => job.id));
    known = known.map((job) => (told.has(job.id) ? freshened(job, told.get(job.id)) : job));
    for (const [id, job] of told) {
      const before = jobs.find((one) => one.id === id);
      if (!ids.has(id) || before.state !== job.state) reload = true;
    }
  }
  return { jobs: known, reload };
}

/** A field of the filters whose text counts once it is left or Enter is pressed. */
function Words({ label, value, wrong = false, onSet, ...rest }) {
  return html`<label class="words">${label} <input type="text" maxlength="200" aria-invalid=${wrong} value=${value || ""} onChange=${(event) => onSet(event.target.value.trim())} ...${rest} /></label>`;
}

/** The list of jobs. */
export default function Jobs({ query, all }) {
  const maySubmit = useMay("submit");
  const [text, setText] = useState(query.q || "");
  const settled = useSettled(text);
  const [compare, setCompare] = useState([]);
  const filters = filtersOf(query, all);
  const keys = useMemo(() => keysOf(query.show), [query.show]);
  const condition = conditionOf(query.where);
  const byValue = isKey((query.sort || "").replace(/^-/, ""));
  const whole = byValue || condition !== null;
  const [pages, setPages] = usePageTokens(filters);
  const token = pages.at(-1);
  const listed = useResource("/jobs", { ...filters, total: true, limit: whole ? LOOKED_AT : PAGE, page_token: whole ? undefined : token });
  const [told, setTold] = useState({ of: null, jobs: [] });
  const reloadSoon = useThrottled(listed.reload, RELOAD_MS);

  useEffect(() => {
    if (settled !== (query.q || "")) setQuery({ q: settled || null });
  }, [settled]);

  const base = listed.data;
  const jobs = told.of === base ? told.jobs : (base && base.jobs) || [];
  useOverview((messages) => {
    if (!base) return;
    const merged = mergeJobs(jobs, messages);
    if (merged.jobs !== jobs) setTold({ of: base, jobs: merged.jobs });
    if (merged.reload) reloadSoon();
  }, Boolean(base || listed.error));

  const toggle = useCallback((id) => setCompare((now) => (now.includes(id) ? now.filter((one) => one !== id) : [...now, id].slice(-8))), []);
  const shown = useMemo(() => columns(compare, toggle, keys), [compare, keys]);
  const matching = condition === null ? jobs : jobs.filter((job) => holds(job, condition));
  const rows = byValue ? inOrderOf(matching, query.sort) : matching;
  const states = all("state");
  const of = states.length === 0 ? (query.of in GROUPS ? query.of : "all") : "";
  const chosen = states.length === 1 ? states[0] : "";
  const filtered = Boolean(query.q || states.length || query.of || query.label || query.namespace || query.owner || query.ids || condition);
  const first = (pages.length - 1) * PAGE;
  return html`<div class="view">
    <div class="head"><h1>Jobs</h1><span class="faint">${base && base.total !== null ? count(base.total) : ""}</span><span class="grow"></span>
      ${compare.length > 1 && html`<${Button} onClick=${() => setQuery({ ids: compare.join() })}>Only these<//><${Button} icon="compare" href=${href("/compare", { job: compare })}>Compare ${compare.length}<//>`}
      ${maySubmit && html`<${Button} kind="primary" icon="submit" href="#/submit">Submit a job<//>`}</div>
    <section class="panel flush" aria-label="Jobs">
      <div class="filters">
        <label class="search"><${Icon} name="search" /><span class="hidden">Search in id, name and owner</span>
          <input type="search" placeholder="Id, name or owner" maxlength="100" value=${text} onInput=${(event) => setText(event.target.value)} /></label>
        <div class="choice" role="group" aria-label="Which jobs">${[["all", "All"], ["live", "Live"], ["over", "Over"]].map(([value, label]) => html`
          <button type="button" key=${value} aria-pressed=${of === value} onClick=${() => setQuery({ of: value === "all" ? null : value, state: null })}>${label}</button>`)}</div>
        <select aria-label="State" value=${chosen} onChange=${(event) => setQuery({ state: event.target.value || null, of: null })}>
          <option value="">Any state</option>${STATES.map((state) => html`<option key=${state} value=${state}>${state.charAt(0) + state.slice(1).toLowerCase().replace(/_/g, " ")}</option>`)}</select>
        ${all("label").map((label) => html`<${Button} kind="quiet" class="small" icon="close" key=${label} aria-label=${`Do not filter by ${label}`} onClick=${() => setQuery({ label: all("label").filter((one) => one !== label) })}>${label}<//>`)}
        ${["owner", "namespace"].filter((name) => query[name]).map((name) => html`<${Button} kind="quiet" class="small" icon="close" key=${name} aria-label=${`Do not filter by ${name} ${query[name]}`} onClick=${() => setQuery({ [name]: null })}>${name} ${query[name]}<//>`)}
        ${query.ids && html`<${Button} kind="quiet" class="small" icon="close" aria-label="Do not filter by chosen jobs" onClick=${() => setQuery({ ids: null })}>${plural(query.ids.split(",").length, "chosen job")}<//>`}
        ${filtered && html`<${Button} kind="quiet" onClick=${() => { setText(""); setQuery({ q: null, state: null, of: null, label: null, namespace: null, owner: null, ids: null, where: null }); }}>Clear filters<//>`}
        <${Words} label="Columns" list="offered" placeholder="metric:auc, param:lr" value=${query.show} onSet=${(value) => setQuery({ show: keysOf(value).join() || null })} />
        <${Words} label="Where" placeholder="metric:auc>0.8" value=${query.where} wrong=${Boolean(query.where) && condition === null} onSet=${(value) => setQuery({ where: value || null })} />
        <datalist id="offered">${offeredKeys(jobs).map((key) => html`<option key=${key} value=${[...keys, key].join()} />`)}</datalist>
        <a class="hidden" href=${url("/jobs", filters)}>The same as JSON</a>
      </div>
      ${listed.error && html`<div class="body"><${ErrorState} error=${listed.error} retry=${listed.reload} /></div>`}
      ${base ? html`<${Table} caption="Jobs" columns=${shown} rows=${rows} id=${(job) => job.id} sort=${byValue ? query.sort : filters.sort} busy=${listed.loading}
        onSort=${(sort) => setQuery({ sort: sort === "-created_at" ? null : sort })}
        empty=${html`<${Empty} title=${filtered ? "No job matches" : "No jobs yet"}>${filtered ? "Change or clear the filters." : html`<code>elasticdl train</code> submits one, and so does <a href="#/submit">this page</a>.`}<//>`} />`
        : !listed.error && html`<${Loading} height=${400} label="Loading jobs" />`}
      ${base && whole && html`<p class="pages faint">${count(rows.length)} of the newest ${count(jobs.length)}${base.next_page_token ? ", and there are older ones" : ""}</p>`}
      ${base && !whole && (pages.length > 1 || base.next_page_token) && html`<nav class="pages" aria-label="Pages">
        <span class="faint">${count(first + 1)}–${count(first + jobs.length)}${base.total === null ? "" : ` of ${count(base.total)}`}</span><span class="grow"></span>
        <${Button} disabled=${pages.length === 1} onClick=${() => setPages(pages.slice(0, -1))}>Previous<//>
        <${Button} disabled=${!base.next_page_token || listed.loading} onClick=${() => setPages([...pages, base.next_page_token])}>Next<//></nav>`}
    </section>
  </div>`;
}
