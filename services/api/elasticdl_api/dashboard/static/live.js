/**
 * Live streams of the API. One connection follows all jobs and the cluster for whoever looks at them; a job's page has
 * one of its own instead. A stream that was cut goes on where it was (`Last-Event-ID`), and says meanwhile since when
 * what is shown is stale.
 *
 * Server-sent events are read with fetch, not with EventSource: so the comments are seen that tell that the other side
 * lives, and a silent connection is noticed.
 */
import { problemOf, url } from "./api.js";
import { useEffect, useRef } from "./lib.js";
import { createStore } from "./store.js";
import { rest, untilSeen } from "./visibility.js";

/** Milliseconds of silence after which a stream counts as cut: the API speaks every 15 s at least. */
export const SILENCE_MS = 30_000;
const GATHER_MS = 100;
const LINGER_MS = 5_000;
const WAITS_MS = [500, 1_000, 2_000, 5_000, 10_000];

/** `phase` is idle, connecting, live, stale or ended; `heard` is when the stream last spoke, in ms. */
export const connection = createStore({ phase: "idle", heard: 0, problem: "" });

/** Takes text as it comes and gives whole messages of an event stream. */
export class EventParser {
  constructor() {
    this.rest = "";
  }

  /** @param {string} text @returns {{id: string, event: string, data: string}[]} */
  push(text) {
    const blocks = (this.rest + text).replace(/\r\n?/g, "\n").split("\n\n");
    this.rest = blocks.pop();
    const found = [];
    for (const block of blocks) {
      const message = { id: "", event: "message", data: "" };
      for (const line of block.split("\n")) {
        const colon = line.indexOf(":");
        if (colon <= 0) continue;
        const value = line.slice(colon + 1).replace(/^ /, "");
        const name = line.slice(0, colon);
        if (name === "data") message.data += (message.data && "\n") + value;
        else if (name in message) message[name] = value;
      }
      if (message.data) found.push(message);
    }
    return found;
  }
}

/** One stream, kept open until `close`. `take` gets what came, gathered: [{event, data}]. */
class Stream {
  constructor(path, take, query = {}) {
    this.address = url(path, query);
    this.take = take;
    this.lastId = "";
    this.closed = false;
    this.gathered = [];
    this.flushed = 0;
    this.leave = rest.subscribe(() => {
      if (rest.get().resting && this.abort) this.abort.abort(); // it goes on where it was once somebody looks
    });
    this.state = { phase: "connecting", heard: 0, problem: "" };
    show(this);
    this.run();
  }

  close() {
    this.closed = true;
    this.leave();
    clearTimeout(this.flushing);
    if (this.abort) this.abort.abort();
  }

  async run() {
    for (let attempt = 0; !this.closed; attempt += 1) {
      await untilSeen();
      if (this.closed) return;
      const began = Date.now();
      tell({ phase: this.state.heard ? "stale" : "connecting" }, this);
      try {
        await this.read();
        if (this.ended) break;
      } catch (error) {
        if (this.closed) return;
        if (error.status === 401 || error.status === 403 || error.status === 404) {
          tell({ phase: "ended", problem: error.message }, this);
          return;
        }
        tell({ phase: "stale", problem: error.status ? error.message : "" }, this);
      }
      if (rest.get().resting) continue;
      if (Date.now() - began > 10_000) attempt = 0;
      const wait = WAITS_MS[Math.min(attempt, WAITS_MS.length - 1)];
      await new Promise((resume) => setTimeout(resume, wait * (0.75 + Math.random() / 2)));
    }
    if (!this.closed) tell({ phase: "ended" }, this);
  }

  async read() {
    this.abort = new AbortController();
    const headers = { Accept: "text/event-stream" };
    if (this.lastId) headers["Last-Event-ID"] = this.lastId;
    let silent = setTimeout(() => this.abort.abort(), SILENCE_MS);
    try {
      const answer = await fetch(this.address, { headers, signal: this.abort.signal, cache: "no-store" });
      if (!answer.ok) throw await problemOf(answer);
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      const parser = new EventParser();
      for (;;) {
        const { value, done } = await reader.read();
        if (done) return;
        clearTimeout(silent);
        silent = setTimeout(() => this.abort.abort(), SILENCE_MS);
        tell({ phase: "live", heard: Date.now(), problem: "" }, this);
        for (const message of parser.push(value)) this.gather(message);
      }
    } finally {
      clearTimeout(silent);
    }
  }

  gather(message) {
    if (message.id) this.lastId = message.id;
    if (message.event === "end") this.ended = true;
    this.gathered.push({ event: message.event, data: JSON.parse(message.data) });
    // The first message at once, those that follow closely together.
    if (this.gathered.length === 1) this.flushing = setTimeout(() => this.flush(), Math.max(0, this.flushed + GATHER_MS - Date.now()));
  }

  flush() {
    const messages = this.gathered;
    this.gathered = [];
    this.flushed = Date.now();
    if (!this.closed) this.take(messages);
  }
}

let speaking = null;

/** Has the page's sign of life be that of one stream. */
function show(stream) {
  speaking = stream;
  connection.set(stream.state);
}

function tell(change, stream) {
  stream.state = { ...stream.state, ...change };
  if (speaking === stream) connection.set(stream.state);
}

/** The cluster as it was told last, for all views. */
export const cluster = createStore(null);
const overviewListeners = new Set();
let overview = null;
let lingering = 0;

function openOverview() {
  clearTimeout(lingering);
  if (overview === null) {
    overview = new Stream("/events", (messages) => {
      const latest = messages.findLast((one) => one.event === "cluster");
      if (latest) cluster.set(latest.data);
      for (const hear of overviewListeners) hear(messages);
    }, { view: "summary" });
  } else {
    show(overview);
  }
}

function closeOverviewSoon() {
  clearTimeout(lingering);
  lingering = setTimeout(() => {
    if (overviewListeners.size === 0 && overview !== null) {
      overview.close();
      overview = null;
    }
  }, LINGER_MS);
}

/**
 * Follows all jobs and the cluster: `hear` gets messages `job`, `deleted`, `cluster`, `reset`, several at a time. A stream
 * begins with `reset`, so that a view that was read before misses nothing: it follows once it is `ready`, as streams
 * must not stand in the way of what is to be seen first.
 */
export function useOverview(hear, ready = true) {
  const latest = useRef(hear);
  latest.current = hear;
  useEffect(() => {
    if (!ready) return undefined;
    const listen = (messages) => latest.current(messages);
    overviewListeners.add(listen);
    openOverview();
    return () => {
      overviewListeners.delete(listen);
      closeOverviewSoon();
    };
  }, [ready]);
}

/** Follows one job: `hear` gets messages `event`, `status`, `end`, several at a time. */
export function useJobStream(jobId, hear) {
  const latest = useRef(hear);
  latest.current = hear;
  useEffect(() => {
    const stream = new Stream(`/jobs/${encodeURIComponent(jobId)}/events`, (messages) => latest.current(messages));
    return () => stream.close();
  }, [jobId]);
}
