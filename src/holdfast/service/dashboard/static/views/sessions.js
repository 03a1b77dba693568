// List of all sessions.

import { get, part } from "../api.js";
import { empty, fill, h } from "../dom.js";
import { cost, count, time } from "../format.js";
import { pager, table } from "../table.js";

export const title = "Sessions";

const LIMIT = 50;

export async function show(place, { query }) {
  const order = query.get("order") === "cost" ? "cost" : "recency";
  const skip = Number(query.get("skip")) || 0;
  const link = (other) => `#/sessions?${new URLSearchParams({ order, skip, ...other })}`;
  const list = h("div", {});
  const refresh = async () => {
    const { data } = await get("/analytics/sessions", { order, skip, limit: LIMIT + 1 });
    fill(list, data.length ? [sessionTable(data.slice(0, LIMIT)), pager({ skip, limit: LIMIT, more: data.length > LIMIT, link: (next) => link({ skip: next }) })]
      : empty("No session yet", [h("a", { href: "#/try" }, "Try it"), ", or run an agent: ", h("code", {}, "holdfast demo --keep"), "."]));
  };
  await refresh();
  place.append(h("h1", {}, "Sessions"),
    h("p", { class: "switch" }, "Order: ", [["recency", "newest first"], ["cost", "most expensive first"]].map(([name, label]) =>
      h("a", { href: link({ order: name, skip: 0 }), "aria-current": name === order ? "true" : null }, label))), list);
  return { refresh };
}

const sessionTable = (rows) => table({
  name: "sessions",
  caption: "Sessions",
  rows,
  columns: [
    { heading: "Session", plain: (row) => row.name ?? row.id, show: (row) => [h("a", { href: `#/session/${part(row.id)}`, "data-key": row.id }, row.name ?? row.id), h("div", { class: "small" }, row.active_model)] },
    { heading: "Turns", number: true, plain: (row) => row.turn_count, show: (row) => count(row.turn_count) },
    { heading: "Cost", meaning: "Cost of all its calls", number: true, plain: (row) => row.cost_usd, show: (row) => cost(row.cost_usd) },
    { heading: "Started", plain: (row) => row.created_at, show: (row) => time(row.created_at) },
    { heading: "Last activity", plain: (row) => row.updated_at, show: (row) => time(row.updated_at) },
  ],
});
