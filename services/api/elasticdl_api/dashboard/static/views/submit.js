/** Submit a job: a form made from the API's own schema, with what the scheduler would do beside it. */
import { get, request, send } from "../api.js";
import { html, useEffect, useMemo, useRef, useState } from "../lib.js";
import { go } from "../address.js";
import { Choice, Icon, Panel } from "../ui/elements.js";
import { plural, words } from "../ui/format.js";
import { ErrorState, Loading } from "../ui/states.js";
import { tell } from "../ui/toast.js";
import { SettingField } from "./submit/controls.js";
import { Expected } from "./submit/forecast.js";
import { Upload } from "./submit/upload.js";
import { continued, groupsOf, randomKey, specOf, valuesOf } from "./submit/values.js";

const TYPES = [["training", "Train"], ["evaluation", "Evaluate"], ["prediction", "Predict"]];
const FIRST = [
  "name", "model_def", "training_data", "validation_data", "prediction_data", "checkpoint_dir_for_init", "num_epochs",
  "minibatch_size", "min_workers", "max_workers", "num_ps", "priority",
];
/** Fields that stand above the groups; `checkpoint_dir_for_init` there only where a trained model is needed. */
const MODEL = ["model_zoo", "model_bundle"];

/** The view's title. */
export const title = () => "Submit";

/** The schema of a specification, and the specification to begin with. */
function useBeginning(from, type, version) {
  const [state, setState] = useState({ properties: null, values: {}, error: null });
  useEffect(() => {
    const read = async () => {
      const [description, job] = await Promise.all([request("GET", "/openapi.json"), from ? get(`/jobs/${encodeURIComponent(from)}`) : null]);
      const { properties } = description.components.schemas.JobSpec;
      const values = !job ? {} : type ? continued(properties, job, type, version) : valuesOf(properties, job.spec);
      setState({ properties, values, error: null });
    };
    read().catch((error) => setState((now) => ({ ...now, error })));
  }, [from, type, version]);
  return state;
}

/**
 * The view. `like` in the address names a job whose specification it begins with; with `type` too, one that trained the
 * model, and `version` that of the checkpoint.
 */
export default function Submit({ query }) {
  const from = query.like || "";
  const type = TYPES.some(([name]) => name === query.type) ? query.type : "";
  const beginning = useBeginning(from, type, query.version);
  if (beginning.error) return html`<div class="view"><${ErrorState} error=${beginning.error} retry=${() => location.reload()} /></div>`;
  if (!beginning.properties) return html`<div class="view"><${Loading} height="400" label="Loading the form" /></div>`;
  return html`<${Form} key=${`${from} ${type}`} from=${from} properties=${beginning.properties} beginning=${beginning.values} />`;
}

function Form({ properties, beginning, from }) {
  const [values, setValues] = useState(beginning);
  const [problems, setProblems] = useState([]);
  const [failure, setFailure] = useState(null);
  const [busy, setBusy] = useState(false);
  const [find, setFind] = useState("");
  const form = useRef(null);
  const sent = useRef({ body: "", key: "" });
  const type = values.type || "training";
  const spec = useMemo(() => specOf(properties, values), [values]);
  const set = (name, typed) => {
    setValues((now) => ({ ...now, [name]: typed }));
    setProblems((now) => now.filter((one) => one.field !== name));
  };
  const problemOf = (name) => problems.filter((one) => one.field === name).map((one) => `${words(one.message)}${one.fix ? `: ${one.fix}` : ""}`).join(" ");
  useEffect(() => {
    const wrong = problems.length > 0 && form.current.querySelector("[data-wrong] input, [data-wrong] select, [data-wrong] textarea");
    if (wrong) {
      const folded = wrong.closest("details");
      if (folded) folded.open = true;
      wrong.focus();
    }
  }, [problems]);

  const submit = async (event) => {
    event.preventDefault();
    if (busy) return;
    const body = JSON.stringify(spec);
    // The same request under the same name: however often the button is pressed, there is one job.
    if (sent.current.body !== body) sent.current = { body, key: randomKey() };
    setBusy(true);
    setFailure(null);
    try {
      const job = await send("POST", "/jobs", spec, { headers: { "Idempotency-Key": sent.current.key } });
      tell(`${job.id} is submitted.`);
      go(`/jobs/${job.id}`);
    } catch (error) {
      setProblems(error.problems || []);
      setFailure(error);
      setBusy(false);
    }
  };

  const shownAt = (name) => Boolean(properties[name]) || MODEL.includes(name);
  const elsewhere = problems.filter((one) => !shownAt(one.field));
  return html`<div class="view"><div class="head"><h1>Submit a job</h1>${from && html`<span class="note">as <a href="#/jobs/${from}">${from}</a>, with changes</span>`}</div>
    <form class="grid" ref=${form} onSubmit=${submit} noValidate>
      <div class="two-thirds stack">
        <${Essentials} properties=${properties} type=${type} values=${values} set=${set} problemOf=${problemOf} />
        <${Settings} properties=${properties} type=${type} values=${values} set=${set} problemOf=${problemOf} find=${find} setFind=${setFind} />
      </div>
      <div class="third stack aside">
        <${Expected} spec=${spec} />
        <${Panel} title="Submit">
          <div class="stack">
            ${failure && html`<${ErrorState} error=${{ ...failure, message: failure.message, problems: elsewhere }} />`}
            <details><summary>What is sent</summary><pre class="sent">${JSON.stringify(spec, null, 2)}</pre></details>
            <div class="row"><button type="submit" class="button primary" disabled=${busy} aria-busy=${busy}><${Icon} name="submit" />Submit</button>
              <span class="note">The code is checked first, and not run.</span></div>
          </div>
        <//>
      </div>
    </form></div>`;
}

function Essentials({ properties, type, values, set, problemOf }) {
  const shown = FIRST.filter((name) => properties[name] && properties[name]["x-types"].includes(type) && (name !== "checkpoint_dir_for_init" || type !== "training"));
  const uploaded = (digest, model) => {
    set("model_bundle", digest);
    set("model_zoo", "");
    if (model && !values.model_def) set("model_def", model);
  };
  return html`<${Panel} title="Job"><div class="stack">
    <${Choice} label="What it does" options=${TYPES} value=${type} onChoose=${(kind) => set("type", kind)} />
    <div class="fields wide">
      <${Upload} digest=${values.model_bundle} problem=${problemOf("model_bundle") || (values.model_zoo ? "" : problemOf("model_zoo"))} onUploaded=${uploaded} />
      ${shown.map((name) => html`<${SettingField} key=${name} name=${name} property=${properties[name]} value=${values[name]} problem=${problemOf(name)} onChange=${(typed) => set(name, typed)} />`)}
    </div></div><//>`;
}

function Settings({ properties, type, values, set, problemOf, find, setFind }) {
  const wanted = find.trim().toLowerCase().replace(/[ -]/g, "_");
  const matches = (name) => !wanted || name.includes(wanted) || properties[name].description.toLowerCase().includes(find.trim().toLowerCase());
  const groups = [...groupsOf(properties, type)].map(([group, names]) => [
    group, names.filter((name) => (!FIRST.includes(name) || (name === "checkpoint_dir_for_init" && type === "training")) && matches(name)),
  ]).filter(([, names]) => names.length);
  const changed = (names) => names.filter((name) => values[name] !== undefined && values[name] !== "").length;
  const search = html`<label class="search"><${Icon} name="search" /><span class="hidden">Find a setting</span><input type="search" placeholder="Find a setting" value=${find} onInput=${(event) => setFind(event.target.value)} /></label>`;
  return html`<${Panel} title="Settings" note="what is left alone has its default" actions=${search}>
    ${groups.length === 0 && html`<p class="note">No setting matches.</p>`}
    ${groups.map(([group, names]) => html`<details key=${group} class="group" open=${wanted !== "" || names.some((name) => problemOf(name)) || undefined}>
      <summary>${group} <span class="faint">${plural(names.length, "setting")}</span>${changed(names) > 0 && html` <span class="tag">${changed(names)} changed</span>`}</summary>
      <div class="fields wide">${names.map((name) => html`<${SettingField} key=${name} name=${name} property=${properties[name]} value=${values[name]} problem=${problemOf(name)} onChange=${(typed) => set(name, typed)} />`)}</div>
    </details>`)}
  <//>`;
}
