// What was spent, saved and lost.

import { get, now, part } from "../api.js";
import { button, empty, fill, h, tile } from "../dom.js";
import { chartWidth, columns, seriesLegend } from "../chart.js";
import { svgButton } from "../exporting.js";
import { VERDICTS, count, dollars, percent, verdict } from "../format.js";
import { money, number, table } from "../table.js";

export const title = "Cost";

const WINDOWS = [[1, "24 hours"], [7, "7 days"], [30, "30 days"], [365, "a year"]];
const MODELS_MAX = 5;
const SESSIONS_MAX = 20;
const HOUR = 3_600_000;
const REGRET_MS = 5000;

export async function show(place, { query }) {
  const days = WINDOWS.some(([value]) => String(value) === query.get("days")) ? Number(query.get("days")) : 7;
  const body = h("div", {});
  const rivals = h("div", {});
  const within = () => ({ from: new Date(now() - days * 24 * HOUR).toISOString() });
  const refresh = async () => fill(body, await drawn(days, within(), regretOf(days)));
  await refresh();
  const play = button("Play the rivals", async () => {
    fill(rivals, h("p", { class: "wait" }, "Playing your newest sessions again under the plans of others …"));
    try {
      fill(rivals, rivalsTable((await get("/analytics/savings", { ...within(), rivals: true })).data.rivals));
    } catch (error) {
      fill(rivals, h("p", { role: "alert" }, error.message));
    }
  }, { "data-does": "rivals", title: "Plays the newest sessions again; takes some seconds" });
  place.append(h("h1", {}, "Cost"), h("p", { class: "switch" }, "Last ", WINDOWS.map(([value, label]) =>
    h("a", { href: `#/cost?days=${value}`, "aria-current": value === days ? "true" : null }, label))),
  body, h("section", { class: "block", "aria-label": "Against rivals" }, h("h2", {}, "Against rivals"),
    h("p", { class: "small" }, "What the same prompts would have cost under the placement rules of other tools."), h("p", {}, play), rivals));
  return { refresh };
}

let known = { days: null, at: 0, told: null };

/** Looking for the optimum takes a while: what was found some seconds ago is good enough. */
const regretOf = (days) => async (within) => {
  if (known.days !== days || now() - known.at > REGRET_MS) {
    known = { days, at: now(), told: get("/analytics/regret", within) };
    known.told.catch(() => { known.at = 0; });
  }
  return known.told;
};

async function drawn(days, within, regretWithin) {
  const slot = days <= 7 ? "hour" : "day";
  const [savings, models, sessions, regret, breaks] = await Promise.all([
    get("/analytics/savings", within),
    get("/analytics/cost", { ...within, group_by: "model" }),
    get("/analytics/sessions", { order: "cost", limit: SESSIONS_MAX }),
    regretWithin(within),
    get("/analytics/breaks", within),
  ]);
  if (!models.data.length) return empty("Nothing was spent", ["No call was paid for in this time. Choose a longer one, or ", h("a", { href: "#/try" }, "play a sample"), "."]);
  const top = models.data.slice(0, MODELS_MAX).map((row) => row.model);
  const byTime = await Promise.all(top.map((model) => get("/analytics/cost", { ...within, group_by: slot, model })));
  return [tiles(savings.data, regret.data), spending(slot, top, byTime.map((told) => told.data)), modelTable(models.data),
    sessionTable(sessions.data), breakTable(breaks.data, days), regretTable(regret.data, new Map(sessions.data.map((row) => [row.id, row.name])))];
}

function tiles(savings, regret) {
  const saved = savings.uncached_usd ? savings.saved_by_caching_usd / savings.uncached_usd : null;
  return h("div", { class: "tiles" },
    tile("Spent", dollars(savings.actual_stamped_usd), "What all calls in this time were paid with", "spent"),
    tile("Without a cache", dollars(savings.uncached_usd), "What the same calls would have cost", "uncached"),
    tile("Saved", `${dollars(savings.saved_by_caching_usd)} (${percent(saved)})`, "Against the same calls without a cache", "saved"),
    tile("Regret", dollars(regret.regret_usd), "What was spent above the least that any plan could have cost, knowing what came", "regret"));
}

function spending(slot, models, told) {
  const names = [...new Set(told.flatMap((rows) => rows.map((row) => row[slot])))].sort();
  const slots = slot === "hour" ? every(names) : names;
  const series = models.map((name, index) => {
    const known = new Map(told[index].map((row) => [row[slot], row.cost_usd]));
    return { name, values: slots.map((one) => known.get(one) ?? 0) };
  });
  const chart = columns({ slots: slots.map((one) => shown(slot, one)), series, width: chartWidth(), label: `Spend by ${slot} and model; the tables below tell the numbers` });
  return h("section", { class: "block", "aria-label": "Spend over time" },
    h("div", { class: "bar" }, h("h2", {}, "Spend over time"), svgButton("spend", () => chart)),
    h("div", { class: "scroll chart", tabindex: 0, role: "group", "aria-label": "Spend over time" }, chart), seriesLegend(series));
}

/** All hours from the first to the last. */
function every(names) {
  if (!names.length) return [];
  const [first, last] = [names[0], names.at(-1)].map((name) => Date.parse(`${name}:00:00Z`));
  return Array.from({ length: Math.round((last - first) / HOUR) + 1 }, (_, index) => new Date(first + index * HOUR).toISOString().slice(0, 13));
}

const shown = (slot, name) => (slot === "hour"
  ? new Date(`${name}:00:00Z`).toLocaleString(undefined, { weekday: "short", hour: "2-digit", minute: "2-digit" }) : name);

const modelTable = (rows) => table({
  name: "models", caption: "By model", rows,
  columns: [
    { heading: "Model", plain: (row) => row.model, show: (row) => row.model },
    money("Cost", (row) => row.cost_usd), number("Calls", (row) => row.call_count),
    number("Read", (row) => row.cached_input_tokens, "Tokens read from the cache"),
    number("Written", (row) => row.cache_creation_input_tokens, "Tokens written to the cache"),
    number("Uncached", (row) => row.input_tokens, "Tokens neither read nor written"),
    number("Out", (row) => row.output_tokens, "Tokens that were answered"),
  ],
});

const sessionTable = (rows) => table({
  name: "sessions by cost", caption: "By session, dearest first", rows,
  columns: [
    { heading: "Session", plain: (row) => row.name ?? row.id, show: (row) => h("a", { href: `#/session/${part(row.id)}`, "data-key": row.id }, row.name ?? row.id) },
    { heading: "Model", plain: (row) => row.active_model, show: (row) => row.active_model },
    money("Cost", (row) => row.cost_usd), number("Turns", (row) => row.turn_count),
  ],
});

const breakTable = (rows, days) => table({
  name: "breaks", caption: "Breaks by cause, worst first", rows, none: "Every cache held.",
  columns: [
    { heading: "Cause", plain: (row) => row.cause, show: (row) => verdict(row.cause) },
    { heading: "At fault", plain: (row) => row.component ?? "", show: (row) => row.component ?? "–" },
    { heading: "Meaning", show: (row) => h("span", { class: "small" }, VERDICTS[row.cause] ?? "") },
    { heading: "Calls", number: true, plain: (row) => row.call_count,
      show: (row) => h("a", { href: breakLink(row, days), "data-key": `${row.cause} ${row.component}`, "aria-label": `${row.call_count} calls: ${row.cause}` }, count(row.call_count)) },
    number("Lost tokens", (row) => row.lost_tokens, "Tokens that could have been read, and were not"),
    money("Lost", (row) => row.lost_usd, "What they cost above reading them"),
  ],
});

const breakLink = (row, days) =>
  `#/breaks?${new URLSearchParams({ cause: row.cause, ...(row.component ? { component: row.component } : {}), days })}`;

const regretTable = (regret, names) => table({
  name: "regret", caption: "Regret by session", rows: regret.sessions ?? [], none: "No session could be compared with its optimum.",
  columns: [
    { heading: "Session", plain: (row) => row.session, show: (row) => h("a", { href: `#/session/${part(row.session)}`, "data-key": `regret ${row.session}` }, names.get(row.session) ?? row.session) },
    money("Spent", (row) => row.spent_usd), money("Optimum", (row) => row.optimum_usd, "The least that any plan could have cost"),
    money("Regret", (row) => row.regret_usd, "Spent above the optimum"),
  ],
});

const rivalsTable = (rivals) => (rivals?.policies.length ? table({
  name: "rivals", caption: `${rivals.sessions} sessions under each policy`, rows: rivals.policies,
  columns: [
    { heading: "Policy", plain: (row) => row.policy, show: (row) => row.policy },
    money("Cost", (row) => row.cost_usd, "Prompts only, at the prices of today"),
    { heading: "Read", number: true, plain: (row) => row.read_share, show: (row) => percent(row.read_share) },
  ],
}) : empty("Nothing to play", ["No session of this time takes marks."]));
