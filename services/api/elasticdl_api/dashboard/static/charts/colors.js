/** The colours of charts: the theme's, as a canvas needs them. */

const SERIES = 8;
let probe = null;
const known = new Map();

for (const event of ["themechange"]) window.addEventListener(event, () => known.clear());
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  known.clear();
  window.dispatchEvent(new Event("themechange"));
});

/** A colour of the theme by its name (`text`, `line-1`, `bad`), as `rgb(...)`. */
export function color(name) {
  if (!known.has(name)) {
    if (probe === null) {
      probe = document.createElement("i");
      probe.hidden = true;
      document.body.append(probe);
    }
    probe.style.color = `var(--${name})`;
    known.set(name, getComputedStyle(probe).color);
  }
  return known.get(name);
}

/** The same, less opaque. */
export function faded(name, opacity) {
  const [red, green, blue] = color(name).match(/[\d.]+/g);
  return `rgba(${red}, ${green}, ${blue}, ${opacity})`;
}

/** The name of the colour of the series at a place. */
export const seriesColor = (place) => `line-${(place % SERIES) + 1}`;
