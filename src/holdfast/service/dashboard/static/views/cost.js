// Spending, savings, cache breaks and regret.

import { get, isSimulatedIncluded, now, part } from "../api.js";
import { button, empty, fill, h, simulatedHint, tile } from "../dom.js";
import { chartFigure, chartWidth, columns } from "../chart.js";
import { VERDICTS, costOfPriced, count, dollars, modelsOf, percent, verdict } from "../format.js";
import { money, number, periodOf, periodSwitch, share, spent, table } from "../table.js";
import { unreadableNote } from "./caching.js";

export const title = "Cost";

const MODELS_MAX = 5;
const SESSIONS_MAX = 20;
const HOUR = 3_600_000;
const REGRET_MS = 5000;

export async function show(place, { query }) {
  const days = periodOf(query);
  const body = h("div", {});
  const rivals = h("div", {});
  const within = () => ({ from: new Date(now() - days * 24 * HOUR).toISOString() });
  const refresh = async () => fill(body, await Promise.all([unreadableNote(), render(days, within(), cachedRegret(days))]));
  await refresh();
  const play = button("Compare with other policies", async () => {
    fill(rivals, h("p", { class: "wait" }, "Replaying your newest sessions under other caching policies …"));
    try {
      fill(rivals, rivalsTable((await get("/analytics/savings", { ...within(), rivals: true })).data.rivals));
    } catch (error) {
      fill(rivals, h("p", { role: "alert" }, error.message));
    }
  }, { "data-does": "rivals", title: "Replays the newest sessions; takes a few seconds" });
  place.append(h("h1", {}, "Cost"), periodSwitch(days, (value) => `#/cost?days=${value}`),
  body, h("section", { class: "block", "aria-label": "Other policies" }, h("h2", {}, "Other policies"),
    h("p", { class: "small" }, "What the same prompts would have cost under the breakpoint rules of other tools."), h("p", {}, play), rivals));
  return { refresh };
}

let cached = { of: null, at: 0, reply: null };

/** Computing the optimum is slow, so a reply is reused for REGRET_MS. */
const cachedRegret = (days) => async (within) => {
  const of = `${days} ${isSimulatedIncluded()}`;
  if (cached.of !== of || now() - cached.at > REGRET_MS) {
    cached = { of, at: now(), reply: get("/analytics/regret", within) };
    cached.reply.catch(() => { cached.at = 0; });
  }
  return cached.reply;
};

async function render(days, within, regretWithin) {
  const slot = days <= 7 ? "hour" : "day";
  const [savings, models, sessions, regret, breaks] = await Promise.all([
    get("/analytics/savings", within),
    get("/analytics/cost", { ...within, group_by: "model" }),
    get("/api/sessions", { ...within, sort: "spent", limit: SESSIONS_MAX }),
    regretWithin(within),
    get("/analytics/breaks", within),
  ]);
  if (!models.data.length) return empty("No spending", ["There are no billed calls in this period. Choose a longer one, or ", h("a", { href: "#/try" }, "play a sample"), "."], simulatedHint());
  const top = models.data.slice(0, MODELS_MAX).map((row) => row.model);
  const others = models.data.length - top.length;
  const byTime = await Promise.all([...top, ...(others ? [null] : [])].map((model) => get("/analytics/cost", { ...within, group_by: slot, model })));
  return [tiles(savings.data, regret.data), spending(slot, top, byTime.map((reply) => reply.data), others), modelTable(models.data),
    sessionTable(sessions.sessions), breakTable(breaks.data, days), regretTable(regret.data)];
}

function tiles(savings, regret) {
  const saved = savings.uncached_usd ? savings.saved_by_caching_usd / savings.uncached_usd : null;
  return h("div", { class: "tiles" },
    tile("Spent", costOfPriced(savings.actual_stamped_usd, savings.unpriced_calls, savings.rows_total), "Cost of all calls in this period; no price is known for unpriced ones", "spent"),
    tile("Without a cache", dollars(savings.uncached_usd), "What the same calls would have cost", "uncached"),
    tile("Saved", `${dollars(savings.saved_by_caching_usd)} (${percent(saved)})`, "Against the same calls without a cache", "saved"),
    tile("Regret", dollars(regret.regret_usd), "Cost above the optimum: the cheapest plan that knows all later calls", "regret"));
}

/** `rowsByModel` has the rows of each of the models and, if there are `others`, those of all models behind them. */
function spending(slot, models, rowsByModel, others) {
  const slots = allSlots(slot, rowsByModel.flatMap((rows) => rows.map((row) => row[slot])).sort()[0]);
  const all = rowsByModel.map((rows) => {
    const costs = new Map(rows.map((row) => [row[slot], row.cost_usd]));
    return slots.map((name) => costs.get(name) ?? 0);
  });
  const series = models.map((name, index) => ({ name, values: all[index] }));
  if (others) {
    const rest = slots.map((_, index) => all.at(-1)[index] - series.reduce((sum, { values }) => sum + values[index], 0));
    // What rounding leaves is no spending.
    series.push({ name: `${count(others)} other ${others === 1 ? "model" : "models"}`, values: rest.map((amount) => (amount < 1e-9 ? 0 : amount)) });
  }
  return chartFigure({
    name: "spend", caption: "Spend over time", unit: slot === "hour" ? "US dollars by hour and model" : "US dollars by day (UTC) and model", heading: slot === "hour" ? "Hour" : "Day", format: dollars,
    slots: slots.map((name) => slotLabel(slot, name)), series, draw: (options) => columns({ ...options, width: chartWidth() }),
  });
}

/** All hours or days from that of the first call until now, and at least a day or a week; those without calls too. */
function allSlots(slot, first) {
  const [size, least, characters] = slot === "hour" ? [HOUR, 24, 13] : [24 * HOUR, 7, 10];
  const last = Math.floor(now() / size);
  const start = Math.min(last - least + 1, first === undefined ? last : Date.parse(slot === "hour" ? `${first}:00:00Z` : `${first}T00:00:00Z`) / size);
  return Array.from({ length: last - start + 1 }, (_, index) => new Date((start + index) * size).toISOString().slice(0, characters));
}

const slotLabel = (slot, name) => (slot === "hour"
  ? new Date(`${name}:00:00Z`).toLocaleString(undefined, { weekday: "short", hour: "2-digit", minute: "2-digit" }) : name);

const modelTable = (rows) => table({
  name: "models", caption: "By model", rows,
  columns: [
    { heading: "Model", plain: (row) => row.model, show: (row) => row.model },
    spent("Cost", (row) => row.cost_usd), number("Calls", (row) => row.call_count),
    number("Read", (row) => row.cached_input_tokens, "Tokens read from the cache"),
    number("Written", (row) => row.cache_creation_input_tokens, "Tokens written to the cache"),
    number("Uncached", (row) => row.input_tokens, "Tokens neither read nor written"),
    number("Out", (row) => row.output_tokens, "Output tokens"),
  ],
});

const sessionTable = (rows) => table({
  name: "sessions by cost", caption: "By session, most expensive first", rows,
  columns: [
    { heading: "Session", plain: (row) => row.title, show: (row) => h("a", { href: `#/session/${part(row.id)}`, "data-key": row.id }, row.title) },
    { heading: "Model", plain: modelsOf, show: modelsOf },
    number("Calls", (row) => row.call_count), share("Read", (row) => row.read_share, "Share of the prompt tokens that were read from the cache"),
    money("Lost", (row) => row.lost_usd, "What cache misses cost above the price of a cache read"), spent("Cost", (row) => row.spent_usd, "Of all its calls, earlier ones too"),
  ],
});

const breakTable = (rows, days) => table({
  name: "breaks", caption: "Breaks by cause, worst first", rows, none: "No cache breaks.",
  columns: [
    { heading: "Cause", plain: (row) => row.cause, show: (row) => verdict(row.cause) },
    { heading: "Component", plain: (row) => row.component ?? "", show: (row) => row.component ?? "–" },
    { heading: "Meaning", show: (row) => h("span", { class: "small" }, VERDICTS[row.cause] ?? "") },
    { heading: "Calls", number: true, plain: (row) => row.call_count,
      show: (row) => h("a", { href: breakLink(row, days), "data-key": `${row.cause} ${row.component}`, "aria-label": `${row.call_count} calls: ${row.cause}` }, count(row.call_count)) },
    number("Calls with a loss", (row) => row.losing_calls, "The others lost nothing, as there was nothing to read"),
    number("Lost tokens", (row) => row.lost_tokens, "Tokens that could have been read from the cache but were not"),
    money("Lost", (row) => row.lost_usd, "Their cost above the cache read price"),
  ],
});

const breakLink = (row, days) =>
  `#/breaks?${new URLSearchParams({ cause: row.cause, ...(row.component ? { component: row.component } : {}), days })}`;

const regretTable = (regret) => table({
  name: "regret", caption: "Regret by session, most expensive first", rows: (regret.sessions ?? []).slice(0, SESSIONS_MAX), none: "No session could be compared with its optimum.",
  columns: [
    { heading: "Session", plain: (row) => row.title, show: (row) => h("a", { href: `#/session/${part(row.session)}`, "data-key": `regret ${row.session}` }, row.title) },
    money("Spent", (row) => row.spent_usd), money("Optimum", (row) => row.optimum_usd, "Minimum cost of any caching plan"),
    money("Regret", (row) => row.regret_usd, "Cost above the optimum"),
  ],
});

const OURS = "holdfast";

/** Why most figures may be equal: then the sample says little about the policies. */
function noDifference(policies) {
  const ours = policies.find((row) => row.policy === OURS);
  const others = policies.filter((row) => row.policy !== OURS);
  const same = others.filter((row) => Math.abs(row.cost_usd - ours.cost_usd) <= 0.01 * ours.cost_usd);
  if (2 * same.length < others.length) return null;
  const reason = policies.every((row) => !row.read_share) ? "no prompt of these sessions is long enough to be cached."
    : "policies differ in pauses longer than the TTL, in long histories and in prompts with parts that change, and these sessions have few of those.";
  return h("p", { class: "small", "data-figure": "no-difference" }, `${count(same.length)} of ${count(others.length)} other policies cost the same as ours, within 1%: ${reason}`);
}

const rivalsTable = (rivals) => (rivals?.policies.length ? [noDifference(rivals.policies), table({
  name: "rivals", caption: `${rivals.sessions} sessions under each policy`, rows: rivals.policies, attributes: (row) => ({ class: row.policy === OURS ? "ours" : null }),
  columns: [
    { heading: "Policy", plain: (row) => row.policy, show: (row) => row.policy },
    money("Cost", (row) => row.cost_usd, "Prompts only, at today's prices"),
    { heading: "Read", number: true, plain: (row) => row.read_share, show: (row) => percent(row.read_share) },
  ],
})] : empty("Nothing to replay", ["A policy is replayed on the text of prompts. No session in this period has its text stored: a gateway keeps digests only, and some sessions use models without breakpoints. ",
  h("code", {}, "holdfast audit --rivals"), " replays the transcripts that clients keep themselves."]));
