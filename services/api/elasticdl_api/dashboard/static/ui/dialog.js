/** Dialogs: the browser's own modal, which traps the focus, gives it back, and closes with Escape. */
import { html, useEffect, useRef } from "../lib.js";
import { Button } from "./elements.js";

/**
 * A modal dialog, open as long as it is there.
 *
 * @param {{title: string, onClose: () => void, actions?: any, wide?: boolean, children: any}} props
 */
export function Dialog({ title, onClose, actions, wide = false, children }) {
  const element = useRef(null);
  useEffect(() => {
    const dialog = element.current;
    const before = document.activeElement;
    if (!dialog.open) dialog.showModal();
    return () => {
      dialog.close();
      // The browser gives the focus back only to what it still holds for the place where the dialog began.
      if (before && before.isConnected) before.focus();
    };
  }, []);
  const outside = (event) => {
    if (event.target === element.current) onClose();
  };
  const cancel = (event) => {
    event.preventDefault();
    onClose();
  };
  return html`<dialog ref=${element} class=${wide ? "wide" : ""} aria-labelledby="dialog-title" onCancel=${cancel} onMouseDown=${outside}>
    <div class="frame">
      <header><h2 id="dialog-title">${title}</h2><${Button} kind="quiet" icon="close" aria-label="Close" onClick=${onClose} /></header>
      <div class="content">${children}</div>
      ${actions && html`<footer>${actions}</footer>`}
    </div>
  </dialog>`;
}

/** Asks before something is done. `act` is carried out by the button; while it runs the button is busy. */
export function Confirm({ title, label, kind = "primary", busy, disabled, act, onClose, children }) {
  const submit = (event) => {
    event.preventDefault();
    if (!busy && !disabled) act();
  };
  return html`<${Dialog} title=${title} onClose=${onClose}>
    <form onSubmit=${submit}>
      ${children}
      <footer class="inner"><${Button} onClick=${onClose}>Back<//>
        <button type="submit" class="button ${kind}" disabled=${busy || disabled} aria-busy=${busy}>${label}</button></footer>
    </form>
  <//>`;
}
