/** Whether anybody sees the page: while it is hidden for long it asks for nothing, and afterwards reads all anew. */
import { createStore } from "./store.js";

/** Milliseconds for which a page is hidden before it rests: to look at another tab for a moment costs nothing. */
export const REST_MS = 20_000;

/** `resting` is true while nobody has seen the page for long; `turn` counts how often it woke. */
export const rest = createStore({ resting: false, turn: 0 });

let timer = 0;
document.addEventListener("visibilitychange", () => {
  clearTimeout(timer);
  if (document.visibilityState === "hidden") {
    timer = setTimeout(() => rest.set((now) => ({ ...now, resting: true })), REST_MS);
  } else if (rest.get().resting) {
    rest.set((now) => ({ resting: false, turn: now.turn + 1 }));
  }
});

/** Waits until somebody sees the page. */
export function untilSeen() {
  if (!rest.get().resting) return Promise.resolve();
  return new Promise((seen) => {
    const leave = rest.subscribe(() => {
      if (rest.get().resting) return;
      leave();
      seen();
    });
  });
}
