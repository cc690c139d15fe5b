/** The address: `#/jobs/ID/logs?role=worker`. Filters live in it, so that it can be shared. */
import { createStore, useStore } from "./store.js";

/** The parts of an address. `query` has a string for each name, and a list under `all(name)`. */
export function parseAddress(hash) {
  const [path, text = ""] = (hash.replace(/^#/, "") || "/").split("?");
  const search = new URLSearchParams(text);
  return { path, query: Object.fromEntries(search), all: (name) => search.getAll(name), text };
}

/** Where we are. */
export const place = createStore(parseAddress(location.hash));
window.addEventListener("hashchange", () => place.set(parseAddress(location.hash)));

/** Where we are, as a hook. */
export const usePlace = () => useStore(place);

/** The address of a view, for links. */
export function href(path, query = {}) {
  const parameters = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    for (const one of Array.isArray(value) ? value : [value]) {
      if (one !== null && one !== undefined && one !== "" && one !== false) parameters.append(name, String(one));
    }
  }
  const text = parameters.toString();
  return `#${path}${text ? `?${text}` : ""}`;
}

/** Goes to a view. */
export function go(path, query = {}, { replace = false } = {}) {
  const address = href(path, query);
  if (replace) {
    history.replaceState(null, "", address);
    place.set(parseAddress(address));
  } else {
    location.hash = address;
  }
}

/** Changes filters in the address and leaves the rest; null takes one away. No entry in the history. */
export function setQuery(changes) {
  const now = place.get();
  const query = {};
  for (const name of new Set([...Object.keys(now.query), ...Object.keys(changes)])) {
    query[name] = name in changes ? changes[name] : now.all(name);
  }
  go(now.path, query, { replace: true });
}
