/** What a component reads from the API: loaded when it appears, again when its address changes or somebody asks. */
import { get } from "./api.js";
import { useCallback, useEffect, useLayoutEffect, useRef, useState } from "./lib.js";
import { useStore } from "./store.js";
import { rest } from "./visibility.js";

/**
 * @param {string | null} path null reads nothing.
 * @param {object} [query]
 * @param {{keep?: boolean}} [options] keep: what was read before stays while the next is on its way.
 * @returns {{data: any, error: import("./api.js").ApiError | null, loading: boolean, missing: boolean, reload: () => void}}
 *   missing: the API has no such route, or not for this object.
 */
export function useResource(path, query = {}, { keep = true } = {}) {
  const key = path === null ? "" : `${path} ${JSON.stringify(query)}`;
  const [state, setState] = useState({ key: null, data: undefined, error: null });
  const [turn, setTurn] = useState(0);
  const abort = useRef(null);
  const woken = useStore(rest, (now) => now.turn);
  useLayoutEffect(() => { // asked at once, not a frame later
    if (path === null) return undefined;
    const controller = new AbortController();
    abort.current = controller;
    get(path, query, { signal: controller.signal }).then(
      (data) => setState({ key, data, error: null }),
      (error) => {
        if (error.name !== "AbortError") setState((now) => ({ key, data: keep ? now.data : undefined, error }));
      },
    );
    return () => controller.abort();
  }, [key, turn, woken]);
  const reload = useCallback(() => setTurn((now) => now + 1), []);
  const current = state.key === key;
  return {
    data: current || keep ? state.data : undefined,
    error: current ? state.error : null,
    loading: path !== null && !current,
    missing: current && state.error !== null && state.error.status === 404,
    reload,
  };
}

/**
 * The pages of a list that were turned, each by the token that it begins with (null for the first), and what turns them.
 * They belong to what is asked: with other filters the list begins anew, at once.
 */
export function usePageTokens(query) {
  const [turned, setTurned] = useState({ of: "", tokens: [null] });
  const key = JSON.stringify(query);
  return [turned.of === key ? turned.tokens : [null], (tokens) => setTurned({ of: key, tokens })];
}

/** Calls `act` at most once in `everyMs`, with the first call at once and the last one never lost. */
export function useThrottled(act, everyMs) {
  const state = useRef({ last: 0, timer: 0 });
  const latest = useRef(act);
  latest.current = act;
  useEffect(() => () => clearTimeout(state.current.timer), []);
  return useCallback(() => {
    const wait = state.current.last + everyMs - Date.now();
    clearTimeout(state.current.timer);
    const run = () => {
      state.current.last = Date.now();
      latest.current();
    };
    if (wait <= 0) run();
    else state.current.timer = setTimeout(run, wait);
  }, [everyMs]);
}
