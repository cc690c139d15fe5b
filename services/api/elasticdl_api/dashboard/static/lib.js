/** What all modules take from the three libraries, in one place. */
import { Component, Fragment, createContext, h, render } from "./vendor/preact.js";
import htm from "./vendor/htm.js";

export {
  useCallback, useContext, useEffect, useLayoutEffect, useMemo, useReducer, useRef, useState,
} from "./vendor/hooks.js";
export { Component, Fragment, createContext, render };

/** Markup as a tagged template: html`<p class="note">${text}</p>`. What is put in is text, never markup. */
export const html = htm.bind(h);
