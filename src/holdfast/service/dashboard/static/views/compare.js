// Two calls or two sessions side by side: usage, cost, verdict, and the first bytes that differ.

import { get, part } from "../api.js";
import { button, empty, fill, h } from "../dom.js";
import { cost, count, dollars, duration, modelsOf, percent, time, verdict } from "../format.js";
import { table } from "../table.js";
import { divergence } from "./call.js";

export const title = "Compare";

const SIDES = ["a", "b"];
const OFFERED_MAX = 100;

export async function show(place, { query, visitor }) {
  const wanted = Object.fromEntries(SIDES.flatMap((side) => [side, `${side}_call`]).map((name) => [name, query.get(name) ?? ""]));
  const { sessions } = await get("/api/sessions", { limit: OFFERED_MAX });
  const names = new Map(sessions.map((row) => [row.id, row.title]));
  place.append(h("h1", {}, "Compare"), form(wanted, sessions, names));
  if (!SIDES.every((side) => wanted[side])) {
    place.append(empty("Choose two sessions", ["The fields offer the newest sessions by name; with the number of a call in both, the two calls are compared."]));
    return {};
  }
  const isCalls = SIDES.every((side) => wanted[`${side}_call`]);
  // Both are waited for, so that both are named if neither exists, whichever answer comes first.
  const read = await Promise.allSettled(SIDES.map((side) => (isCalls ? readCall(wanted[side], wanted[`${side}_call`]) : readSession(wanted[side]))));
  const errors = read.filter(({ status }) => status === "rejected").map(({ reason }) => reason);
  if (errors.length) {
    const expired = errors.find(({ status }) => status === 401);
    if (expired) throw expired;
    const messages = new Set(errors.map(({ message }) => message));
    place.append(h("div", { class: "warning", role: "alert" }, [...messages].map((message) => h("p", {}, message))));
    return {};
  }
  const sides = read.map(({ value }) => value);
  // Each title is distinct in a list only, and a program may give both sessions one name.
  if (wanted.a !== wanted.b && sides[0].title === sides[1].title) sides.forEach((side, index) => { side.title += ` · ${wanted[SIDES[index]]}`; });
  SIDES.forEach((side, index) => {
    names.set(wanted[side], sides[index].title);
    place.querySelector(`#compare-${side}`).value = sides[index].title;
  });
  place.append(comparison(sides, isCalls), isCalls ? bytes(wanted, visitor) : h("p", { class: "small", "data-figure": "whole-sessions" }, SIDES.some((side) => wanted[`${side}_call`])
    ? "Only one side has the number of a call, so whole sessions are compared; with a number in both, the two calls are, down to the first bytes that differ."
    : "With the number of a call in both, the two calls are compared, down to the first bytes that differ."));
  return {};
}

/** Sessions are shown and chosen by title; an older one, which is not offered, by its id. */
function form(wanted, sessions, names) {
  const field = (name, label, attributes) => h("p", {}, h("label", { for: `compare-${name}` }, label),
    h("input", { id: `compare-${name}`, name, value: names.get(wanted[name]) ?? wanted[name], ...attributes }));
  const submit = (event) => {
    event.preventDefault();
    const ids = new Map([...names].map(([id, name]) => [name, id]));
    const fields = [...new FormData(event.target)].map(([name, value]) => [name, value.trim()]).filter(([, value]) => value)
      .map(([name, value]) => [name, SIDES.includes(name) ? ids.get(value) ?? value : value]);
    location.hash = `#/compare?${new URLSearchParams(fields)}`;
  };
  return h("form", { class: "block", "aria-label": "What to compare", submit },
    h("datalist", { id: "compare-offered" }, sessions.map((row) => h("option", { value: row.title, label: row.model }))), h("div", { class: "fields pairs" },
    field("a", "First session", { required: true, list: "compare-offered" }), field("a_call", "Its call", { type: "number", min: 1 }),
    field("b", "Second session", { required: true, list: "compare-offered" }), field("b_call", "Its call", { type: "number", min: 1 })),
  h("p", { class: "buttons" }, h("button", { type: "submit", "data-does": "compare" }, "Compare")));
}

async function readCall(session, number) {
  const path = `/api/sessions/${part(session)}/calls`;
  // A session that does not exist has no such call either: its error comes first, whichever answer does.
  const found = get(`${path}/${part(number)}`);
  found.catch(() => null);
  const { title } = await get(path, { limit: 1 });
  const { call } = await found;
  const layers = call.layers.map((layer) => [layer.layer, "tokens", layer.tokens]);
  return {
    link: `#/session/${part(session)}?call=${number}`, title, number,
    rows: [["Session", "link", session], ["Model", "text", call.model], ["At", "time", call.at], ["Read", "tokens", call.read_tokens], ["Written", "tokens", call.written_tokens],
      ["Uncached", "tokens", call.uncached_tokens], ["Out", "tokens", call.output_tokens], ["Cost", "cost", call.cost_usd], ["Lost", "dollars", call.lost_usd],
      ["Time", "duration", call.latency_ms], ["First byte", "duration", call.first_byte_ms], ["Outcome", "text", call.outcome], ["Verdict", "verdict", call.verdict], ...layers.map(([name, ...rest]) => [`Layer ${name}`, ...rest])],
  };
}

async function readSession(id) {
  const { sessions } = await get("/api/sessions", { search: id, limit: 500 });
  const row = sessions.find((session) => session.id === id);
  if (!row) throw new Error(`There is no session ${id}, or it is simulated and left out.`);
  return {
    link: `#/session/${part(id)}`, title: row.title,
    rows: [["Session", "link", row.id], ["Model", "text", modelsOf(row)], ["Client", "text", row.client], ["Started", "time", row.started_at], ["Last activity", "time", row.last_event_at], ["Calls", "count", row.call_count],
      ["Read share", "percent", row.read_share], ["Spent", "cost", row.spent_usd], ["Lost", "dollars", row.lost_usd], ["Lost most by", "verdict", row.verdict]],
  };
}

const FORMATS = { link: String, text: (value) => value ?? "–", time, count, tokens: count, cost, dollars, percent, duration, verdict };
/** How the difference of two values is written; two shares differ by points, not by a percentage. */
const DIFFERENCES = { count, tokens: count, cost, dollars, duration, percent: (share) => `${Math.round(share * 100)} points` };

const labelOf = ({ title, number }) => (number ? `${title}, call ${number}` : title);

function comparison([a, b], isCalls) {
  const names = [...new Set([...a.rows, ...b.rows].map(([name]) => name))];
  const rows = names.map((name) => {
    const [left, right] = [a, b].map((side) => side.rows.find((row) => row[0] === name));
    return { name, format: (left ?? right)[1], left: left?.[2] ?? null, right: right?.[2] ?? null };
  });
  const cell = (row, value) => (value === null && row.format !== "cost" ? "–" : FORMATS[row.format](value));
  const difference = (row) => {
    const format = DIFFERENCES[row.format];
    if (!format || row.left === null || row.right === null || format(row.left) === format(row.right)) return "";
    return `${row.right > row.left ? "+" : "−"}${format(Math.abs(row.right - row.left))}`;
  };
  return table({
    name: "comparison", caption: isCalls ? "Two calls" : "Two sessions", rows, attributes: (row) => ({ "data-row": row.name }),
    columns: [
      { heading: "Figure", plain: (row) => row.name, show: (row) => h("span", { class: "whole" }, row.name, row.format === "tokens" ? h("span", { class: "small" }, ", tokens") : null) },
      { heading: "First", plain: (row) => row.left, show: (row) => (row.format === "link" ? h("a", { href: a.link, "data-key": "left" }, labelOf(a)) : cell(row, row.left)) },
      { heading: "Second", plain: (row) => row.right, show: (row) => (row.format === "link" ? h("a", { href: b.link, "data-key": "right" }, labelOf(b)) : cell(row, row.right)) },
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
