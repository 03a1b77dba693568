// First page: what was spent, saved and lost lately, what needs attention, and what to do next.

import { get, isSimulatedIncluded, now, part } from "../api.js";
import { empty, fill, h, latest, simulatedHint, tile } from "../dom.js";
import { chartFigure, chartWidth, columns } from "../chart.js";
import { count, cost, costOfPriced, dollars, percent, quoted, time } from "../format.js";
import { money, number, table } from "../table.js";
import { failedCalls } from "./calls.js";

export const title = "Overview";

const ACTIONS_MS = 30_000;
const REFRESH_MS = 30_000;
const LIVE_SHOWN_MAX = 10;

export async function show(place) {
  const body = h("div", {});
  const refresh = latest(() => Promise.all([get("/analytics/overview"), cachedActions()]), ([{ data }, actions]) => fill(body, render(data, actions.data)));
  await refresh();
  place.append(h("h1", {}, "Overview"), body);
  // A session stops being live, a day ends and an alert appears without an event.
  const timer = setInterval(() => refresh().catch(() => null), REFRESH_MS);
  return { refresh, close: () => clearInterval(timer) };
}

let cached = { of: null, at: 0, reply: null };

/** Every event of the sessions that spent most is read for the actions, so a reply is reused for ACTIONS_MS. */
async function cachedActions() {
  const of = isSimulatedIncluded();
  if (cached.of !== of || now() - cached.at > ACTIONS_MS) {
    cached = { of, at: now(), reply: get("/analytics/actions") };
    cached.reply.catch(() => { cached.at = 0; });
  }
  return cached.reply;
}

function render(data, actions) {
  const { today, week } = data;
  if (!week.now.call_count && !week.before.call_count && !data.live.length && !data.warnings.length && !data.budgets.length) {
    return empty("Nothing recorded in the last two weeks", ["Put the gateway in front of an agent (", h("code", {}, "holdfast serve"), ", then ", h("code", {}, "holdfast connect"),
      "), or ", h("a", { href: "#/try" }, "play a sample"), "."], simulatedHint());
  }
  return [
    attention(data),
    h("div", { class: "tiles" },
      compared("Spent today, UTC", today, "spent_usd", "yesterday by this time", "today"),
      compared("Spent in 7 days", week, "spent_usd", "in the 7 days before", "week"),
      compared("Saved in 7 days", week, "saved_usd", "in the 7 days before", "saved", "By caching, against the same calls without a cache"),
      compared("Lost in 7 days", week, "lost_usd", "in the 7 days before", "lost", "What cache misses cost above the price of a cache read"),
      tile("Read share", [percent(week.now.read_share), against(percent(week.before.read_share), "in the 7 days before")], "Share of the prompt tokens of 7 days that were read from the cache", "read-share"),
      tile("Live sessions", count(data.live.length) + (data.live_more ? "+" : ""), "Sessions with an event in the last 5 minutes", "live")),
    nextSteps(actions),
    spending(data.days),
    losses(data.losses),
    data.failures.length ? failedCalls(data.failures, { caption: "Newest calls that failed" }) : null,
    liveTable(data.live, data.live_more),
  ];
}

const against = (text, before) => h("span", { class: "small" }, ` ${text} ${before}`);

function compared(label, period, field, before, name, meaning = "Cost of all calls; no price is known for unpriced ones") {
  const amount = costOfPriced(period.now[field], field === "spent_usd" ? period.now.unpriced_calls : 0, period.now.call_count);
  return tile(label, [amount, against(dollars(period.before[field]), before)], meaning, name);
}

/** The filter of the session list for `key ID` or `client NAME`. */
const readShareFilter = (subject) => ({ [subject.split(" ", 1)[0]]: subject.slice(subject.indexOf(" ") + 1) });

const plural = (value, noun) => `${count(value)} ${noun}${value === 1 ? "" : "s"}`;

const capitalized = (text) => text[0].toUpperCase() + text.slice(1);

/** How to do it; the id of the session that it names is shown as its title, and links to it. */
const howTo = ({ how, session, title: name }) => (session ? how.split(session) : [how]).flatMap((text, index) =>
  [index ? h("a", { href: `#/session/${part(session)}`, "data-key": `action ${session}` }, name) : null, ...quoted(index ? text : capitalized(text))]);

const NAMED_MAX = 3;

/** Links to the sessions of the newest failures, each session once. */
const newestSessions = (failures) => [...new Map(failures.map((row) => [row.session_id, row.title]))].slice(0, NAMED_MAX)
  .flatMap(([id, name], index) => [index ? ", " : "", h("a", { href: `#/session/${part(id)}`, "data-key": `failing ${id}` }, name)]);

/** What is wrong, each with what to do about it. */
function attention(data) {
  const failed = Object.entries(data.failed_calls);
  const rows = [
    ...data.warnings.map((reason) => ["degraded", [reason]]),
    ...data.budgets.map((row) => ["budget", [
      h("a", { href: "#/keys", "data-key": `budget ${row.id}` }, row.name ?? row.id), ` has used ${percent(row.share)} of ${dollars(row.limit_usd)} a ${row.period}; it resets `, time(row.resets_at), "."]]),
    ...data.alerts.filter((alert) => alert.kind === "read_share").map((alert) => ["read-share", [`${capitalized(alert.message)}. `,
      h("a", { href: `#/sessions?${new URLSearchParams({ ...readShareFilter(alert.subject), sort: "lost" })}`, "data-key": `alert ${alert.subject}` }, "Its sessions")]]),
    ...(data.unreadable_calls ? [["unreadable", [`${plural(data.unreadable_calls, "response")} of 7 days could not be read: usage and cost are estimated by size. `,
      h("a", { href: "#/calls?outcome=unreadable", "data-key": "unreadable" }, data.unreadable_calls === 1 ? "Show the call" : "Show the calls")]]] : []),
    ...(data.unpriced_models.length ? [["unpriced", [`No price is known for ${data.unpriced_models.join(", ")}: add it to `, h("code", {}, "[models.\"provider:name\"]"), " in config.toml."]]] : []),
    ...(failed.length ? [["failed", [`${plural(failed.reduce((sum, [, calls]) => sum + calls, 0), "call")} failed: ${failed.map(([kind, calls]) => `${count(calls)} ${kind.replaceAll("_", " ")}`).join(", ")}. The newest of these 7 days: `, ...newestSessions(data.failures), ". ",
      h("a", { href: "#/calls", "data-key": "failed" }, "Show all failed calls")]]] : []),
  ];
  return rows.length ? h("section", { class: "block", "aria-label": "Needs attention" }, h("h2", {}, "Needs attention"),
    h("ul", { class: "plain" }, rows.map(([name, text]) => h("li", { class: "warning", "data-attention": name }, text)))) : null;
}

const nextSteps = ({ actions, session_count: sessions, sessions_left_out: left }) => h("section", { class: "block", "aria-label": "What to do next" },
  h("h2", {}, "What to do next"),
  actions.length
    ? h("ol", { class: "actions" }, actions.map((row) => h("li", {}, h("strong", {}, capitalized(row.action)), ` – saves about ${dollars(row.usd_a_week)} a week. `, howTo(row), ". ",
      h("span", { class: "small" }, `Assumed: ${row.assumption}.`))))
    : h("p", { class: "none" }, "Nothing would save more than 1% of what was spent in the last 7 days."),
  h("p", { class: "small" }, `Estimated from ${count(sessions)} sessions of the last 7 days${left ? `, those that spent most of ${count(sessions + left)}` : ""}. `,
    h("code", {}, "holdfast report --since 7d"), " has all figures behind it."));

function spending(days) {
  const series = [
    { name: "Spent without losses", values: days.map((row) => Math.max(0, row.spent_usd - row.lost_usd)) },
    { name: "Lost to cache misses", values: days.map((row) => Math.min(row.lost_usd, row.spent_usd)) },
  ];
  const slots = days.map((row) => row.day.slice(5));
  return chartFigure({
    name: "spend by day", caption: "Spend by day, UTC", unit: "US dollars a day", slots, series, heading: "Day", format: dollars,
    draw: (options) => columns({ ...options, width: chartWidth() }),
  });
}

const losses = (rows) => table({
  name: "losses", caption: "Lost in 7 days, by cause", rows, none: "No call is known to have lost anything.",
  columns: [
    { heading: "Cause", plain: (row) => row.cause, show: (row) => h("a", { href: `#/breaks?${new URLSearchParams({ cause: row.cause, ...(row.component ? { component: row.component } : {}), days: 7 })}`, "data-key": `loss ${row.cause} ${row.component}` }, row.cause.replaceAll("_", " ")) },
    { heading: "Component", plain: (row) => row.component ?? "", show: (row) => row.component ?? "–" },
    { heading: "What to do", plain: (row) => row.remedy, show: (row) => h("span", { class: "small" }, quoted(row.remedy)) },
    number("Calls with a loss", (row) => row.call_count), money("Lost", (row) => row.lost_usd),
  ],
});

const liveTable = (rows, more) => [table({
  name: "live sessions", caption: "Live sessions", rows: rows.slice(0, LIVE_SHOWN_MAX), none: "No session had an event in the last 5 minutes.",
  columns: [
    { heading: "Session", plain: (row) => row.title, show: (row) => h("a", { href: `#/session/${part(row.id)}`, "data-key": `live ${row.id}` }, row.title) },
    { heading: "Model", plain: (row) => row.model, show: (row) => row.model },
    { heading: "Spent", number: true, plain: (row) => row.spent_usd, show: (row) => cost(row.spent_usd) },
    { heading: "Last activity", plain: (row) => row.last_event_at, show: (row) => time(row.last_event_at) },
  ],
}), rows.length > LIVE_SHOWN_MAX ? h("p", { class: "small under" }, `The newest ${LIVE_SHOWN_MAX} of ${count(rows.length)}${more ? "+" : ""}; `, h("a", { href: "#/sessions", "data-key": "all live" }, "all sessions"), " begin with them.") : null];
