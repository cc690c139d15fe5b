/** State that several components share. */
import { useEffect, useRef, useState } from "./lib.js";

/**
 * @template T
 * @param {T} initial
 * @returns {{get: () => T, set: (next: T | ((now: T) => T)) => void, subscribe: (hear: () => void) => () => void}}
 */
export function createStore(initial) {
  let value = initial;
  const listeners = new Set();
  return {
    get: () => value,
    set(next) {
      const now = typeof next === "function" ? next(value) : next;
      if (Object.is(now, value)) return;
      value = now;
      for (const hear of [...listeners]) hear();
    },
    subscribe(hear) {
      listeners.add(hear);
      return () => listeners.delete(hear);
    },
  };
}

/** The store's value, or what `select` takes of it; the component is drawn again when that changes. */
export function useStore(store, select = (value) => value) {
  const [, draw] = useState(0);
  const selected = select(store.get());
  const last = useRef(selected);
  last.current = selected;
  const choose = useRef(select);
  choose.current = select;
  useEffect(() => {
    const hear = () => {
      if (!Object.is(choose.current(store.get()), last.current)) draw((count) => count + 1);
    };
    hear();
    return store.subscribe(hear);
  }, [store]);
  return selected;
}
