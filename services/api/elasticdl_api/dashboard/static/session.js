/** Who is logged in. A token, or an identity provider's word (OpenID Connect, code flow with PKCE), begins a session. */
import { ApiError, get, request, send, setCsrfToken, url, whenSignedOut } from "./api.js";
import { createStore, useStore } from "./store.js";
import { sentences } from "./ui/format.js";

/** `phase` is unknown, out or in; `message` says why somebody is out. */
export const session = createStore({ phase: "unknown", user: "", namespace: null, scope: "read", message: "" });
const SCOPES = ["read", "submit", "admin"];
const KEPT = "elasticdl.signing-in";

whenSignedOut((problem) => {
  if (session.get().phase === "in") session.set((now) => ({ ...now, phase: "out", message: problem.message }));
});

/** Whether the request for this page had a session: the API says so in the page, for no script can see the cookie. */
const sent = document.querySelector("script[data-session]")?.dataset.session === "sent";

function begin(answer) {
  setCsrfToken(answer.csrf_token);
  session.set({ ...answer, phase: "in", message: "" });
}

/** Looks whether there is a session; finishes a login that an identity provider sends back. */
export async function resume() {
  const returned = new URLSearchParams(location.search);
  const sentBack = returned.has("state") && (returned.has("code") || returned.has("error"));
  try {
    if (sentBack) {
      await finishProvider(returned);
      return;
    }
    const answer = get("/session");
    if (sent) {
      setCsrfToken(answer.then((one) => one.csrf_token, () => ""));
      session.set((now) => ({ ...now, phase: "in" }));
    }
    begin(await answer);
  } catch (error) {
      const quiet = !sentBack && (error.status === 401 || error.status === 404);
    session.set((now) => ({ ...now, phase: "out", message: quiet ? "" : sentences(error) }));
  }
}

/** Logs in with a token. */
export async function logIn(token) {
  begin(await request("POST", url("/session"), { headers: { Authorization: `Bearer ${token.trim()}` } }));
}

/** Logs out. */
export async function logOut() {
  await send("DELETE", "/session");
  setCsrfToken("");
  session.set({ phase: "out", user: "", namespace: null, scope: "read", message: "" });
}

/** Whether the user's scope includes one. */
export function may(scope, who = session.get()) {
  return SCOPES.indexOf(who.scope) >= SCOPES.indexOf(scope);
}

/** Whether the user's scope includes one, as a hook. */
export const useMay = (scope) => useStore(session, (who) => may(scope, who));

/** The identity provider to log in at, or null. */
export async function findProvider() {
  try {
    return (await get("/session/providers")).oidc;
  } catch (error) {
    return null;
  }
}

/** Sends the browser to the provider. */
export async function beginProvider(provider) {
  const about = await describe(provider.issuer);
  const verifier = random(48);
  const kept = { ...provider, verifier, state: random(16), nonce: random(16), hash: location.hash };
  sessionStorage.setItem(KEPT, JSON.stringify(kept));
  const digest = await crypto.subtle.digest("SHA-256", new TextEncoder().encode(verifier));
  const query = new URLSearchParams({
    response_type: "code", client_id: provider.client_id, redirect_uri: `${location.origin}/`,
    scope: "openid profile email groups", state: kept.state, nonce: kept.nonce,
    code_challenge: base64url(new Uint8Array(digest)), code_challenge_method: "S256",
  });
  location.assign(`${about.authorization_endpoint}?${query}`);
}

async function finishProvider(returned) {
  const kept = JSON.parse(sessionStorage.getItem(KEPT) || "null");
  sessionStorage.removeItem(KEPT);
  history.replaceState(null, "", `/${kept ? kept.hash : ""}`);
  window.dispatchEvent(new HashChangeEvent("hashchange")); // which replaceState does not tell
  if (returned.has("error")) throw refused(returned.get("error_description") || returned.get("error"));
  if (!kept || kept.state !== returned.get("state")) throw refused("the answer is not to our question");
  const about = await describe(kept.issuer);
  const form = new URLSearchParams({
    grant_type: "authorization_code", code: returned.get("code"), client_id: kept.client_id,
    redirect_uri: `${location.origin}/`, code_verifier: kept.verifier,
  });
  const answer = await (await fetch(about.token_endpoint, { method: "POST", body: form, credentials: "omit" })).json();
  if (!answer.id_token) throw refused(answer.error_description || answer.error || "it sent no id token");
  if (JSON.parse(atob(answer.id_token.split(".")[1].replace(/-/g, "+").replace(/_/g, "/"))).nonce !== kept.nonce) {
    throw refused("its token is not for this login");
  }
  await logIn(answer.id_token);
}

const refused = (why) =>
  new ApiError(0, { detail: `The identity provider did not log you in: ${why}.`, fix: "Try again, or use a token." });

async function describe(issuer) {
  try {
    const answer = await fetch(`${issuer.replace(/\/$/, "")}/.well-known/openid-configuration`, { credentials: "omit" });
    return await answer.json();
  } catch (error) {
    throw refused("it does not answer");
  }
}

function base64url(bytes) {
  return btoa(String.fromCharCode(...bytes)).replace(/\+/g, "-").replace(/\//g, "_").replace(/=+$/, "");
}

const random = (bytes) => base64url(crypto.getRandomValues(new Uint8Array(bytes)));
