// One session: its prompts as strata, and the call that was chosen.

import { get, part } from "../api.js";
import { button, empty, fill, h, tile } from "../dom.js";
import { svgButton } from "../exporting.js";
import { count, dollars, percent, time, verdict } from "../format.js";
import { legend, strata } from "../strata.js";
import { table } from "../table.js";
import { callDetail } from "./call.js";

export const title = "Session";

const PAGE = 1000;
const ROWS = 100;

export async function show(place, { rest, query, visitor }) {
  const [id] = rest;
  if (!id) {
    place.append(empty("No session was named", [h("a", { href: "#/sessions" }, "Choose one"), "."]));
    return {};
  }
  const path = `/api/sessions/${part(id)}/calls`;
  const state = { told: null, selected: Number(query.get("call")) || null, rows: ROWS, drawn: null };
  const [head, chart, detail, list] = [h("div", {}), h("div", {}), h("div", { class: "detail", "aria-live": "polite" }), h("div", {})];

  const link = (number) => `#/session/${part(id)}?call=${number}`;
  const choose = (call) => { if (call) location.hash = link(call.number); };
  const step = (by) => {
    const { calls } = state.told;
    const at = calls.findIndex((call) => call.number === state.selected);
    choose(calls[at < 0 ? calls.length - 1 : Math.min(calls.length - 1, Math.max(0, at + by))]);
  };

  const drawChart = () => {
    const { calls } = state.told;
    const before = chart.querySelector(".scroll")?.scrollLeft;
    const width = Math.max(240, (place.clientWidth || document.getElementById("main").clientWidth) - 40);
    state.drawn = strata({ ...state.told, width, selected: state.selected });
    const { drawing } = state.drawn;
    drawing.addEventListener("click", (event) => choose(state.drawn.at(event.clientX - drawing.getBoundingClientRect().left)));
    const scroll = h("div", {
      class: "scroll chart", tabindex: 0, role: "group", "data-key": "strata",
      "aria-label": "Prompts by call; the arrow keys choose one",
      keydown: (event) => {
        const by = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
        if (by === undefined) return;
        event.preventDefault();
        step(by);
      },
    }, drawing);
    const shown = h("section", { class: "block", "aria-label": "Prompts by call" },
      h("div", { class: "bar" }, h("h2", {}, "Prompts by call"), svgButton("prompts", () => drawing)), scroll, legend(calls), earlier());
    fill(chart, shown);
    scroll.scrollLeft = before ?? scroll.scrollWidth;
  };

  const earlier = () => (state.told.calls[0]?.number > 1
    ? button("Show earlier calls", async () => {
      const first = state.told.calls[0].number - 1;
      const after = Math.max(0, first - PAGE);
      const more = await get(path, { after, limit: first - after });
      state.told = { ...state.told, calls: [...more.calls, ...state.told.calls], between: joined(more.between, state.told.between) };
      draw();
    }, { "data-key": "earlier" })
    : null);

  const draw = () => {
    document.title = `${state.told.name ?? id} · Holdfast`;
    fill(head, summary(state.told));
    if (!state.told.calls.length) {
      fill(chart, empty("No call yet", ["This session has not been answered by a model yet; it appears here as soon as it is."]));
      return;
    }
    drawChart();
    fill(list, listed(state, link, () => { state.rows += 10 * ROWS; draw(); }));
  };

  const drawDetail = async () => {
    if (!state.selected) {
      fill(detail, h("p", { class: "none" }, "Choose a bar, or a call in the table, to see its plan, its verdict and its certificate."));
      return;
    }
    const wanted = state.selected;
    try {
      const shown = await callDetail(path, wanted, visitor);
      if (wanted === state.selected) fill(detail, shown);
    } catch (error) {
      fill(detail, h("p", { role: "alert" }, error.message));
    }
  };

  const refresh = async (sessions) => {
    if (sessions && !sessions.has(null) && !sessions.has(id)) return;
    const last = state.told?.calls.at(-1)?.number;
    const told = await get(path, last ? { after: last, limit: PAGE } : { limit: PAGE });
    state.told = last
      ? { ...told, calls: [...state.told.calls, ...told.calls], between: joined(state.told.between, told.between) }
      : told;
    draw();
  };

  await refresh();
  await drawDetail();
  place.append(head, chart, detail, list);
  const resized = () => state.told.calls.length && drawChart();
  window.addEventListener("resize", resized);
  return {
    refresh,
    drawn: () => state.told.calls.length && drawChart(),
    close: () => window.removeEventListener("resize", resized),
    moved: (otherRest, otherQuery) => {
      if (otherRest[0] !== id) return false;
      state.selected = Number(otherQuery.get("call")) || null;
      if (state.told.calls.length) drawChart();
      drawDetail();
      return true;
    },
  };
}

/** Pages tell what happened at their edges twice. */
function joined(before, after) {
  const known = new Set(before.map((one) => `${one.at} ${one.kind} ${one.detail}`));
  return [...before, ...after.filter((one) => !known.has(`${one.at} ${one.kind} ${one.detail}`))];
}

function summary(told) {
  const sum = (of) => told.calls.reduce((total, call) => total + of(call), 0);
  const sent = sum((call) => call.read_tokens + call.written_tokens + call.uncached_tokens);
  return [h("h1", {}, told.name ?? told.session_id),
    h("p", { class: "small" }, `${told.model} · ${told.session_id}`, told.simulated ? " · simulated: nobody's money" : ""),
    h("div", { class: "tiles" },
      tile("Calls", count(told.calls_total), "Calls that were paid for"),
      tile("Cost", dollars(sum((call) => call.cost_usd)), "Of the calls shown below"),
      tile("Without a cache", dollars(sum((call) => call.uncached_usd)), "What the same calls would have cost"),
      tile("Read", percent(sent ? sum((call) => call.read_tokens) / sent : null), "Share of all tokens that was read from the cache"),
      tile("Lost", dollars(sum((call) => call.lost_usd)), "What was paid above reading it, where the cache did not hold"))];
}

function listed(state, link, more) {
  const calls = [...state.told.calls].reverse();
  const rows = calls.slice(0, state.rows);
  return [table({
    name: "calls",
    caption: "Calls",
    rows,
    attributes: (row) => ({ "data-call": row.number }),
    columns: [
      { heading: "Call", plain: (row) => row.number, show: (row) => h("a", { href: link(row.number), "data-key": `call ${row.number}`, "aria-label": `Call ${row.number}` }, String(row.number)) },
      { heading: "At", plain: (row) => row.at, show: (row) => time(row.at) },
      { heading: "Read", meaning: "Tokens read from the cache", number: true, plain: (row) => row.read_tokens, show: (row) => count(row.read_tokens) },
      { heading: "Written", meaning: "Tokens written to the cache", number: true, plain: (row) => row.written_tokens, show: (row) => count(row.written_tokens) },
      { heading: "Uncached", meaning: "Tokens neither read nor written", number: true, plain: (row) => row.uncached_tokens, show: (row) => count(row.uncached_tokens) },
      { heading: "Out", meaning: "Tokens that were answered", number: true, plain: (row) => row.output_tokens, show: (row) => count(row.output_tokens) },
      { heading: "Cost", number: true, plain: (row) => row.cost_usd, show: (row) => dollars(row.cost_usd) },
      { heading: "Verdict", meaning: "Whether the cache held", plain: (row) => row.verdict ?? "", show: (row) => verdict(row.verdict, row.component ?? "") },
    ],
  }), calls.length > rows.length ? button("Show more rows", more, { "data-key": "more rows" }) : null];
}
