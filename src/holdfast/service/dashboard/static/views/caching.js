// Current cache state by provider and by session, and the global cache settings.

import { get, now, part, post } from "../api.js";
import { button, empty, explained, fill, h, latest, notice, simulatedHint } from "../dom.js";
import { TTLS, count, countdown, dollars, percent, provider, time, verdict } from "../format.js";
import { pager, table } from "../table.js";
import { minutes, settings } from "./settings.js";

export const title = "Caching";

const LIMIT = 25;

export async function show(place, { query, visitor }) {
  const skip = Math.max(0, Math.floor(Number(query.get("skip"))) || 0);
  const isAdmin = visitor.scope === "admin";
  const summaries = h("div", {});
  const unreadable = h("div", {});
  const sessions = h("div", {});
  const question = h("div", {});
  const inForce = h("p", { class: "small", "data-figure": "ttl-in-force" });
  const ask = (session, action) => {
    if (action !== "invalidate") return change(session, action);
    const price = session.invalidation_usd === null ? "" : `, about ${dollars(session.invalidation_usd)} more than reading them`;
    fill(question, h("section", { class: "block warning", "aria-label": "Invalidate a cache" }, h("h2", {}, `Invalidate the cache of ${session.title}?`),
      h("p", {}, session.tokens_cached ? `Its next call writes ${count(session.tokens_cached)} tokens again${price}.` : "Nothing of it is cached now; its next call starts a new prefix."),
      h("p", { class: "buttons" }, button("Invalidate it", async () => { fill(question); await change(session, action); }, { "data-does": "invalidate-confirmed", "data-returns": `invalidate ${session.discussion_id}` }),
        button("Keep it", () => fill(question), { "data-does": "keep", "data-returns": `invalidate ${session.discussion_id}` }))));
    // Enter, pressed once more by mistake, must not invalidate it.
    question.querySelector("[data-does=keep]").focus();
    question.scrollIntoView({ block: "nearest" });
  };
  const change = async (session, action) => {
    try {
      const reply = await post(`/api/cache/${part(session.discussion_id)}/${action}`);
      notice(action === "invalidate" ? `Invalidated: ${reply.effect}.` : `Caching is ${reply.caching_enabled ? "on" : "off"} from the next call on.`);
    } catch (error) {
      notice(error.message, "bad");
    }
    await refresh();
  };
  const refresh = latest(() => Promise.all([get("/api/cache", { limit: LIMIT, skip }), unreadableNote()]), ([reply, note]) => {
    fill(unreadable, note);
    fill(summaries, providers(reply.providers, reply.more || skip ? reply.discussions.length : null));
    fill(sessions, reply.discussions.length || skip
      ? [discussions(reply.discussions, ask, isAdmin), pager({ skip, limit: LIMIT, more: reply.more, link: (next) => `#/caching?skip=${next}` })]
      : nothing(visitor));
    inForce.textContent = describeTtls(reply.discussions);
    tick(place);
  });
  await refresh();
  place.append(h("h1", {}, "Caching"), unreadable, summaries, question, sessions, await settings(isAdmin, inForce));
  // A cache expires without an event.
  let asked = null;
  const timer = setInterval(() => {
    if (tick(place)) asked ??= refresh().catch(() => null).finally(() => { asked = null; });
  }, 1000);
  return { refresh, close: () => clearInterval(timer) };
}

/** The TTLs that these sessions asked for last: what "chosen by the plan" and "set by each session" mean now. */
function describeTtls(rows) {
  const parts = [["anthropic", "Anthropic", (row) => row.ttl && (TTLS[row.ttl] ?? row.ttl)], ["gemini", "explicit caches at Gemini", (row) => row.cached && row.explicit_ttl_seconds && minutes(row.explicit_ttl_seconds)]]
    .flatMap(([name, label, ttlOf]) => {
      const counts = new Map();
      rows.filter((row) => row.provider === name && ttlOf(row)).forEach((row) => counts.set(ttlOf(row), (counts.get(ttlOf(row)) ?? 0) + 1));
      return counts.size ? `${label}: ${[...counts].sort().map(([ttl, sessions]) => `${ttl} in ${count(sessions)} ${sessions === 1 ? "session" : "sessions"}`).join(", ")}` : [];
    });
  return parts.length ? `In force on this page for ${parts.join("; for ")}.` : "";
}

/** How many responses could not be decoded, since the store was made; nothing if there are none. */
export async function unreadableNote() {
  const { unreadable_calls: calls = 0 } = await get("/readyz");
  if (!calls) return [];
  const responses = `${count(calls)} ${calls === 1 ? "response" : "responses"} could not be read since the store was made: usage and cost are estimated by size. `;
  return h("p", { class: "warning", role: "note", "data-figure": "unreadable" }, responses, h("a", { href: "#/calls?outcome=unreadable&days=365", "data-key": "unreadable" }, calls === 1 ? "Show the call" : "Show the calls"), ".");
}

const nothing = (visitor) => empty("No session yet",
  visitor.sample === "off"
    ? ["Sessions appear here with their first call: run ", h("code", {}, "holdfast demo --keep"), " or start with ", h("code", {}, "holdfast serve --simulate"), "."]
    : [h("a", { href: "#/try" }, "Try it"), " plays sample sessions with good and bad caching habits."], simulatedHint());

/** `sessions` is how many sessions are summarized if there are others. */
function providers(rows, sessions) {
  return h("section", { class: "block", "aria-label": "Provider summaries" },
    h("h2", {}, "Provider summaries"),
    sessions ? h("p", { class: "small", "data-figure": "summarized" }, `Of the ${count(sessions)} ${sessions === 1 ? "session" : "sessions"} on this page; `, h("a", { href: "#/cost", "data-key": "all tokens" }, "Cost"), " has the tokens of all calls.") : null,
    rows.length ? h("ul", { class: "cards" }, rows.map(summary)) : h("p", { class: "none" }, "No calls yet."));
}

function summary(row) {
  const managed = row.ttl_seconds === null;
  return h("li", { class: "card", "data-provider": row.provider },
    h("h3", {}, provider(row.provider)),
    h("p", { class: "figures" },
      figure("in", count(row.tokens_in), "Input tokens of all prompts"),
      figure("cache", count(row.tokens_cached), "Input tokens read from the provider's cache"),
      figure("hit", percent(row.hit_share), "Hit rate: share of input tokens read from the cache"),
      figure("calls hit", percent(row.hit_coverage), "Hit coverage: share of calls with any cache read"),
      figure("ttl", managed ? "n/a" : timeLeft(row.ttl_seconds), "Remaining TTL of the entry that expires last")),
    managed ? h("p", { class: "small" }, `Cached by ${provider(row.provider)}; TTL: provider-managed.`) : null);
}

const figure = (label, value, meaning) =>
  explained([h("span", { class: "label" }, `${label}:`), " ", h("strong", {}, value)], meaning, { class: "figure" });

/** A countdown, updated by `tick`. */
const timeLeft = (seconds) => h("span", { "data-until": now() + seconds * 1000 }, countdown(seconds));

function discussions(rows, change, isAdmin) {
  return table({
    name: "sessions",
    caption: "Active discussions",
    rows,
    attributes: (row) => ({ "data-session": row.discussion_id }),
    columns: [
      { heading: "Session", meaning: "A discussion is a session", plain: (row) => row.title,
        show: (row) => [h("a", { href: `#/session/${part(row.discussion_id)}`, "data-key": `open ${row.discussion_id}` }, row.title), h("div", { class: "small" }, row.model)] },
      { heading: "Cached", meaning: "Whether the provider currently caches part of it", plain: (row) => (row.cached ? "yes" : "no"),
        show: (row) => (row.cached ? `yes (${provider(row.provider)})` : row.caching_enabled ? "no" : "no, disabled") },
      { heading: "Expires", meaning: "When the cache entry expires; each use extends it", plain: (row) => row.expires_at ?? "", show: expires },
      { heading: "Tokens cached", meaning: "Tokens that the next call can read", number: true, plain: (row) => row.tokens_cached, show: (row) => count(row.tokens_cached) },
      { heading: "Calls hit", meaning: "Calls with any cache read, of all calls", number: true, plain: (row) => row.hit_count, show: (row) => `${count(row.hit_count)} of ${count(row.calls)}` },
      { heading: "Last verdict", meaning: "Verdict on the last call's cache use", plain: (row) => row.verdict ?? "", show: (row) => verdict(row.verdict, row.verdict_detail) },
      { heading: "Control", meaning: "Takes effect with the session's next call", show: (row) => controls(row, change, isAdmin) },
    ],
  });
}

function expires(row) {
  if (!row.cached) return "–";
  if (!row.expires_at) return explained("provider-managed", "The provider does not publish the TTL");
  return [time(row.expires_at), " ", h("span", { class: "left" }, "(in ", timeLeft((Date.parse(row.expires_at) - now()) / 1000), ")")];
}

function controls(row, change, isAdmin) {
  const canControl = (action) => row.controllable === "all" || (row.controllable === "caching_only" && action !== "invalidate");
  const control = (label, action, meaning) => button(label, () => change(row, action), {
    title: !canControl(action) ? "This session's client writes its own requests and does not support this" : isAdmin ? meaning : "Needs a key of scope admin",
    // Disable and enable take each other's place.
    "data-key": `${action === "invalidate" ? action : "caching"} ${row.discussion_id}`, "data-does": action, disabled: !isAdmin || !canControl(action),
    "aria-label": `${label}: ${row.title}`,
  });
  return h("div", { class: "buttons" }, row.caching_enabled
    ? [control("Invalidate cache", "invalidate", "The next turn finds nothing cached"), control("Disable caching for this", "disable", "Send no breakpoints, no cache key and no explicit cache")]
    : control("Enable caching for this", "enable", "Cache again from the next call on"));
}

/** Updates every countdown in the element; whether that of a session has ended. */
function tick(place) {
  let hasEnded = false;
  for (const element of place.querySelectorAll("[data-until]")) {
    const seconds = (Number(element.dataset.until) - now()) / 1000;
    const text = countdown(seconds);
    if (element.textContent !== text) element.textContent = text;
    element.classList.toggle("soon", seconds < 60);
    hasEnded ||= seconds <= 0 && element.closest("[data-session]") !== null;
  }
  return hasEnded;
}
