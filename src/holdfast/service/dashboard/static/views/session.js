// One session: chart of its prompts by layer, and details of the selected call.

import { get, part } from "../api.js";
import { button, empty, fill, h, tile } from "../dom.js";
import { svgButton } from "../download.js";
import { cost, costOfPriced, count, dollars, duration, modelsOf, outcome, percent, time, verdict } from "../format.js";
import { describeCall, legend, promptChart } from "../prompt_chart.js";
import { table } from "../table.js";
import { callDetail } from "./call.js";
import { compactionBlock } from "./compactions.js";

export const title = "Session";

const PAGE = 1000;
const ROWS = 100;

export async function show(place, { rest, query, visitor }) {
  const [id] = rest;
  if (!id) {
    place.append(h("h1", {}, title), empty("No session selected", [h("a", { href: "#/sessions" }, "Choose one"), "."]));
    return {};
  }
  const path = `/api/sessions/${part(id)}/calls`;
  const state = { session: null, selected: callOf(query), rows: ROWS, chart: null, marks: 0, isFromTable: false };
  const [head, chart, detail, compactions, list] = [h("div", {}), h("div", {}), h("div", { class: "detail", "aria-live": "polite" }), h("div", {}), h("div", {})];

  const link = (number) => `#/session/${part(id)}?call=${number}`;
  const select = (call) => { if (call) location.hash = link(call.number); };
  const step = (by) => {
    const { calls } = state.session;
    const at = calls.findIndex((call) => call.number === state.selected);
    select(calls[at < 0 ? calls.length - 1 : Math.min(calls.length - 1, Math.max(0, at + by))]);
  };

  const drawChart = () => {
    const { calls } = state.session;
    const before = chart.querySelector(".scroll")?.scrollLeft;
    const width = Math.max(240, (place.clientWidth || document.getElementById("main").clientWidth) - 40);
    state.chart = promptChart({ ...state.session, width, selected: state.selected });
    const { drawing } = state.chart;
    drawing.addEventListener("click", (event) => select(state.chart.at(event.clientX - drawing.getBoundingClientRect().left)));
    const readout = h("p", { class: "readout small", role: "status" });
    const describe = (call) => fill(readout, call ? describeCall(call) : "Tokens by call, layers in the order of the prompt");
    const chosen = () => calls.find((call) => call.number === state.selected);
    drawing.addEventListener("pointermove", (event) => describe(state.chart.at(event.clientX - drawing.getBoundingClientRect().left)));
    drawing.addEventListener("pointerleave", () => describe(chosen()));
    describe(chosen());
    const scroll = h("div", {
      class: "scroll chart", tabindex: 0, role: "group", "data-key": "prompts",
      "aria-label": "Prompts by call; use the arrow keys to select one",
      keydown: (event) => {
        const by = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
        if (by === undefined) return;
        event.preventDefault();
        step(by);
      },
    }, drawing);
    const section = h("section", { class: "block", "aria-label": "Prompts by call" },
      h("div", { class: "bar" }, h("h2", {}, "Prompts by call"), svgButton("prompts", () => drawing)), scroll, readout, legend(calls), earlier());
    fill(chart, section);
    scroll.scrollLeft = before ?? scroll.scrollWidth;
  };

  const earlier = () => (state.session.calls[0]?.number > 1
    ? button("Show earlier calls", async () => {
      const first = state.session.calls[0].number - 1;
      const after = Math.max(0, first - PAGE);
      const more = await get(path, { after, limit: first - after });
      state.session = { ...state.session, calls: [...more.calls, ...state.session.calls], between: mergeEvents(more.between, state.session.between) };
      draw();
    }, { "data-key": "earlier" })
    : null);

  const draw = () => {
    document.title = `${state.session.title} · Holdfast`;
    fill(head, summary(state.session));
    if (!state.session.calls.length) {
      const { failed } = state.session;
      fill(chart, failed.length
        ? empty("No call was answered", [`${count(failed.length)} ${failed.length === 1 ? "call" : "calls"} failed; the table below has the errors.`])
        : empty("No call yet", ["No model has answered in this session yet; the first call will appear here."]));
      fill(list, failedTable(failed));
      return;
    }
    drawChart();
    fill(list, callTable(state, link, () => { state.rows += 10 * ROWS; draw(); }));
  };

  const drawDetail = async () => {
    if (!state.selected) {
      fill(detail, state.session.calls.length ? h("p", { class: "none" }, "Select a bar, or a call in the table, to see its plan, verdict and certificate.") : null);
      return;
    }
    const number = state.selected;
    try {
      const element = await callDetail(id, path, number, visitor);
      if (number === state.selected) fill(detail, element);
    } catch (error) {
      fill(detail, h("p", { role: "alert" }, error.message));
    }
  };

  const refresh = async (sessions) => {
    if (sessions && !sessions.has(null) && !sessions.has(id)) return;
    const last = state.session?.calls.at(-1)?.number;
    const session = await get(path, last ? { after: last, limit: PAGE } : { limit: PAGE });
    state.session = last
      ? { ...session, calls: [...state.session.calls, ...session.calls], between: mergeEvents(state.session.between, session.between) }
      : session;
    draw();
    // Reading compactions takes the whole log, so it is done only for a session that has some, when one was added.
    const marks = state.session.between.filter((event) => event.kind === "compaction").length;
    if (marks !== state.marks) {
      state.marks = marks;
      fill(compactions, marks ? await compactionBlock(`/api/sessions/${part(id)}/compactions`, visitor) : null);
    }
  };

  await refresh();
  await drawDetail();
  place.append(head, chart, detail, compactions, list);
  const resized = () => state.session.calls.length && drawChart();
  window.addEventListener("resize", resized);
  return {
    refresh,
    attached: () => state.session.calls.length && drawChart(),
    close: () => window.removeEventListener("resize", resized),
    navigate: (otherRest, otherQuery) => {
      if (otherRest[0] !== id) return false;
      state.selected = callOf(otherQuery);
      const { isFromTable } = state;
      state.isFromTable = false;
      if (state.session.calls.length) drawChart();
      // The details are above the table: whoever chose a call there would not see them.
      drawDetail().then(() => { if (isFromTable) detail.scrollIntoView({ block: "nearest" }); });
      return true;
    },
  };
}

/** The number of the selected call; what is no number of a call selects none. */
const callOf = (query) => (/^[1-9]\d{0,8}$/.test(query.get("call") ?? "") ? Number(query.get("call")) : null);

/** Events at the edge of a page are in both pages. */
function mergeEvents(before, after) {
  const keyOf = (event) => `${event.at} ${event.kind} ${event.detail}`;
  const known = new Set(before.map(keyOf));
  return [...before, ...after.filter((event) => !known.has(keyOf(event)))];
}

function summary(session) {
  const sum = (of) => session.calls.reduce((total, call) => total + of(call), 0);
  const [first, last] = [session.calls[0], session.calls.at(-1)];
  const sent = sum((call) => call.read_tokens + call.written_tokens + call.uncached_tokens);
  return [h("h1", {}, session.title),
    h("p", { class: "small" }, [modelsOf(first && last ? { model: first.model, active_model: last.model } : { model: session.model, active_model: session.model }), session.client, session.session_id, session.simulated ? "simulated: not billed" : null].filter(Boolean).join(" · "), " · started ", time(session.started_at), " · ",
      h("a", { href: `#/compare?${new URLSearchParams({ a: session.session_id })}`, "data-key": "compare" }, "compare with another session")),
    h("div", { class: "tiles" },
      tile("Calls", count(session.calls_total), "Billed calls"),
      tile("Cost", costOf(session.calls), "Of the calls shown below"),
      tile("Without a cache", dollars(sum((call) => call.uncached_usd)), "What the same calls would have cost"),
      tile("Read", percent(sent ? sum((call) => call.read_tokens) / sent : null), "Share of input tokens read from the cache"),
      tile("Lost", dollars(sum((call) => call.lost_usd)), "Cost above the cache read price where the cache did not hold"))];
}

const costOf = (calls) => costOfPriced(calls.reduce((total, call) => total + (call.cost_usd ?? 0), 0), calls.filter((call) => call.cost_usd === null).length, calls.length);

function callTable(state, link, more) {
  const calls = [...state.session.calls].reverse();
  const rows = calls.slice(0, state.rows);
  return [table({
    name: "calls",
    caption: "Calls",
    rows,
    attributes: (row) => ({ "data-call": row.number }),
    columns: [
      { heading: "Call", plain: (row) => row.number, show: (row) => h("a", { href: link(row.number), click: () => { state.isFromTable = state.selected !== row.number; }, "data-key": `call ${row.number}`, "aria-label": `Call ${row.number}` }, String(row.number)) },
      { heading: "At", plain: (row) => row.at, show: (row) => time(row.at) },
      { heading: "Read", meaning: "Tokens read from the cache", number: true, plain: (row) => row.read_tokens, show: (row) => count(row.read_tokens) },
      { heading: "Written", meaning: "Tokens written to the cache", number: true, plain: (row) => row.written_tokens, show: (row) => count(row.written_tokens) },
      { heading: "Uncached", meaning: "Tokens neither read nor written", number: true, plain: (row) => row.uncached_tokens, show: (row) => count(row.uncached_tokens) },
      { heading: "Out", meaning: "Output tokens", number: true, plain: (row) => row.output_tokens, show: (row) => count(row.output_tokens) },
      { heading: "Cost", number: true, plain: (row) => row.cost_usd, show: (row) => cost(row.cost_usd) },
      { heading: "Time", meaning: "From the request to the end of the response; retries included", number: true, plain: (row) => row.latency_ms, show: (row) => [duration(row.latency_ms), row.first_byte_ms === null ? null : h("div", { class: "small" }, `first byte ${duration(row.first_byte_ms)}`), row.retries ? h("div", { class: "small" }, `${count(row.retries)} ${row.retries === 1 ? "retry" : "retries"}`) : null] },
      { heading: "Outcome", plain: (row) => row.outcome, show: (row) => outcome(row.outcome) },
      { heading: "Verdict", meaning: "Whether the cache held", plain: (row) => row.verdict ?? "", show: (row) => verdict(row.verdict, row.component ?? "") },
    ],
  }), calls.length > rows.length ? button("Show more rows", more, { "data-key": "more rows" }) : null, failedTable(state.session.failed)];
}

const failedTable = (failed) => (failed.length ? table({
  name: "failed calls", caption: "Calls that failed at no cost", rows: [...failed].reverse(),
  columns: [
    { heading: "At", plain: (row) => row.at, show: (row) => time(row.at) },
    { heading: "After call", number: true, plain: (row) => row.calls_before, show: (row) => count(row.calls_before) },
    { heading: "Error", plain: (row) => row.error_class, show: (row) => outcome(row.error_class) },
    { heading: "Time", number: true, plain: (row) => row.latency_ms, show: (row) => duration(row.latency_ms) },
    { heading: "Retries", number: true, plain: (row) => row.retries, show: (row) => count(row.retries) },
  ],
}) : null);
