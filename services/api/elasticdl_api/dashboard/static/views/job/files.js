/** What the job made: artifacts to download, checkpoints, evaluations. */
import { url } from "../../api.js";
import { html } from "../../lib.js";
import { href } from "../../address.js";
import { useMay } from "../../session.js";
import { Badge, Button, Copyable, Panel } from "../../ui/elements.js";
import { bytes, count, measure } from "../../ui/format.js";
import { saveJson } from "../../ui/save.js";
import { Empty } from "../../ui/states.js";
import { Table } from "../../ui/table.js";
import { Ago } from "../../ui/time.js";

/** Where an artifact is fetched from. */
export const artifactUrl = (jobId, name) => url(`/jobs/${encodeURIComponent(jobId)}/artifacts/${name.split("/").map(encodeURIComponent).join("/")}`);

/** The folders that artifacts lie in: each can be fetched as a zip. */
export function foldersOf(artifacts) {
  const sizes = new Map();
  for (const { name, size } of artifacts) {
    const [folder, ...rest] = name.split("/");
    if (rest.length) sizes.set(folder, (sizes.get(folder) || 0) + size);
  }
  return [...sizes].map(([name, size]) => ({ name, size }));
}

const filesIn = (manifest) => {
  const found = [];
  const walk = (value) => {
    if (Array.isArray(value)) value.forEach(walk);
    else if (value && typeof value === "object") {
      if (typeof value.size === "number" && (value.sha256 || value.path || value.name)) found.push(value);
      else Object.values(value).forEach(walk);
    }
  };
  walk(manifest);
  return found;
};

/** The manifest of a checkpoint as a file. */
const saveManifest = (job, checkpoint) => saveJson(`${job.id}-checkpoint-${checkpoint.version}.json`, checkpoint.manifest, 2);

/** The evaluation whose model is kept as the best: the newest mark. */
const bestOf = (checkpoints) => checkpoints.filter((one) => one.manifest.best)
  .sort((one, other) => (one.manifest.created_at || 0) - (other.manifest.created_at || 0)).at(-1)?.manifest.best;
const markOf = (best) => html` <${Badge} tone="good" title=${`evaluation ${best.evaluation}`}>Best: ${best.metric} ${measure(best.value)}<//>`;

const checkpointColumns = (job, may, best) => [
  { key: "version", label: "Version", number: true, cell: (one) => html`<b>${count(one.version)}</b>${best?.version === one.version && markOf(best)}` },
  { key: "at", label: "Committed", cell: (one) => html`<${Ago} at=${one.committed_at} />` },
  { key: "files", label: "Files", number: true, cell: (one) => count(filesIn(one.manifest).length) },
  { key: "size", label: "Size", number: true, cell: (one) => bytes(filesIn(one.manifest).reduce((sum, file) => sum + file.size, 0)) },
  { key: "get", label: "", wide: true, cell: (one) => html`<${Button} class="small" kind="quiet" icon="download" onClick=${() => saveManifest(job, one)}>Manifest<//>
    ${may && job.spec.type === "training" && [["evaluation", "Evaluate"], ["prediction", "Predict"]].map(([type, label]) => html`<${Button} key=${type} class="small" kind="quiet"
      aria-label=${`${label} with version ${one.version}`} href=${href("/submit", { like: job.id, type, version: one.version })}>${label}<//>`)}` },
];
const artifactColumns = (job) => [
  { key: "name", label: "Name", cell: (one) => html`<a href=${artifactUrl(job.id, one.name)} download>${one.name}</a>` },
  { key: "size", label: "Size", number: true, cell: (one) => bytes(one.size) },
  { key: "at", label: "Made", cell: (one) => html`<${Ago} at=${one.at} />` },
  { key: "sha", label: "SHA-256", wide: true, narrow: "hide", cell: (one) => html`<span class="row nowrap"><code class="faint" title=${one.sha256}>${one.sha256.slice(0, 16)}…</code><${Copyable} text=${one.sha256} label="Copy the digest" /></span>` },
];

/** The files of a job. */
export function Files({ job }) {
  const maySubmit = useMay("submit");
  const best = bestOf(job.checkpoints);
  const metrics = [...new Set(job.evaluations.flatMap((one) => Object.keys(one.metrics)))].sort();
  const evaluationColumns = [
    { key: "version", label: "Version", number: true, cell: (one) => html`${count(one.model_version)}${best?.evaluation === one.number && markOf(best)}` },
    { key: "epoch", label: "Epochs done", number: true, cell: (one) => count(one.training_epoch) },
    ...metrics.map((name) => ({ key: `m.${name}`, label: name, number: true, cell: (one) => measure(one.metrics[name]) })),
    { key: "at", label: "When", number: true, cell: (one) => html`<${Ago} at=${one.at} />` },
  ];
  const folders = foldersOf(job.artifacts);
  return html`<div class="grid">
    <${Panel} title="Artifacts" class="flush" note=${job.artifacts.length ? bytes(job.artifacts.reduce((sum, one) => sum + one.size, 0)) : ""}
      actions=${folders.map((one) => html`<${Button} key=${one.name} class="small" icon="download" href=${artifactUrl(job.id, one.name)} download>${one.name}.zip (${bytes(one.size)})<//>`)}>
      <${Table} caption="Artifacts" columns=${artifactColumns(job)} rows=${job.artifacts} id=${(one) => one.name} empty=${html`<${Empty} title="None yet">The export comes at the end.<//>`} /><//>
    <${Panel} title="Checkpoints" class="flush half"><${Table} caption="Checkpoints" columns=${checkpointColumns(job, maySubmit, best)} rows=${[...job.checkpoints].reverse()} id=${(one) => String(one.version)} empty=${html`<${Empty} title="None yet" />`} /><//>
    <${Panel} title="Evaluations" class="flush half"><div class="tall"><${Table} caption="Evaluations" columns=${evaluationColumns} rows=${[...job.evaluations].reverse().slice(0, 200)} id=${(one) => String(one.number)} empty=${html`<${Empty} title="None yet" />`} /></div><//>
  </div>`;
}
