/** The small parts that every view is made of. */
import { html, useState } from "../lib.js";
import { words } from "./format.js";

const ICONS = {
  cluster: "M2.5 3.500h11v3.500h-11zM2.500 9h11v3.500h-11zM5 5.250h.01M5 10.750h.01",
  jobs: "M5.500 4h8M5.500 8h8M5.500 12h8M2.500 4h.01M2.500 8h.01M2.500 12h.01",
  compare: "M2.500 12.500c2-7 4-7 5.500-4s3.500 2 5.500-5M2.500 6.500c3 0 4 4 11 4",
  submit: "M8 12.500v-9M4.500 7 8 3.500 11.500 7",
  sql: "M3 4.500c0-1.100 2.200-2 5-2s5 .9 5 2-2.200 2-5 2-5-.9-5-2zM3 4.500v7c0 1.100 2.200 2 5 2s5-.9 5-2v-7M3 8c0 1.100 2.200 2 5 2s5-.9 5-2",
  admin: "M8 2.500 13 4.500v3.500c0 3-2.200 4.800-5 5.500-2.800-.7-5-2.500-5-5.500V4.500z",
  menu: "M2.500 4.500h11M2.500 8h11M2.500 11.500h11",
  sun: "M8 5.200a2.800 2.800 0 1 0 0 5.600 2.800 2.800 0 0 0 0-5.600M8 1.500v1.200M8 13.300v1.200M1.500 8h1.200M13.300 8h1.200M3.400 3.400l.9.9M11.700 11.700l.9.9M3.400 12.600l.9-.9M11.700 4.300l.9-.9",
  moon: "M13 9.500A5.500 5.500 0 0 1 6.500 3 5.500 5.500 0 1 0 13 9.500z",
  close: "M4 4l8 8M12 4l-8 8",
  copy: "M6 6h7v7H6zM10 6V3H3v7h3",
  download: "M8 2.500v8M4.500 7.500 8 11l3.500-3.500M3 13.500h10",
  chevron: "M6 3.500 10.500 8 6 12.500",
  search: "M7 2.500a4.500 4.500 0 1 0 0 9 4.500 4.500 0 0 0 0-9M10.500 10.500 14 14",
  external: "M9 3h4v4M13 3 7.500 8.500M11 9.500V13H3V5h3.500",
};

/** One of our icons; it says nothing to a screen reader. */
export function Icon({ name }) {
  return html`<svg class="icon" viewBox="0 0 16 16" aria-hidden="true" focusable="false"><path d=${ICONS[name]} /></svg>`;
}

/**
 * A button, or a link that looks like one if it has `href`. `kind` is plain, primary, danger or quiet; `busy` shows that
 * it works.
 */
export function Button({ kind = "plain", busy = false, disabled = false, icon, children, href, class: extra = "", ...rest }) {
  const look = `button ${kind} ${extra}`;
  const inside = html`${icon && html`<${Icon} name=${icon} />`}${children}`;
  if (href) return html`<a class=${look} href=${href} ...${rest}>${inside}</a>`;
  return html`<button type="button" class=${look} disabled=${disabled || busy} aria-busy=${busy} ...${rest}>${inside}</button>`;
}

const TONES = {
  QUEUED: "wait", STARTING: "busy", RUNNING: "good", SUSPENDED: "off", CANCELLING: "busy", SUCCEEDED: "done",
  SUCCEEDED_WITH_SKIPS: "warn", FAILED: "bad", CANCELLED: "off",
};

/** A short word with a dot whose colour says how that is: good, busy, wait, done, warn, bad or off. */
export function Badge({ tone = "off", children, title }) {
  return html`<span class="badge" data-tone=${tone} title=${title}><i aria-hidden="true"></i>${children}</span>`;
}

/** A job's state. What is asked of it and not yet so is said too. */
export function StateBadge({ state, desired = "run" }) {
  const asked = { suspend: "suspending", evict: "giving way", cancel: "cancelling" }[desired];
  const going = asked && ["RUNNING", "STARTING"].includes(state);
  return html`<${Badge} tone=${going ? "busy" : TONES[state] || "off"}>${going ? words(asked) : words(state.toLowerCase())}<//>`;
}

/** A part of a view with a heading. `actions` stand at the right of it. */
export function Panel({ title, note, actions, children, class: extra = "", level = 2 }) {
  const tag = `h${level}`;
  return html`<section class="panel ${extra}">
    ${(title || actions) && html`<header><${tag}>${title}<//>${note && html`<span class="note">${note}</span>`}<span class="grow"></span>${actions}</header>`}
    <div class="body">${children}</div>
  </section>`;
}

/** One number with its name; `note` below it. */
export function Stat({ name, value, note, title }) {
  return html`<div class="stat" title=${title}><dt>${name}</dt><dd>${value}${note && html`<small>${note}</small>`}</dd></div>`;
}

/** A bar that shows a fraction. */
export function Meter({ value, label }) {
  const shown = Math.max(0, Math.min(1, value || 0));
  return html`<span class="meter" role="progressbar" aria-label=${label} aria-valuemin="0" aria-valuemax="100" aria-valuenow=${Math.round(shown * 100)}>
    <i style=${{ width: `${shown * 100}%` }}></i></span>`;
}

/** Text that can be copied with a click. */
export function Copyable({ text, label = "Copy" }) {
  const [done, setDone] = useState(false);
  const copy = async () => {
    await navigator.clipboard.writeText(text);
    setDone(true);
    setTimeout(() => setDone(false), 1500);
  };
  return html`<button type="button" class="button quiet small" onClick=${copy} aria-label=${label} title=${label}>
    <${Icon} name="copy" /><span role="status">${done ? "Copied" : ""}</span></button>`;
}

/** A field with its label, its hint, and what is wrong with it. `children` is the control; it takes `id`. */
export function Field({ id, label, hint, problem, children }) {
  return html`<div class="field" data-wrong=${problem ? "" : undefined}>
    <label for=${id}>${label}</label>${children}
    ${hint && html`<p class="hint" id="${id}-hint">${hint}</p>`}
    ${problem && html`<p class="problem" id="${id}-problem" role="alert">${problem}</p>`}
  </div>`;
}

/** Parts of a view, one of which is shown: links, so that each has its address. `tabs` is [{name, label, href, count}]. */
export function Tabs({ tabs, chosen, label }) {
  return html`<nav class="tabs" aria-label=${label}>
    ${tabs.map((tab) => html`<a key=${tab.name} href=${tab.href} aria-current=${tab.name === chosen ? "page" : undefined}>
      ${tab.label}${tab.count ? html`<span class="count">${tab.count}</span>` : null}</a>`)}
  </nav>`;
}

/** A choice of one out of a few. `options` is [[value, label]]. */
export function Choice({ label, options, value, onChoose }) {
  return html`<div class="choice" role="group" aria-label=${label}>
    ${options.map(([option, text]) => html`<button type="button" key=${option} aria-pressed=${option === value} onClick=${() => onChoose(option)}>${text}</button>`)}
  </div>`;
}

/** Pairs of names and values. `items` is [[name, value]]; those without a value are left out. */
export function Facts({ items }) {
  return html`<dl class="facts">${items
    .filter(([, value]) => value !== null && value !== undefined && value !== "")
    .map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>`;
}
