/** What stands where data will be, would be, or cannot be. */
import { html } from "../lib.js";
import { Button } from "./elements.js";

/** Something is on its way; it takes the place that the content will take, so that nothing jumps. */
export function Loading({ height = 120, label = "Loading" }) {
  return html`<div class="loading" role="status" style=${{ minHeight: `${height}px` }}><span class="hidden">${label}</span>
    <i aria-hidden="true"></i><i aria-hidden="true"></i><i aria-hidden="true"></i></div>`;
}

/** There is nothing, and that is no fault. */
export function Empty({ title, children }) {
  return html`<div class="empty"><p>${title}</p>${children && html`<div>${children}</div>`}</div>`;
}

/** A problem of the API: what is wrong, what to do, and a way to try again. */
export function ErrorState({ error, retry }) {
  return html`<div class="error" role="alert">
    <p>${error.message}</p>
    ${error.fix && html`<p class="fix">${error.fix}</p>`}
    ${(error.problems || []).map((one) => html`<p key=${one.field} class="fix"><code>${one.field}</code> ${one.message}${one.fix && `: ${one.fix}`}</p>`)}
    ${error.requestId && html`<p class="faint">Request ${error.requestId}</p>`}
    ${retry && html`<${Button} onClick=${retry}>Try again<//>`}
  </div>`;
}

/** The API that serves this page has no such data. */
export function NotAvailable({ what, children }) {
  return html`<div class="empty unavailable"><p>${what} cannot be shown</p><div>${children || "This cluster does not keep it for this job."}</div></div>`;
}

/**
 * The state of a resource (see resource.js), or its content: `children` is a function of the data.
 *
 * @param {{of: object, what: string, height?: number, children: (data: any) => any}} props
 */
export function Loaded({ of, what, height, children }) {
  if (of.data !== undefined) {
    return html`${of.error && of.error.status !== 404 && html`<${ErrorState} error=${of.error} retry=${of.reload} />`}${children(of.data)}`;
  }
  if (of.missing) return html`<${NotAvailable} what=${what} />`;
  if (of.error) return html`<${ErrorState} error=${of.error} retry=${of.reload} />`;
  return html`<${Loading} height=${height} label=${`Loading ${what}`} />`;
}
