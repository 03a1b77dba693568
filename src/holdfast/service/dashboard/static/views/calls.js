// Calls of all sessions: how many failed and why, how long they took, and the list of those that failed.

import { get, now, part } from "../api.js";
import { fill, h, simulatedHint } from "../dom.js";
import { OUTCOMES, count, duration, outcome, quoted, time } from "../format.js";
import { number, pager, periodName, periodOf, periodSwitch, table } from "../table.js";

export const title = "Calls";

const LIMIT = 50;
const DAY = 86_400_000;

export async function show(place, { query }) {
  const days = periodOf(query);
  const [kind, skip] = [query.get("outcome") ?? "", Math.max(0, Math.floor(Number(query.get("skip")) || 0))];
  const link = (other) => `#/calls?${new URLSearchParams(Object.entries({ days, outcome: kind, ...other }).filter(([, value]) => value !== ""))}`;
  const body = h("div", {});
  const refresh = async () => {
    const from = new Date(now() - days * DAY).toISOString();
    const [{ data }, failed] = await Promise.all([
      get("/analytics/reliability", { from }), get("/analytics/reliability/calls", { from, outcome: kind, skip, limit: LIMIT })]);
    const isEmpty = !data.errors_by_class.length && !data.latency_ms_by_model.length;
    fill(body, isEmpty && simulatedHint() ? h("p", { class: "small" }, simulatedHint()) : null, outcomeTable(data.errors_by_class, kind, link), latencyTable(data.latency_ms_by_model),
      failedCalls(failed.data, {
        caption: kind ? `Calls that ended with ${kind.replaceAll("_", " ")}, newest first` : "Calls that failed, newest first",
        none: kind ? `No call ended with ${kind.replaceAll("_", " ")} in the last ${periodName(days)}.` : `No call failed in the last ${periodName(days)}.`,
      }),
      pager({ skip, limit: LIMIT, more: failed.more, link: (next) => link({ skip: next }) }));
  };
  await refresh();
  place.append(h("h1", {}, title), periodSwitch(days, (value) => link({ days: value })),
    h("p", { class: "small" }, "The calls that were answered are listed with their session, each with its time to the first byte: ", h("a", { href: "#/sessions" }, "Sessions"), "."), body);
  return { refresh };
}

const outcomeTable = (rows, kind, link) => table({
  name: "failures", caption: "Failures by outcome", rows, none: "No failures in this period.", attributes: (row) => ({ "data-outcome": row.error_class, class: row.error_class === kind ? "ours" : null }),
  columns: [
    { heading: "Outcome", plain: (row) => row.error_class, show: (row) => h("a", { href: link({ outcome: row.error_class === kind ? "" : row.error_class }), "aria-current": row.error_class === kind ? "true" : null, "data-key": `outcome ${row.error_class}` }, row.error_class.replaceAll("_", " "), row.error_class === kind ? " (show all)" : "") },
    { heading: "What to do", plain: (row) => OUTCOMES[row.error_class] ?? "", show: (row) => h("span", { class: "small" }, quoted(OUTCOMES[row.error_class] ?? "–")) },
    number("Calls", (row) => row.count),
  ],
});

const milliseconds = (heading, of, meaning) => ({ heading, meaning, number: true, plain: of, show: (row) => duration(of(row)) });

const latencyTable = (rows) => table({
  name: "latencies", caption: "Time by model", rows, none: "No call was answered in this period.",
  columns: [
    { heading: "Model", plain: (row) => row.model, show: (row) => row.model },
    number("Calls", (row) => row.sample_size, "Billed calls"),
    milliseconds("Median", (row) => row.p50, "From the request to the end of the response, retries included: half of the calls took at most this long"),
    milliseconds("95 %", (row) => row.p95, "95 of 100 calls took at most this long"),
  ],
});

/** Calls that did not complete, each with its session. */
export const failedCalls = (rows, { caption, none }) => table({
  name: "failed calls", caption, rows, none,
  columns: [
    { heading: "Session", plain: (row) => row.title, show: (row) => h("a", { href: `#/session/${part(row.session_id)}`, "data-key": `failed ${row.session_id} ${row.at}` }, row.title) },
    { heading: "Model", plain: (row) => row.model, show: (row) => row.model },
    { heading: "Outcome", meaning: "The error class; the response of an unreadable call could not be decoded", plain: (row) => row.outcome, show: (row) => outcome(row.outcome) },
    { heading: "Time", meaning: "From the request to the end of the response; retries included", number: true, plain: (row) => row.latency_ms, show: (row) => duration(row.latency_ms) },
    number("Retries", (row) => row.retries),
    { heading: "At", plain: (row) => row.at, show: (row) => time(row.at) },
  ],
});
