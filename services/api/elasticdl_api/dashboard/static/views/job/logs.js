/** What a process printed: live, with search and download. */
import { request, url } from "../../api.js";
import { isOver } from "../../facts.js";
import { html, useEffect, useLayoutEffect, useMemo, useRef, useState } from "../../lib.js";
import { useResource } from "../../resource.js";
import { setQuery } from "../../address.js";
import { Button, Panel } from "../../ui/elements.js";
import { bytes, count } from "../../ui/format.js";
import { Empty, ErrorState } from "../../ui/states.js";
import { useSettled } from "../../ui/time.js";

const TAIL = 1_000;
const MOST_LINES = 3_000;
const GATHER_MS = 150;

/** The processes that have logs: as the API lists them, else as the job's status has them. @returns {{key, role, index, size}[]} */
export function logsOf(job, files) {
  const found = new Map();
  const add = (role, index, size) => {
    const key = `${role}.${index}`;
    const known = found.get(key) || { key, role, index, size: 0 };
    found.set(key, { ...known, size: known.size + (size || 0) });
  };
  if (files) for (const one of files) add(one.role, one.index, one.size);
  else {
    add("master", 0);
    for (let index = 0; index < (job.spec.num_ps || 0); index += 1) add("ps", index);
    for (const worker of job.status.workers || []) add("worker", worker.index);
    add("worker", 0);
  }
  const order = ["master", "ps", "worker"];
  return [...found.values()].sort((a, b) => order.indexOf(a.role) - order.indexOf(b.role) || a.index - b.index);
}

/** Lines of a log as they come; `live` goes on with what is printed from now on. */
function useLines(jobId, role, index, grep, live) {
  const [state, setState] = useState({ lines: [], cut: 0, error: null, open: true });
  useEffect(() => {
    const controller = new AbortController();
    let gathered = "";
    let timer = 0;
    setState({ lines: [], cut: 0, error: null, open: true });
    const flush = (end) => {
      clearTimeout(timer);
      timer = 0;
      const parts = gathered.split("\n");
      gathered = end ? "" : parts.pop();
      const fresh = end && parts.at(-1) === "" ? parts.slice(0, -1) : parts;
      setState((now) => {
        const lines = [...now.lines, ...fresh];
        const over = Math.max(0, lines.length - MOST_LINES);
        return { ...now, lines: over ? lines.slice(over) : lines, cut: now.cut + over, open: !end };
      });
    };
    const read = async () => {
      const query = { role, index, tail: TAIL, grep, follow: live ? "true" : null };
      const answer = await request("GET", url(`/jobs/${encodeURIComponent(jobId)}/logs`, query), { signal: controller.signal, raw: true, headers: { Accept: "text/plain" } });
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      for (;;) {
        const { value, done } = await reader.read();
        if (done) break;
        gathered += value;
        if (!timer) timer = setTimeout(() => flush(false), GATHER_MS);
      }
      flush(true);
    };
    read().catch((error) => {
      if (error.name !== "AbortError") setState((now) => ({ ...now, error, open: false }));
    });
    return () => {
      clearTimeout(timer);
      controller.abort();
    };
  }, [jobId, role, index, grep, live]);
  return state;
}

/** A line with what is searched for marked in it. */
function Line({ text, search }) {
  if (!search) return html`<div>${text || " "}</div>`;
  const parts = text.split(search);
  return html`<div>${parts.map((part, place) => (place ? html`<mark>${search}</mark>${part}` : part))}</div>`;
}

/** The logs of a job. */
export function Logs({ job, query }) {
  const files = useResource(`/jobs/${encodeURIComponent(job.id)}/logs/files`);
  const listed = files.data && files.data.files;
  const logs = useMemo(() => logsOf(job, listed), [job.id, listed, (job.status.workers || []).length]);
  const role = query.role || "worker";
  const index = /^\d{1,6}$/.test(query.index || "") ? Number(query.index) : 0;
  const [text, setText] = useState(query.grep || "");
  const settled = useSettled(text, 350);
  const [live, setLive] = useState(!isOver(job));
  const { lines, cut, error, open } = useLines(job.id, role, index, settled, live);
  const screen = useRef(null);
  const atEnd = useRef(true);
  useEffect(() => {
    if (settled !== (query.grep || "")) setQuery({ grep: settled || null });
  }, [settled]);
  useLayoutEffect(() => {
    if (atEnd.current && screen.current) screen.current.scrollTop = screen.current.scrollHeight;
  }, [lines]);
  const scrolled = (event) => {
    const { scrollTop, scrollHeight, clientHeight } = event.target;
    atEnd.current = scrollHeight - scrollTop - clientHeight < 24;
  };
  const choose = (event) => {
    const [chosen, number] = event.target.value.split(".");
    setQuery({ role: chosen, index: number });
  };
  const known = logs.some((one) => one.key === `${role}.${index}`) ? logs : [...logs, { key: `${role}.${index}`, role, index, size: 0 }];
  const whole = url(`/jobs/${encodeURIComponent(job.id)}/logs`, { role, index, grep: settled, download: files.missing ? null : "true" });
  return html`<${Panel} class="flush" title="Log" note=${`${count(lines.length)} lines${settled ? ` with “${settled}”` : ""}${cut || lines.length >= TAIL ? ", the last ones" : ""}`} actions=${html`
      <select aria-label="Process" value=${`${role}.${index}`} onChange=${choose}>${known.map((one) => html`<option key=${one.key} value=${one.key}>${one.role === "master" ? "master" : `${one.role} ${one.index}`}${one.size ? ` (${bytes(one.size)})` : ""}</option>`)}</select>
      <input type="search" aria-label="Search in the log" placeholder="Lines with …" maxlength="1000" value=${text} onInput=${(event) => setText(event.target.value)} />
      <label class="row"><input type="checkbox" checked=${live} onChange=${(event) => setLive(event.target.checked)} /> Live</label>
      <${Button} icon="download" href=${whole} download=${`${job.id}-${role}-${index}.log`}>Download<//>`}>
    ${error && html`<div class="inset"><${ErrorState} error=${error} /></div>`}
    <div class="log" ref=${screen} onScroll=${scrolled} tabindex="0" role="log" aria-label=${`Log of ${role} ${index}`} aria-live="off">
      ${lines.length === 0 && !error && html`<${Empty} title=${open && live ? "Nothing was printed yet" : open ? "Loading" : settled ? "No line has that" : "Nothing was printed"} />`}
      ${lines.map((line, place) => html`<${Line} key=${cut + place} text=${line} search=${settled} />`)}
    </div>
  <//>`;
}
