// List of all sessions: search, filters, sorting, pages.

import { get, part } from "../api.js";
import { empty, fill, h, simulatedHint } from "../dom.js";
import { NO_BREAKS, VERDICTS, cost, count, dollars, modelsOf, percent, time, verdict } from "../format.js";
import { table, toTop } from "../table.js";

export const title = "Sessions";

const LIMIT = 50;
const TEXT_CHARACTERS_MAX = 200;
const TEXTS = [["search", "Search", "Part of a name, first words, client, model or id"], ["client", "Client", "Part of the client's name"],
  ["model", "Model", "Part of the model's name"], ["key", "Key", "Name or id of a gateway key; the field offers those of the sessions below"], ["team", "Team", "Name of the team"]];
const DATES = [["from", "Active since"], ["to", "Started before"]];
/** Orders that are offered beside the columns' headings, which a narrow screen does not show. */
const ORDERS = [["activity true", "Newest activity"], ["started true", "Newest start"], ["lost true", "Most lost"], ["spent true", "Most spent"], ["read_share false", "Lowest read share"], ["calls true", "Most calls"]];
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
    const dates = Object.fromEntries(DATES.map(([name]) => [name, midnightOf(wanted[name])]));
    const reply = await get("/api/sessions", { ...wanted, ...dates, sort, descending, after, limit: LIMIT }).catch((error) => {
      if (error.status !== 400) throw error;
      // What is wrong is in the address: the form has to stay, because trying again would be refused again.
      fill(list, h("p", { class: "warning", role: "alert" }, error.message, ". ", h("a", { href: "#/sessions" }, "Show all sessions")));
      return null;
    });
    if (!reply) return [];
    fill(list, reply.sessions.length || isFiltered
      ? [h("p", { class: "small", role: "status", "data-figure": "total" }, `${count(reply.total)} ${reply.total === 1 ? "session" : "sessions"}${isFiltered ? " match" : ""}`),
        sessionTable(reply.sessions, { sort, descending, link: (by, down) => link({ sort: by, descending: down }) }), pages(reply, after, link)]
      : empty("No session yet", [h("a", { href: "#/try" }, "Try it"), ", or run an agent: ", h("code", {}, "holdfast demo --keep"), "."], simulatedHint()));
    return reply.sessions;
  };
  const listed = await refresh();
  place.append(h("h1", {}, "Sessions"), filters({ wanted, isFiltered, link, order: `${sort} ${descending}` }, listed), list);
  return { refresh };
}

/** When a day begins where the user is, because the times of the list are shown in that time zone; what is no day is refused by the service. */
function midnightOf(day) {
  const at = new Date(`${day}T00:00`);
  return Number.isNaN(at.getTime()) ? day : at.toISOString();
}

/** What the fields offer: the values that the listed sessions have. A key is found by the name that its sessions bear. */
const OFFERED = { client: (row) => [row.client], model: (row) => [row.model], key: (row) => [row.key_id, row.name], team: (row) => [row.team_id] };

const offers = (rows) => Object.entries(OFFERED).map(([name, of]) => h("datalist", { id: `offered-${name}` },
  [...new Map(rows.map(of).filter(([value]) => value))].sort().map(([value, label]) => h("option", { value, label }))));

function filters({ wanted, isFiltered, link, order }, rows) {
  const field = (name, label, attributes) => h("p", {}, h("label", { for: `filter-${name}` }, label),
    h("input", { id: `filter-${name}`, name, value: wanted[name], "data-key": `filter ${name}`, ...attributes }));
  const submit = (event) => {
    event.preventDefault();
    const { order: chosen, ...fields } = Object.fromEntries([...new FormData(event.target)].map(([name, value]) => [name, value.trim()]));
    location.hash = link({ ...fields, ...sortedBy(chosen) });
  };
  const [first, ...others] = TEXTS.map(([name, label, meaning]) => field(name, label, { type: "search", maxlength: TEXT_CHARACTERS_MAX, title: meaning, list: name in OFFERED ? `offered-${name}` : null }));
  const orders = ORDERS.some(([value]) => value === order) ? ORDERS : [...ORDERS, [order, "As the column says"]];
  return h("form", { class: "block", role: "search", "aria-label": "Filter sessions", submit },
    offers(rows),
    h("div", { class: "fields" }, first, h("p", {}, h("label", { for: "filter-order" }, "Order"), h("select", { id: "filter-order", name: "order", "data-key": "filter order", change: (event) => event.target.form.requestSubmit() },
      orders.map(([value, label]) => h("option", { value, selected: value === order }, label))))),
    h("details", { class: "filters", "aria-label": "More filters", open: isFiltered || !matchMedia("(max-width: 640px)").matches }, h("summary", { "data-key": "filters" }, "Filters"), h("div", { class: "fields" }, others,
      h("p", {}, h("label", { for: "filter-verdict" }, "Lost by"), h("select", { id: "filter-verdict", name: "verdict", "data-key": "filter verdict" },
        h("option", { value: "" }, "any verdict"), Object.keys(VERDICTS).filter((kind) => !NO_BREAKS.includes(kind)).map((kind) => h("option", { value: kind, selected: kind === wanted.verdict }, kind.replaceAll("_", " "))))),
      DATES.map(([name, label]) => field(name, label, { type: "date", value: /^\d{4}-\d\d-\d\d$/.test(wanted[name]) ? wanted[name] : null })))),
    h("p", { class: "buttons" }, h("button", { type: "submit", "data-does": "filter" }, "Filter"), isFiltered ? h("a", { href: "#/sessions" }, "Show all") : null));
}

const sortedBy = (order) => ({ sort: order.split(" ")[0], descending: order.endsWith("true"), after: "" });

const pages = (reply, after, link) => (after || reply.next ? h("nav", { class: "pager", "aria-label": "Pages" },
  after ? h("a", { href: link({ after: "" }), "data-key": "first", click: toTop }, "← First page") : null,
  reply.next ? h("a", { href: link({ after: reply.next }), "data-key": "next", click: toTop }, "Next page →") : null) : null);

const sessionTable = (rows, sorting) => table({
  name: "sessions",
  caption: "Sessions",
  rows,
  sorting,
  none: "No session matches.",
  attributes: (row) => ({ "data-session": row.id }),
  columns: [
    { heading: "Session", plain: (row) => row.title, show: (row) => [h("a", { href: `#/session/${part(row.id)}`, "data-key": row.id }, row.title),
      h("div", { class: "small" }, [modelsOf(row), row.team_id ?? row.user_id, row.simulated ? "simulated" : null].filter(Boolean).join(" · "))] },
    { heading: "Calls", sort: "calls", number: true, plain: (row) => row.call_count, show: (row) => count(row.call_count) },
    { heading: "Read", sort: "read_share", meaning: "Share of the prompt tokens that were read from the cache", number: true, plain: (row) => row.read_share, show: (row) => percent(row.read_share) },
    { heading: "Spent", sort: "spent", meaning: "Cost of all its calls", number: true, plain: (row) => row.spent_usd, show: (row) => [cost(row.spent_usd), row.spent_usd !== null && row.unpriced_calls ? h("div", { class: "small" }, `+ ${count(row.unpriced_calls)} unpriced`) : null] },
    { heading: "Lost", sort: "lost", meaning: "What cache misses cost above the price of a cache read", number: true, plain: (row) => row.lost_usd, show: (row) => (row.lost_usd ? dollars(row.lost_usd) : "–") },
    { heading: "Lost most by", meaning: "Verdict on the call that lost most", plain: (row) => row.verdict ?? "", show: (row) => verdict(row.verdict) },
    { heading: "Started", sort: "started", plain: (row) => row.started_at, show: (row) => time(row.started_at) },
    { heading: "Last activity", sort: "activity", plain: (row) => row.last_event_at, show: (row) => time(row.last_event_at) },
  ],
});
