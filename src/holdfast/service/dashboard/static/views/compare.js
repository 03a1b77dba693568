// Two calls or two sessions side by side: usage, cost, verdict, and the first bytes that differ.

import { get, part } from "../api.js";
import { button, empty, fill, h } from "../dom.js";
import { cost, count, dollars, duration, percent, time, verdict } from "../format.js";
import { table } from "../table.js";
import { divergence } from "./call.js";

export const title = "Compare";

const SIDES = ["a", "b"];
const OFFERED_MAX = 100;

export async function show(place, { query, visitor }) {
  const wanted = Object.fromEntries(SIDES.flatMap((side) => [side, `${side}_call`]).map((name) => [name, query.get(name) ?? ""]));
  const { sessions } = await get("/api/sessions", { limit: OFFERED_MAX });
  place.append(h("h1", {}, "Compare"), form(wanted, sessions));
  if (!SIDES.every((side) => wanted[side])) {
    place.append(empty("Choose two sessions", ["The fields offer the newest sessions by name; with the number of a call in both, the two calls are compared."]));
    return {};
  }
  const isCalls = SIDES.every((side) => wanted[`${side}_call`]);
  const sides = await Promise.all(SIDES.map((side) => (isCalls ? readCall(wanted[side], wanted[`${side}_call`]) : readSession(wanted[side]))));
  place.append(comparison(sides, isCalls), isCalls ? bytes(wanted, visitor) : h("p", { class: "small" }, "With a call number in both, the first bytes that differ are shown."));
  return {};
}

function form(wanted, sessions) {
  const field = (name, label, attributes) => h("p", {}, h("label", { for: `compare-${name}` }, label),
    h("input", { id: `compare-${name}`, name, value: wanted[name], ...attributes }));
  const submit = (event) => {
    event.preventDefault();
    const fields = [...new FormData(event.target)].map(([name, value]) => [name, value.trim()]).filter(([, value]) => value);
    location.hash = `#/compare?${new URLSearchParams(fields)}`;
  };
  return h("form", { class: "block", "aria-label": "What to compare", submit },
    h("datalist", { id: "compare-offered" }, sessions.map((row) => h("option", { value: row.id, label: `${row.title} · ${row.model}` }))), h("div", { class: "fields" },
    field("a", "First session", { required: true, list: "compare-offered" }), field("a_call", "Its call", { type: "number", min: 1 }),
    field("b", "Second session", { required: true, list: "compare-offered" }), field("b_call", "Its call", { type: "number", min: 1 })),
  h("p", { class: "buttons" }, h("button", { type: "submit", "data-does": "compare" }, "Compare")));
}

async function readCall(session, number) {
  const { call } = await get(`/api/sessions/${part(session)}/calls/${part(number)}`);
  const layers = call.layers.map((layer) => [layer.layer, "count", layer.tokens]);
  return {
    link: `#/session/${part(session)}?call=${number}`, label: `${session}, call ${number}`,
    rows: [["Session", "link", session], ["Model", "text", call.model], ["At", "time", call.at], ["Read", "count", call.read_tokens], ["Written", "count", call.written_tokens],
      ["Uncached", "count", call.uncached_tokens], ["Out", "count", call.output_tokens], ["Cost", "cost", call.cost_usd], ["Lost", "dollars", call.lost_usd],
      ["Time", "duration", call.latency_ms], ["First byte", "duration", call.first_byte_ms], ["Outcome", "text", call.outcome], ["Verdict", "verdict", call.verdict], ...layers.map(([name, ...rest]) => [`Layer ${name}`, ...rest])],
  };
}

async function readSession(id) {
  const { sessions } = await get("/api/sessions", { search: id, limit: 500 });
  const row = sessions.find((session) => session.id === id);
  if (!row) throw new Error(`There is no session ${id}, or it is simulated and left out.`);
  return {
    link: `#/session/${part(id)}`, label: row.title,
    rows: [["Session", "link", row.id], ["Model", "text", row.model], ["Client", "text", row.client], ["Started", "time", row.started_at], ["Last activity", "time", row.last_event_at], ["Calls", "count", row.call_count],
      ["Read share", "percent", row.read_share], ["Spent", "cost", row.spent_usd], ["Lost", "dollars", row.lost_usd], ["Lost most by", "verdict", row.verdict]],
  };
}

const FORMATS = { link: String, text: (value) => value ?? "–", time, count, cost, dollars, percent, duration, verdict };
const NUMERIC = ["count", "cost", "dollars", "duration", "percent"];

function comparison([a, b], isCalls) {
  const names = [...new Set([...a.rows, ...b.rows].map(([name]) => name))];
  const rows = names.map((name) => {
    const [left, right] = [a, b].map((side) => side.rows.find((row) => row[0] === name));
    return { name, format: (left ?? right)[1], left: left?.[2] ?? null, right: right?.[2] ?? null };
  });
  const cell = (row, value) => (value === null && row.format !== "cost" ? "–" : FORMATS[row.format](value));
  const difference = (row) => (NUMERIC.includes(row.format) && row.left !== null && row.right !== null && row.left !== row.right
    ? `${row.right > row.left ? "+" : "−"}${FORMATS[row.format](Math.abs(row.right - row.left))}` : "");
  return table({
    name: "comparison", caption: isCalls ? "Two calls" : "Two sessions", rows, attributes: (row) => ({ "data-row": row.name }),
    columns: [
      { heading: "Figure", plain: (row) => row.name, show: (row) => row.name },
      { heading: "First", plain: (row) => row.left, show: (row) => (row.format === "link" ? h("a", { href: a.link, "data-key": "left" }, a.label) : cell(row, row.left)) },
      { heading: "Second", plain: (row) => row.right, show: (row) => (row.format === "link" ? h("a", { href: b.link, "data-key": "right" }, b.label) : cell(row, row.right)) },
      { heading: "Difference", number: true, plain: difference, show: difference },
    ],
  });
}

function bytes(wanted, visitor) {
  const place = h("div", {});
  const path = `/api/sessions/${part(wanted.b)}/calls/${part(wanted.b_call)}/bytes`;
  const isAdmin = visitor.scope === "admin";
  const reveal = button("Show the first bytes that differ", async () => {
    try {
      fill(place, divergence(await get(path, { other_session: wanted.a, other_call: wanted.a_call }), "the first call", ["first", "second"]));
    } catch (error) {
      fill(place, h("p", { role: "alert" }, error.message));
    }
  }, { disabled: !isAdmin, "data-does": "bytes", title: isAdmin ? "This quotes the prompts" : "Needs a key of scope admin" });
  return h("section", { class: "block", "aria-label": "Bytes" }, h("h2", {}, "Bytes"), h("p", {}, reveal), place);
}
