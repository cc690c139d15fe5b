/** Short words about what was done, told to screen readers too. */
import { html } from "../lib.js";
import { createStore, useStore } from "../store.js";
import { Button } from "./elements.js";
import { sentences } from "./format.js";

const toasts = createStore([]);
const SHOWN_MS = 6_000;
let number = 0;

/** Tells something; `tone` is good or bad. What is bad stays until it is closed. */
export function tell(text, tone = "good") {
  const id = (number += 1);
  toasts.set((now) => [...now.slice(-3), { id, text, tone }]);
  if (tone !== "bad") setTimeout(() => close(id), SHOWN_MS);
}

/** Tells a problem of the API. */
export const tellProblem = (error) => tell(sentences(error), "bad");

const close = (id) => toasts.set((now) => now.filter((one) => one.id !== id));

/** Where they appear. */
export function Toasts() {
  const shown = useStore(toasts);
  return html`<div class="toasts" role="status" aria-live="polite">
    ${shown.map((one) => html`<div key=${one.id} class="toast" data-tone=${one.tone}><span>${one.text}</span>
      <${Button} kind="quiet" icon="close" aria-label="Close" onClick=${() => close(one.id)} /></div>`)}
  </div>`;
}
