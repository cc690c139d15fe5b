/** What is typed into the form, and the specification that follows from it. Pure. */
import { pairsOf, pairsText } from "../../ui/pairs.js";

/** The kind of control of a property of the schema: choice, truth, number, pairs or text. */
export function kindOf(property) {
  if (property.enum) return "choice";
  if (property.type === "boolean") return "truth";
  if (property.type === "integer" || property.type === "number") return "number";
  return property.type === "object" ? "pairs" : "text";
}

/** The parts of a description, in order: [text, whether it is code]. Code stands in backquotes, one or two. */
export const partsOf = (text) => text.split(/``?([^`]+)``?/).map((part, place) => [part, place % 2 === 1]).filter(([part]) => part);

const holdsTexts = (property) => Boolean(property.additionalProperties && property.additionalProperties.type === "string");

/** A value of a specification as it is typed. */
export const textOf = (property, value) => (kindOf(property) === "pairs" ? pairsText(value, holdsTexts(property)) : value);

/** What was typed as a value. What is no number stays text: the API says so at its field. */
export function valueOf(property, typed) {
  const kind = kindOf(property);
  if (kind === "number") return typed !== "" && Number.isFinite(Number(typed)) ? Number(typed) : typed;
  return kind === "pairs" ? pairsOf(typed, holdsTexts(property)) : typed;
}

/** Whether two values are the same, as JSON. */
export const same = (one, other) => JSON.stringify(one) === JSON.stringify(other);

/** The specification: what differs from the defaults, of the fields that mean something to this type of job. */
export function specOf(properties, values) {
  const type = values.type || "training";
  const spec = type === "training" ? {} : { type };
  for (const [name, typed] of Object.entries(values)) {
    const property = properties[name];
    if (!property || name === "type" || !property["x-types"].includes(type)) continue;
    const value = valueOf(property, typed);
    const untouched = value === "" && property.type !== "string";
    if (!untouched && !same(value, property.default) && !(value === "" && property.default === undefined)) spec[name] = value;
  }
  return spec;
}

/** A specification as values of the form. */
export function valuesOf(properties, spec) {
  const known = Object.entries(spec).filter(([name, value]) => properties[name] && !same(value, properties[name].default));
  return Object.fromEntries(known.map(([name, value]) => [name, textOf(properties[name], value)]));
}

/** What a job of another type takes from one that trained: what is of its model, and one of its checkpoints. */
export function continued(properties, job, type, version) {
  const checkpoint = job.checkpoints.find((one) => String(one.version) === String(version)) || job.checkpoints.at(-1);
  const shared = Object.fromEntries(Object.entries(job.spec)
    .filter(([name, value]) => properties[name] && properties[name]["x-of-model"] && value !== "" && !same(value, {})));
  const place = checkpoint ? { checkpoint_dir_for_init: checkpoint.manifest.directory } : {};
  return { ...valuesOf(properties, { ...shared, ...place }), type };
}

/** The properties of one group for a type of job, in the order of the schema. */
export function groupsOf(properties, type) {
  const groups = new Map();
  for (const [name, property] of Object.entries(properties)) {
    if (!property["x-group"] || !property["x-types"].includes(type)) continue;
    groups.set(property["x-group"], [...(groups.get(property["x-group"]) || []), name]);
  }
  return groups;
}

/** A name for a request, which nobody has given to another. */
export const randomKey = () => [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
