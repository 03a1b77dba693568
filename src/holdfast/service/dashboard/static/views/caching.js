// What is cached now: by provider, by session, and what is set for all.

import { get, now, part, post } from "../api.js";
import { button, empty, fill, h, meant, notice } from "../dom.js";
import { count, countdown, percent, provider, time, verdict } from "../format.js";
import { pager, table } from "../table.js";
import { settings } from "./settings.js";

export const title = "Caching";

const LIMIT = 25;

export async function show(place, { query, visitor }) {
  const skip = Number(query.get("skip")) || 0;
  const may = visitor.scope === "admin";
  const summaries = h("div", {});
  const sessions = h("div", {});
  const change = async (session, what) => {
    try {
      const told = await post(`/api/cache/${part(session.discussion_id)}/${what}`);
      notice(what === "invalidate" ? `Invalidated: ${told.effect}.` : `Caching is ${told.caching_enabled ? "on" : "off"} from the next call on.`);
    } catch (error) {
      notice(error.message, "bad");
    }
    await refresh();
  };
  const refresh = async () => {
    const told = await get("/api/cache", { limit: LIMIT, skip });
    fill(summaries, providers(told.providers));
    fill(sessions, told.discussions.length || skip
      ? [discussions(told.discussions, change, may), pager({ skip, limit: LIMIT, more: told.more, link: (next) => `#/caching?skip=${next}` })]
      : nothing(visitor));
    tick(place);
  };
  await refresh();
  place.append(h("h1", {}, "Caching"), summaries, sessions, await settings(may));
  const timer = setInterval(() => tick(place), 1000);
  return { refresh, close: () => clearInterval(timer) };
}

const nothing = (visitor) => empty("No session yet",
  visitor.sample === "off"
    ? ["Sessions come here as soon as an agent speaks: run ", h("code", {}, "holdfast demo --keep"), " or start with ", h("code", {}, "holdfast serve --simulate"), "."]
    : [h("a", { href: "#/try" }, "Try it"), " plays a sample of good and bad habits."]);

function providers(some) {
  return h("section", { class: "block", "aria-label": "Provider summaries" },
    h("h2", {}, "Provider summaries"),
    some.length ? h("ul", { class: "cards" }, some.map(summary)) : h("p", { class: "none" }, "No provider was asked yet."));
}

function summary(one) {
  const managed = one.ttl_seconds === null;
  return h("li", { class: "card", "data-provider": one.provider },
    h("h3", {}, provider(one.provider)),
    h("p", { class: "figures" },
      figure("in", count(one.tokens_in), "Tokens that were sent in all prompts"),
      figure("cache", count(one.tokens_cached), "Tokens of those that were read from the provider's cache"),
      figure("hit", percent(one.hit_share), "Hit rate: the share of all tokens that was read from the cache"),
      figure("calls hit", percent(one.hit_coverage), "Hit coverage: the share of calls that read anything at all"),
      figure("ttl", managed ? "n/a" : left(one.ttl_seconds), "Time left of the entry that lapses last")),
    managed ? h("p", { class: "small" }, `Cached by ${provider(one.provider)}; TTL: provider-managed.`) : null);
}

const figure = (label, value, meaning) =>
  meant([h("span", { class: "label" }, `${label}:`), " ", h("strong", {}, value)], meaning, { class: "figure" });

/** Counts down from now on. */
const left = (seconds) => h("span", { "data-until": now() + seconds * 1000 }, countdown(seconds));

function discussions(rows, change, may) {
  return table({
    name: "sessions",
    caption: "Active discussions",
    rows,
    attributes: (row) => ({ "data-session": row.discussion_id }),
    columns: [
      { heading: "Session", meaning: "A discussion is a session", plain: (row) => row.name ?? row.discussion_id,
        show: (row) => [h("a", { href: `#/session/${part(row.discussion_id)}`, "data-key": `open ${row.discussion_id}` }, row.name ?? row.discussion_id), h("div", { class: "small" }, row.model)] },
      { heading: "Cached", meaning: "Whether the provider keeps something of it now", plain: (row) => (row.cached ? "yes" : "no"),
        show: (row) => (row.cached ? `yes (${provider(row.provider)})` : row.caching_enabled ? "no" : "no, turned off") },
      { heading: "Expires", meaning: "When what is kept lapses; each use moves it on", plain: (row) => row.expires_at ?? "", show: expires },
      { heading: "Tokens cached", meaning: "What the next call can read", number: true, plain: (row) => row.tokens_cached, show: (row) => count(row.tokens_cached) },
      { heading: "Calls hit", meaning: "Calls that read anything, of all", number: true, plain: (row) => row.hit_count, show: (row) => `${count(row.hit_count)} of ${count(row.calls)}` },
      { heading: "Last verdict", meaning: "Whether the cache held at the last call", plain: (row) => row.verdict ?? "", show: (row) => verdict(row.verdict, row.verdict_detail) },
      { heading: "Control", meaning: "Holds from the session's next call on", show: (row) => controls(row, change, may) },
    ],
  });
}

function expires(row) {
  if (!row.cached) return "–";
  if (!row.expires_at) return meant("provider-managed", "The provider does not say how long it keeps what");
  return [time(row.expires_at), " ", h("span", { class: "left" }, "(in ", left((Date.parse(row.expires_at) - now()) / 1000), ")")];
}

function controls(row, change, may) {
  const heeded = (what) => row.heeds === "all" || (row.heeds === "switch" && what !== "invalidate");
  const of = (label, what, meaning) => button(label, () => change(row, what), {
    title: !heeded(what) ? "The client of this session does not heed this" : may ? meaning : "Needs a key of scope admin",
    "data-key": `${what} ${row.discussion_id}`, "data-does": what, disabled: !may || !heeded(what),
    "aria-label": `${label}: ${row.name ?? row.discussion_id}`,
  });
  return h("div", { class: "buttons" }, row.caching_enabled
    ? [of("Invalidate cache", "invalidate", "The next turn finds nothing cached"), of("Disable caching for this", "disable", "No mark, no key, no named cache on the wire")]
    : of("Enable caching for this", "enable", "Cache again from the next call on"));
}

/** Every countdown on the page. */
function tick(place) {
  for (const one of place.querySelectorAll("[data-until]")) {
    const seconds = (Number(one.dataset.until) - now()) / 1000;
    const text = countdown(seconds);
    if (one.textContent !== text) one.textContent = text;
    one.classList.toggle("soon", seconds < 60);
  }
}
