/** One field of the form, by what the schema says of it. */
import { html } from "../../lib.js";
import { Field } from "../../ui/elements.js";
import { words } from "../../ui/format.js";
import { kindOf, partsOf, textOf } from "./values.js";

/**
 * @param {{name: string, property: object, value: any, problem: string, onChange: (typed: any) => void}} props
 *   `value` undefined is the default.
 */
export function SettingField({ name, property, value, problem, onChange }) {
  const id = `field-${name}`;
  const shared = {
    id, name, "aria-invalid": Boolean(problem), "aria-describedby": `${id}-hint${problem ? ` ${id}-problem` : ""}`,
  };
  const kind = kindOf(property);
  const typed = value === undefined ? textOf(property, property.default) : value;
  const control = CONTROLS[kind]({ shared, property, typed: typed === undefined ? "" : typed, onChange });
  const hint = html`${partsOf(property.description).map(([text, code]) => (code ? html`<code>${text}</code>` : text))}${kind === "number" && property.default !== undefined && html` <span class="nowrap">Default: ${String(property.default)}.</span>`}`;
  return html`<${Field} id=${id} label=${words(name)} hint=${hint} problem=${problem}>${control}<//>`;
}

const CONTROLS = {
  choice: ({ shared, property, typed, onChange }) => html`<select ...${shared} value=${typed} onChange=${(event) => onChange(event.target.value)}>
    ${property.enum.map((one) => html`<option key=${one} value=${one}>${one}</option>`)}</select>`,
  truth: ({ shared, typed, onChange }) => html`<span class="switch"><input type="checkbox" ...${shared} checked=${Boolean(typed)} onChange=${(event) => onChange(event.target.checked)} /></span>`,
  number: ({ shared, property, typed, onChange }) => html`<input type="text" inputmode=${property.type === "integer" && property.minimum >= 0 ? "numeric" : "text"} autocomplete="off" ...${shared}
    value=${typed} onInput=${(event) => onChange(event.target.value)} />`,
  pairs: ({ shared, typed, onChange }) => html`<textarea rows="2" spellcheck=${false} placeholder="key=value, one a line" ...${shared} value=${typed} onInput=${(event) => onChange(event.target.value)}></textarea>`,
  text: ({ shared, typed, onChange }) => html`<input type="text" autocomplete="off" spellcheck=${false} ...${shared} value=${typed} onInput=${(event) => onChange(event.target.value)} />`,
};
