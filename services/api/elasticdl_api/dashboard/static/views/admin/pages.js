/** Pages of a list that the API cuts, and what is asked before a change. */
import { ApiError } from "../../api.js";
import { html, useState } from "../../lib.js";
import { usePageTokens, useResource } from "../../resource.js";
import { Button } from "../../ui/elements.js";
import { sentences } from "../../ui/format.js";
import { ErrorState, Loading } from "../../ui/states.js";
import { tell } from "../../ui/toast.js";

/** One page after the other of a list of the API, and the way between them. */
export function usePages(path, query) {
  const [tokens, setTokens] = usePageTokens(query);
  const listed = useResource(path, { ...query, page_token: tokens.at(-1) });
  const following = listed.data && listed.data.next_page_token;
  const turn = html`${(tokens.length > 1 || following) && html`<nav class="pages" aria-label="Pages"><span class="faint">Page ${tokens.length}</span><span class="grow"></span>
    <${Button} disabled=${tokens.length === 1} onClick=${() => setTokens(tokens.slice(0, -1))}>Previous<//>
    <${Button} disabled=${!following || listed.loading} onClick=${() => setTokens([...tokens, following])}>Next<//></nav>`}`;
  return { ...listed, turn };
}

/** What was listed, or how that is: `children` is a function of the data. */
export function Listed({ of, what, children }) {
  return html`${of.error && html`<div class="body"><${ErrorState} error=${of.error} retry=${of.reload} /></div>`}
    ${of.data ? children(of.data) : !of.error && html`<${Loading} height="160" label=${`Loading ${what}`} />`}`;
}

/** Sends a change: busy while it is on its way, with the problem it met. */
export function useChange(act, done) {
  const [state, setState] = useState({ busy: false, error: null });
  const run = async () => {
    setState({ busy: true, error: null });
    try {
      const answer = await act();
      setState({ busy: false, error: null });
      done(answer);
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      setState({ busy: false, error });
    }
  };
  const problemOf = (field) =>
    ((state.error && state.error.problems) || []).filter((one) => one.field.split(".").includes(field)).map((one) => sentences(one)).join(" ");
  return { ...state, run, problemOf };
}

/** A list whose rows are changed and removed in dialogs: which row is in one, and what is told when that is done. */
export function useEdited(path) {
  const listed = useResource(path);
  const [edited, setEdited] = useState(null);
  const [leaving, setLeaving] = useState(null);
  const done = (text) => {
    setEdited(null);
    setLeaving(null);
    tell(text);
    listed.reload();
  };
  return { listed, edited, setEdited, leaving, setLeaving, done };
}

/** A text as a whole number; undefined if nothing was typed. What is no number is left for the API to refuse. */
export const wholeOf = (text) => (text.trim() === "" ? undefined : /^-?\d+$/.test(text.trim()) ? Number(text) : text);
