// The calls with one cause of cache breaks.

import { get, now, part } from "../api.js";
import { fill, h } from "../dom.js";
import { VERDICTS, count, dollars, remedy, time } from "../format.js";
import { pager, table } from "../table.js";

export const title = "Breaks";

const LIMIT = 50;
const DAY = 86_400_000;

export async function show(place, { query }) {
  const filters = Object.fromEntries(query);
  const [days, skip] = [Number(filters.days) || 7, Number(filters.skip) || 0];
  const list = h("div", {});
  const refresh = async () => {
    const reply = await get("/analytics/breaks/calls", {
      cause: filters.cause, component: filters.component, limit: LIMIT, skip, from: new Date(now() - days * DAY).toISOString(),
    });
    fill(list, calls(reply.data), pager({ skip, limit: LIMIT, more: reply.more, link: (next) => `#/breaks?${new URLSearchParams({ ...filters, skip: next })}` }));
  };
  await refresh();
  place.append(h("h1", {}, (filters.cause ?? "breaks").replaceAll("_", " "), filters.component ? `: ${filters.component}` : ""),
    h("p", {}, VERDICTS[filters.cause] ?? "", " ", h("a", { href: `#/cost?days=${days}` }, "Back to cost")), remedy(filters.cause) ?? "", list);
  return { refresh };
}

const calls = (rows) => table({
  name: "broken calls", caption: "Calls, most expensive first", rows, none: "No such calls in this period.",
  columns: [
    { heading: "Call", plain: (row) => row.number, show: (row) => [h("a", { href: `#/session/${part(row.session)}${row.number ? `?call=${row.number}` : ""}`, "data-key": `${row.session} ${row.number}` }, `${row.name ?? row.session}, call ${row.number}`), row.name ? h("div", { class: "small whole" }, row.session) : null] },
    { heading: "At", plain: (row) => row.at, show: (row) => time(row.at) },
    { heading: "Component", plain: (row) => row.component ?? "", show: (row) => row.component ?? "–" },
    { heading: "Detail", plain: (row) => row.detail, show: (row) => h("span", { class: "small" }, row.detail) },
    { heading: "Lost tokens", number: true, plain: (row) => row.lost_tokens, show: (row) => count(row.lost_tokens) },
    { heading: "Lost", number: true, plain: (row) => row.lost_usd, show: (row) => dollars(row.lost_usd) },
  ],
});
