/** What follows from a job as the API tells it. Pure. */
import { duration } from "./ui/format.js";

/** All states of jobs, in the order of a life. */
export const STATES = ["QUEUED", "STARTING", "RUNNING", "SUSPENDED", "CANCELLING", "SUCCEEDED", "SUCCEEDED_WITH_SKIPS", "FAILED", "CANCELLED"];
/** Those of jobs that go on, and of those that are over. */
export const GROUPS = { live: STATES.slice(0, 5), over: STATES.slice(5) };

/** How far a job is, from 0 to 1; null before anybody knows. */
export function fractionOf(job) {
  const progress = job.status && job.status.progress;
  return progress && progress.records_total ? progress.records_done / progress.records_total : null;
}

/** How many of a job's workers are there. */
export function workersOf(job) {
  const { workers_present: present, workers } = job.status || {};
  return typeof present === "number" ? present : (workers || []).filter((one) => one.state !== "ended").length;
}

/** A ledger as it was read, with what a stream told of it since: of its epochs only those around the present one. */
export function freshLedger(read, told) {
  if (!told || !told.total.planned) return read;
  const fresh = new Map(told.epochs.map((one) => [one.epoch, one]));
  const known = read.epochs.filter((one) => !fresh.has(one.epoch));
  return { ...told, epochs: [...known, ...told.epochs].sort((a, b) => a.epoch - b.epoch) };
}

/** Whether epochs before those that were told are shown as they were when nobody had come to their end: a stream left some out. */
export function isStale(ledger, told) {
  if (!told || !told.epochs.length) return false;
  const first = told.epochs[0].epoch;
  return ledger.epochs.some((one) => one.epoch < first && one.committed + one.skipped < one.planned);
}

/** Whether a job is over. */
export const isOver = (job) => GROUPS.over.includes(job.state);

/** When a job will end: seconds with their bounds, as text; null if nobody knows. */
export function endOf(job) {
  const { eta_seconds: eta, eta_low_seconds: low, eta_high_seconds: high } = job.status || {};
  if (isOver(job) || typeof eta !== "number") return null;
  return { text: duration(Math.round(eta)), band: typeof low === "number" && typeof high === "number" ? `${duration(Math.round(low))} – ${duration(Math.round(high))}` : "" };
}

