/** Requests to the API: JSON in and out, problem details as errors, the session's CSRF token with every change. */

const BASE = "/v1";
const READING = new Set(["GET", "HEAD"]);
let csrfToken = "";
let onSignedOut = () => {};

/** A refusal of the API (RFC 9457), or its absence (status 0). */
export class ApiError extends Error {
  /**
   * @param {number} status
   * @param {object} problem the body of the answer.
   */
  constructor(status, problem) {
    super(problem.detail || problem.title || `The API answered ${status}.`);
    this.name = "ApiError";
    this.status = status;
    this.code = problem.code || "";
    this.fix = problem.fix || "";
    /** @type {{field: string, message: string, fix: string}[]} */
    this.problems = problem.problems || [];
    /** @type {{line: number, column: number} | null} of what is wrong in a statement, from 1. */
    this.position = problem.position || null;
    this.traceback = problem.traceback || "";
    this.requestId = problem.request_id || "";
  }
}

/** Says which CSRF token changes carry: the session's, or a promise of it, for which changes wait. */
export function setCsrfToken(token) {
  csrfToken = token;
}

/** Says what happens when the API does not know us any more. */
export function whenSignedOut(handler) {
  onSignedOut = handler;
}

/** An address of the API: `url("/jobs", {state: ["RUNNING"], q: ""})`. What is empty, null or undefined is left out. */
export function url(path, query = {}) {
  const parameters = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    for (const one of Array.isArray(value) ? value : [value]) {
      if (one !== null && one !== undefined && one !== "") parameters.append(name, String(one));
    }
  }
  const text = parameters.toString();
  return `${BASE}${path}${text ? `?${text}` : ""}`;
}

/**
 * One request; the answer's body, or the whole response with `raw`.
 *
 * @param {string} method
 * @param {string} address as `url` gives it.
 * @param {{body?: unknown, headers?: object, signal?: AbortSignal, raw?: boolean}} [options]
 * @throws {ApiError}
 */
export async function request(method, address, { body, headers = {}, signal, raw = false } = {}) {
  const sent = { Accept: "application/json", ...headers };
  const proof = READING.has(method) ? "" : await csrfToken;
  if (proof) sent["X-CSRF-Token"] = proof;
  const binary = body instanceof Blob || body instanceof ArrayBuffer || body instanceof Uint8Array;
  if (body !== undefined && !binary && !("Content-Type" in sent)) sent["Content-Type"] = "application/json";
  let response;
  try {
    response = await (method === "GET" && early(address)) || await fetch(address, {
      method, headers: sent, signal, credentials: "same-origin",
      body: body === undefined || binary ? body : JSON.stringify(body),
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, { detail: "The API does not answer.", fix: "Is the cluster up? This page tries again by itself." });
  }
  if (!response.ok) {
    const problem = await problemOf(response);
    if (response.status === 401 && !headers.Authorization) onSignedOut(problem);
    throw problem;
  }
  if (raw) return response;
  return response.status === 204 ? null : response.json();
}

/** What was asked for before the modules were there (`start.js`), for whoever asks for it first. */
function early(address) {
  const asked = window.elasticdlEarly;
  const answer = asked && asked.get(address);
  if (answer) asked.delete(address);
  return answer;
}

/** GET as JSON. */
export const get = (path, query, options) => request("GET", url(path, query), options);

/** POST, PATCH, PUT or DELETE with a JSON body. */
export const send = (method, path, body, options = {}) => request(method, url(path), { ...options, body });

/** The problem that a response tells. */
export async function problemOf(response) {
  let problem = {};
  try {
    problem = await response.json();
  } catch (error) {
    problem = { detail: `The API answered ${response.status}.` };
  }
  return new ApiError(response.status, problem);
}
