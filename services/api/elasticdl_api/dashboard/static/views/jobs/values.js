/** Values of jobs that a reader chose to see: evaluations, parameters, labels, fields of the specification; as `elasticdl jobs list` has them. */

const PARAMS = ["model_params", "optimizer_params", "data_reader_params"];
const KEY = /^(metric|param|label|spec):(.+)$/;
const CONDITION = /^((?:metric|param|label|spec):.+?)(<=|>=|!=|=|<|>)(.*)$/;
const COMPARED = { "=": (a, b) => a === b, "!=": (a, b) => a !== b, "<": (a, b) => a < b, "<=": (a, b) => a <= b, ">": (a, b) => a > b, ">=": (a, b) => a >= b };

/** Whether a word names such a value: `metric:auc`, `param:lr`, `label:team`, `spec:num_epochs`. */
export const isKey = (text) => KEY.test(text);

/** The keys that the address has, each once. */
export const keysOf = (text) => [...new Set((text || "").split(",").map((one) => one.trim()).filter(isKey))];

/** The value of a job; undefined where it has none. */
export function valueOf(job, key) {
  const [, kind, name] = KEY.exec(key);
  const spec = job.spec || {};
  if (kind === "metric") return ((job.status || {}).metrics || {})[name];
  if (kind === "label") return (spec.labels || {})[name];
  if (kind === "spec") return spec[name];
  const home = PARAMS.find((one) => name in (spec[one] || {}));
  return home && spec[home][name];
}

/** All keys that some of the jobs have a value for, but for fields of the specification. */
export function offeredKeys(jobs) {
  const found = jobs.flatMap(({ spec = {}, status = {} }) => [
    ...Object.keys(status.metrics || {}).map((name) => `metric:${name}`),
    ...PARAMS.flatMap((one) => Object.keys(spec[one] || {})).map((name) => `param:${name}`),
    ...Object.keys(spec.labels || {}).map((name) => `label:${name}`),
  ]);
  return [...new Set(found)].sort();
}

/** A condition such as `metric:auc>0.8`; null where it is none. */
export function conditionOf(text) {
  const found = CONDITION.exec((text || "").trim());
  return found && { key: found[1].trim(), sign: found[2], wanted: found[3].trim() };
}

const numberOf = (value) => {
  const text = typeof value === "string" ? value.trim() : value;
  return text === "" || text === null || text === undefined || typeof text === "boolean" || Number.isNaN(Number(text)) ? null : Number(text);
};

/** Whether a condition is true of a job; a value that a job does not have makes none true. */
export function holds(job, { key, sign, wanted }) {
  const value = valueOf(job, key);
  if (value === undefined || value === null || value === "NaN") return false;
  const [a, b] = [numberOf(value), numberOf(wanted)];
  return a === null || b === null ? COMPARED[sign](String(value), wanted) : COMPARED[sign](a, b);
}

/** Jobs by a value: numbers, then texts, then those without one, whichever comes first; `-` for the largest first. */
export function inOrderOf(jobs, sort) {
  const key = sort.replace(/^-/, "");
  const turn = sort.startsWith("-") ? -1 : 1;
  const rank = (value) => (value === undefined || value === null || value === "NaN" ? 2 : numberOf(value) === null ? 1 : 0);
  const placed = jobs.map((job) => ({ job, value: valueOf(job, key) }));
  placed.sort((one, other) => {
    const [a, b] = [rank(one.value), rank(other.value)];
    if (a !== b || a === 2) return a - b;
    return turn * (a === 0 ? numberOf(one.value) - numberOf(other.value) : String(one.value).localeCompare(String(other.value)));
  });
  return placed.map((one) => one.job);
}

const FALLS = /(loss|error|mae|mse|rmse|mape|msle|crossentropy|perplexity)$/;
const RISES = /(acc|accuracy|auc|precision|recall|f1|f1_score|r2|r2_score|iou)$/;

/** The best of several values of a metric, by what its name ends with; null where that does not say which is better. */
export function bestOf(name, values) {
  const word = name.toLowerCase().split("[")[0];
  const numbers = values.filter((value) => typeof value === "number");
  if (numbers.length < 2 || !(RISES.test(word) || FALLS.test(word))) return null;
  return RISES.test(word) ? Math.max(...numbers) : Math.min(...numbers);
}
