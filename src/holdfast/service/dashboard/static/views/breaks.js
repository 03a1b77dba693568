// The calls with one cause of cache breaks.

import { get, now, part } from "../api.js";
import { fill, h } from "../dom.js";
import { VERDICTS, count, dollars, remedy, time, verdict } from "../format.js";
import { pager, periodName, periodOf, table } from "../table.js";

export const title = "Breaks";

const LIMIT = 50;
const DAY = 86_400_000;

export async function show(place, { query }) {
  const filters = Object.fromEntries(query);
  const [days, skip] = [periodOf(query), Math.max(0, Math.floor(Number(filters.skip)) || 0)];
  const list = h("div", {});
  const refresh = async () => {
    const reply = await get("/analytics/breaks/calls", {
      cause: filters.cause, component: filters.component, limit: LIMIT, skip, from: new Date(now() - days * DAY).toISOString(),
    });
    fill(list, calls(reply.data, filters.cause, days), pager({ skip, limit: LIMIT, more: reply.more, link: (next) => `#/breaks?${new URLSearchParams({ ...filters, skip: next })}` }));
  };
  await refresh();
  place.append(h("h1", {}, filters.cause in VERDICTS ? filters.cause.replaceAll("_", " ") : title, filters.component ? `: ${filters.component}` : ""),
    h("p", {}, VERDICTS[filters.cause] ?? "", " ", h("a", { href: `#/cost?days=${days}` }, "Back to cost")), remedy(filters.cause) ?? "", list);
  return { refresh };
}

const calls = (rows, cause, days) => table({
  name: "broken calls", caption: `Calls of the last ${periodName(days)}, most expensive first`, rows, none: "No such calls in this period.",
  columns: [
    { heading: "Call", plain: (row) => row.number, show: (row) => [h("a", { href: `#/session/${part(row.session)}${row.number ? `?call=${row.number}` : ""}`, "data-key": `${row.session} ${row.number}` }, `${row.title}, call\u00a0${row.number}`), h("div", { class: "small" }, row.model)] },
    { heading: "At", plain: (row) => row.at, show: (row) => time(row.at) },
    ...(cause ? [] : [{ heading: "Cause", plain: (row) => row.cause, show: (row) => verdict(row.cause) }]),
    { heading: "Component", plain: (row) => row.component ?? "", show: (row) => row.component ?? "–" },
    { heading: "Detail", plain: (row) => row.detail, show: (row) => h("span", { class: "small" }, row.detail) },
    { heading: "Lost tokens", number: true, plain: (row) => row.lost_tokens, show: (row) => count(row.lost_tokens) },
    { heading: "Lost", number: true, plain: (row) => row.lost_usd, show: (row) => dollars(row.lost_usd) },
  ],
});
