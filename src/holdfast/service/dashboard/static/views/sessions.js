// List of all sessions: search, filters, sorting, pages.

import { get, part } from "../api.js";
import { empty, fill, h } from "../dom.js";
import { VERDICTS, cost, count, dollars, percent, time, verdict } from "../format.js";
import { table } from "../table.js";

export const title = "Sessions";

const LIMIT = 50;
const TEXTS = [["search", "Search", "Part of a name, first words, client, model or id"], ["client", "Client", "Part of the client's name"],
  ["model", "Model", "Part of the model's name"], ["key", "Key", "Id of a gateway key; the field offers those of the sessions below, by name"], ["team", "Team", "Name of the team"]];
const DATES = [["from", "Active since"], ["to", "Started before"]];
const FIELDS = [...TEXTS.map(([name]) => name), "verdict", ...DATES.map(([name]) => name)];

export async function show(place, { query }) {
  const wanted = Object.fromEntries(FIELDS.map((name) => [name, query.get(name) ?? ""]));
  const sort = query.get("sort") ?? "activity";
  const descending = query.get("descending") !== "false";
  const after = query.get("after") ?? "";
  const link = (other) => {
    const fields = Object.entries({ ...wanted, sort, descending, ...other }).filter(([, value]) => value !== "");
    return `#/sessions?${new URLSearchParams(fields)}`;
  };
  const isFiltered = FIELDS.some((name) => wanted[name]);
  const list = h("div", {});
  const refresh = async () => {
    const dates = Object.fromEntries(DATES.map(([name]) => [name, wanted[name] && `${wanted[name]}T00:00:00Z`]));
    const reply = await get("/api/sessions", { ...wanted, ...dates, sort, descending, after, limit: LIMIT });
    fill(list, reply.sessions.length || isFiltered
      ? [h("p", { class: "small", role: "status", "data-figure": "total" }, `${count(reply.total)} ${reply.total === 1 ? "session" : "sessions"}${isFiltered ? " match" : ""}`),
        sessionTable(reply.sessions, { sort, descending, link: (by, down) => link({ sort: by, descending: down }) }), pages(reply, after, link)]
      : empty("No session yet", [h("a", { href: "#/try" }, "Try it"), ", or run an agent: ", h("code", {}, "holdfast demo --keep"), "."]));
    return reply.sessions;
  };
  const listed = await refresh();
  place.append(h("h1", {}, "Sessions"), filters(wanted, isFiltered, link, listed), list);
  return { refresh };
}

/** What the fields offer: the values that the listed sessions have. A key is found by the name that its sessions bear. */
const OFFERED = { client: (row) => [row.client], model: (row) => [row.model], key: (row) => [row.key_id, row.name], team: (row) => [row.team_id] };

const offers = (rows) => Object.entries(OFFERED).map(([name, of]) => h("datalist", { id: `offered-${name}` },
  [...new Map(rows.map(of).filter(([value]) => value))].sort().map(([value, label]) => h("option", { value, label }))));

function filters(wanted, isFiltered, link, rows) {
  const field = (name, label, attributes) => h("p", {}, h("label", { for: `filter-${name}` }, label),
    h("input", { id: `filter-${name}`, name, value: wanted[name], "data-key": `filter ${name}`, ...attributes }));
  const submit = (event) => {
    event.preventDefault();
    location.hash = link(Object.fromEntries([...new FormData(event.target)].map(([name, value]) => [name, value.trim()])));
  };
  return h("form", { class: "block", role: "search", "aria-label": "Filter sessions", submit },
    offers(rows),
    h("div", { class: "fields" },
      TEXTS.map(([name, label, meaning]) => field(name, label, { type: "search", title: meaning, list: name in OFFERED ? `offered-${name}` : null })),
      h("p", {}, h("label", { for: "filter-verdict" }, "Lost by"), h("select", { id: "filter-verdict", name: "verdict", "data-key": "filter verdict" },
        h("option", { value: "" }, "any verdict"), Object.keys(VERDICTS).filter((kind) => kind !== "held").map((kind) => h("option", { value: kind, selected: kind === wanted.verdict }, kind.replaceAll("_", " "))))),
      DATES.map(([name, label]) => field(name, label, { type: "date" }))),
    h("p", { class: "buttons" }, h("button", { type: "submit", "data-does": "filter" }, "Filter"), isFiltered ? h("a", { href: "#/sessions" }, "Show all") : null));
}

const pages = (reply, after, link) => (after || reply.next ? h("nav", { class: "pager", "aria-label": "Pages" },
  after ? h("a", { href: link({ after: "" }), "data-key": "first" }, "← First page") : null,
  reply.next ? h("a", { href: link({ after: reply.next }), "data-key": "next" }, "Next page →") : null) : null);

const sessionTable = (rows, sorting) => table({
  name: "sessions",
  caption: "Sessions",
  rows,
  sorting,
  none: "No session matches.",
  attributes: (row) => ({ "data-session": row.id }),
  columns: [
    { heading: "Session", plain: (row) => row.title, show: (row) => [h("a", { href: `#/session/${part(row.id)}`, "data-key": row.id }, row.title),
      h("div", { class: "small" }, [row.model, row.name && row.client, row.team_id ?? row.user_id, row.simulated ? "simulated" : null].filter(Boolean).join(" · "))] },
    { heading: "Calls", sort: "calls", number: true, plain: (row) => row.call_count, show: (row) => count(row.call_count) },
    { heading: "Read", sort: "read_share", meaning: "Share of the prompt tokens that were read from the cache", number: true, plain: (row) => row.read_share, show: (row) => percent(row.read_share) },
    { heading: "Spent", sort: "spent", meaning: "Cost of all its calls", number: true, plain: (row) => row.spent_usd, show: (row) => cost(row.spent_usd) },
    { heading: "Lost", sort: "lost", meaning: "What cache misses cost above the price of a cache read", number: true, plain: (row) => row.lost_usd, show: (row) => (row.lost_usd ? dollars(row.lost_usd) : "–") },
    { heading: "Lost most by", meaning: "Verdict on the call that lost most", plain: (row) => row.verdict ?? "", show: (row) => verdict(row.verdict) },
    { heading: "Started", sort: "started", plain: (row) => row.started_at, show: (row) => time(row.started_at) },
    { heading: "Last activity", sort: "activity", plain: (row) => row.last_event_at, show: (row) => time(row.last_event_at) },
  ],
});
