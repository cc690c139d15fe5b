/** Several jobs side by side: their curves on one axis, and what they were asked for. */
import { LineChart } from "../charts/line.js";
import { seriesColor } from "../charts/colors.js";
import { get } from "../api.js";
import { endOf, fractionOf } from "../facts.js";
import { html, useEffect, useMemo, useState } from "../lib.js";
import { useOverview } from "../live.js";
import { href, setQuery } from "../address.js";
import { useThrottled } from "../resource.js";
import { formatOf, inOrder, pointsForScreen } from "../series.js";
import { Button, Choice, Icon, Panel, StateBadge } from "../ui/elements.js";
import { compact, count, measure, percent, words } from "../ui/format.js";
import { Empty, ErrorState, Loading } from "../ui/states.js";
import { Table } from "../ui/table.js";
import { Elapsed } from "../ui/time.js";
import { metricNames } from "./job/overview.js";
import { valueText } from "./job/specification.js";
import { bestOf } from "./jobs/values.js";

const MOST = 8;
const RELOAD_MS = 10_000;

/** The view's title. */
export const title = () => "Compare";

/** Some jobs with their series; each that cannot be read is left out and named. */
function useJobs(ids, by) {
  const key = ids.join();
  const [state, setState] = useState({ key: null, found: [], errors: [] });
  const [turn, setTurn] = useState(0);
  useEffect(() => {
    const controller = new AbortController();
    const { signal } = controller;
    const read = async (id) => {
      const path = `/jobs/${encodeURIComponent(id)}`;
      const query = { by, points: pointsForScreen() };
      const [job, series] = await Promise.all([get(path, {}, { signal }), get(`${path}/series`, query, { signal }).catch((error) => ({ series: [], error }))]);
      return { job, series: new Map(series.series.map((one) => [one.name, { ...one, points: inOrder(one.points, by === "time" ? series.to : Infinity) }])) };
    };
    Promise.allSettled(ids.map(read)).then((results) => {
      if (signal.aborted) return;
      const errors = results.map((one, place) => ({ ...one, id: ids[place] })).filter((one) => one.status === "rejected").map((one) => ({ id: one.id, error: one.reason }));
      setState({ key: `${key} ${by}`, found: results.filter((one) => one.status === "fulfilled").map((one) => one.value), errors });
    });
    return () => controller.abort();
  }, [key, by, turn]);
  return { ...state, loading: state.key !== `${key} ${by}`, reload: () => setTurn((now) => now + 1) };
}

/** Fields of specifications with the value of each job; `differs` where they are not all the same. */
export function settingsOf(specs) {
  const names = [...new Set(specs.flatMap((spec) => Object.keys(spec)))].sort();
  return names.map((name) => {
    const values = specs.map((spec) => valueText(spec[name]));
    return { name, values, differs: new Set(values).size > 1 };
  }).sort((a, b) => b.differs - a.differs || a.name.localeCompare(b.name));
}

/** A series of each job as curves; over time each begins when its job did. */
export function curvesOf(jobs, name, by) {
  return jobs.map(({ job, series }, place) => {
    const one = series.get(name) || { points: [], unit: "" };
    const start = by === "time" ? Date.parse(job.started_at || job.created_at) / 1000 : 0;
    const points = by === "time" ? one.points.map(([x, ...rest]) => [(x - start) / 60, ...rest]) : one.points;
    return { key: job.id, label: job.id, points, color: seriesColor(place), format: formatOf(one.unit, name), dots: name.startsWith("evaluation.") };
  });
}

/** The view. */
export default function Compare({ query, all }) {
  const ids = useMemo(() => [...new Set(all("job"))].slice(0, MOST), [all("job").join()]);
  const by = query.by === "time" ? "time" : "version";
  const [only, setOnly] = useState(true);
  const read = useJobs(ids, by);
  const reloadSoon = useThrottled(read.reload, RELOAD_MS);
  useOverview((messages) => {
    if (messages.some((one) => one.event === "job" && ids.includes(one.data.id))) reloadSoon();
  });
  const jobs = read.found;
  const names = [...new Set(jobs.flatMap(({ series }) => [...series.keys()]))];
  const shown = ["loss", "evaluation.loss", ...metricNames(names).map((name) => (names.includes(`evaluation.${name}`) ? `evaluation.${name}` : `training.${name}`)), "samples_per_second"].filter((name) => names.includes(name));
  const settings = useMemo(() => settingsOf(jobs.map(({ job }) => job.spec)), [jobs]);
  const rows = settings.filter((one) => one.differs || !only);
  return html`<div class="view">
    <div class="head"><h1>Compare</h1><span class="grow"></span>${jobs.length > 0 && html`<${Choice} label="Horizontal axis" options=${[["version", "Over model versions"], ["time", "Since the start"]]} value=${by} onChoose=${(value) => setQuery({ by: value === "version" ? null : value })} />`}</div>
    <${Chooser} ids=${ids} />
    ${read.errors.map(({ id, error }) => html`<${ErrorState} key=${id} error=${error} />`)}
    ${ids.length === 0 ? null : jobs.length === 0 ? read.loading && html`<${Loading} height=${300} />` : html`<div class="grid">
      <${Panel} title="Jobs" class="flush"><${Table} caption="Jobs" columns=${summaryColumns(ids, jobs.map(({ job }) => job))} rows=${jobs.map(({ job }, place) => ({ ...job, place }))} id=${(job) => job.id} /><//>
      ${shown.length === 0 && html`<${Panel}><${Empty} title="These jobs have no curves" /><//>`}
      ${shown.map((name) => html`<${Panel} key=${name} class="half"><${LineChart} title=${name === "samples_per_second" ? "Samples/s" : words(name)} by="version" axis=${by === "time" ? "minutes" : "version"} note=${by === "time" ? "minutes since the start" : "over model versions"}
        fromZero=${name === "samples_per_second"} curves=${curvesOf(jobs, name, by)} /><//>`)}
      <${Panel} title="Settings" class="flush" note=${`${settings.filter((one) => one.differs).length} differ`} actions=${html`<label class="row"><input type="checkbox" checked=${only} onChange=${(event) => setOnly(event.target.checked)} /> Only what differs</label>`}>
        <${Table} caption="Settings" rows=${rows} id=${(one) => one.name} mark=${(one) => (one.differs && !only ? "warn" : undefined)} empty=${html`<${Empty} title=${jobs.length > 1 ? "They were asked for the same" : "Nothing to compare with"} />`}
          columns=${[{ key: "name", label: "Field", cell: (one) => html`<code>${one.name}</code>` }, ...jobs.map(({ job }, place) => ({ key: job.id, label: job.id, cell: (one) => html`<span class="value" title=${one.values[place]}>${one.values[place] || "–"}</span>` }))]} /><//>
    </div>`}
  </div>`;
}

/** What was evaluated last, the best of several jobs marked where the metric's name says which that is. */
function Evaluated({ job, jobs }) {
  const metrics = Object.entries(job.status.metrics || {}).filter(([name]) => name !== "loss" || jobs.length > 1);
  if (metrics.length === 0) return "–";
  return metrics.map(([name, value], place) => {
    const best = bestOf(name, jobs.map((one) => (one.status.metrics || {})[name])) === value;
    const text = `${name} ${measure(value)}`;
    return html`<span key=${name}>${place > 0 && ", "}${best ? html`<b title="The best of these jobs">${text}<span class="hidden"> (the best)</span></b>` : text}</span>`;
  });
}

const summaryColumns = (ids, jobs) => [
  { key: "job", label: "Job", cell: (job) => html`<span class="row nowrap"><i class="swatch" aria-hidden="true" style=${{ background: `var(--${seriesColor(job.place)})` }}></i><a class="name" href=${href(`/jobs/${job.id}`)}><span>${job.name}</span><small>${job.id}</small></a></span>` },
  { key: "state", label: "State", cell: (job) => html`<${StateBadge} state=${job.state} desired=${job.desired} />` },
  { key: "progress", label: "Progress", number: true, cell: (job) => percent(fractionOf(job)), narrow: "hide" },
  { key: "loss", label: "Loss", number: true, cell: (job) => measure(job.status.loss) },
  { key: "metrics", label: "Evaluated", number: true, cell: (job) => html`<${Evaluated} job=${job} jobs=${jobs} />`, narrow: "hide" },
  { key: "speed", label: "Samples/s", number: true, cell: (job) => compact(job.status.samples_per_second), narrow: "hide" },
  { key: "version", label: "Version", number: true, cell: (job) => count(job.status.model_version), narrow: "hide" },
  { key: "took", label: "Time", number: true, cell: (job) => html`<${Elapsed} from=${job.started_at} until=${job.finished_at} />`, narrow: "hide" },
  { key: "end", label: "Expected end", number: true, cell: (job) => { const end = endOf(job); return end ? `in ${end.text}` : "–"; }, narrow: "hide" },
  { key: "leave", label: "", wide: true, cell: (job) => html`<${Button} kind="quiet" class="small" icon="close" aria-label=${`Leave ${job.id} out`} onClick=${() => setQuery({ job: ids.filter((id) => id !== job.id) })} />` },
];

/** Finds jobs to add. */
function Chooser({ ids }) {
  const [text, setText] = useState("");
  const [found, setFound] = useState(null);
  useEffect(() => {
    const controller = new AbortController();
    const timer = setTimeout(() => {
      get("/jobs", { q: text, limit: 12, view: "summary" }, { signal: controller.signal }).then((page) => setFound(page.jobs), () => {});
    }, 200);
    return () => {
      clearTimeout(timer);
      controller.abort();
    };
  }, [text]);
  const offered = (found || []).filter((job) => !ids.includes(job.id));
  return html`<section class="panel" aria-label="Which jobs"><div class="body row">
    <label class="search"><${Icon} name="search" /><span class="hidden">Find jobs to compare</span><input type="search" placeholder="Add a job" maxlength="100" value=${text} onInput=${(event) => setText(event.target.value)} /></label>
    ${ids.length >= MOST ? html`<span class="note">${MOST} jobs at most</span>` : offered.slice(0, 6).map((job) => html`<${Button} key=${job.id} class="small" onClick=${() => setQuery({ job: [...ids, job.id] })}>+ ${job.id}<//>`)}
    ${found !== null && offered.length === 0 && html`<span class="note">No other job matches</span>`}
  </div></section>`;
}
