/** Who are you: a token, or the identity provider. */
import { html, useEffect, useRef, useState } from "../lib.js";
import { beginProvider, findProvider, logIn, session } from "../session.js";
import { useStore } from "../store.js";
import { Button, Field } from "../ui/elements.js";
import { sentences } from "../ui/format.js";

/** The page of somebody who is not logged in. */
export function Login() {
  const message = useStore(session, (now) => now.message);
  const [token, setToken] = useState("");
  const [problem, setProblem] = useState("");
  const [busy, setBusy] = useState(false);
  const [provider, setProvider] = useState(null);
  const input = useRef(null);
  useEffect(() => {
    document.title = "Log in · ElasticDL";
    input.current.focus();
    findProvider().then(setProvider);
  }, []);
  const attempt = async (act) => {
    setBusy(true);
    setProblem("");
    try {
      await act();
    } catch (error) {
      setProblem(sentences(error));
      setBusy(false);
    }
  };
  const submit = (event) => {
    event.preventDefault();
    if (token.trim()) attempt(() => logIn(token));
    else setProblem("Paste a token first.");
  };
  return html`<main class="login">
    <h1><svg viewBox="0 0 16 16" aria-hidden="true"><rect width="16" height="16" rx="4" /><path d="M4.200 11.500V8.500M8 11.500v-7M11.800 11.500v-5" /></svg>ElasticDL</h1>
    ${message && html`<p class="error" role="alert">${message}</p>`}
    ${provider && html`<${Button} kind="primary" busy=${busy} onClick=${() => attempt(() => beginProvider(provider))}>Log in at ${new URL(provider.issuer).host}<//><p class="or">or with a token</p>`}
    <form onSubmit=${submit}>
      <${Field} id="token" label="Token" problem=${problem} hint=${html`On a cluster of your own it is in <code>~/.elasticdl/token</code>; others are made with <code>elasticdl tokens create</code>.`}>
        <input id="token" ref=${input} type="password" autocomplete="current-password" spellcheck=${false} value=${token}
          aria-describedby="token-hint${problem ? " token-problem" : ""}" aria-invalid=${Boolean(problem)} onInput=${(event) => setToken(event.target.value)} />
      <//>
      <button type="submit" class="button ${provider ? "plain" : "primary"}" disabled=${busy} aria-busy=${busy}>Log in</button>
    </form>
  </main>`;
}
