// Formats numbers, money, times, providers and verdicts.

import { h } from "./dom.js";

const NONE = "–";
const whole = new Intl.NumberFormat();
const short = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "short" });
const exact = new Intl.DateTimeFormat(undefined, { dateStyle: "full", timeStyle: "long" });

export const count = (value) => (value === null || value === undefined ? NONE : whole.format(value));

export const percent = (share) => (share === null || share === undefined ? NONE : `${Math.round(share * 100)}%`.replace("-", "−"));

const compact = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

/** For axes: 12.4K. */
export const shortCount = (value) => compact.format(value);

const SMALLEST = 0.0001;

/** Money with the same four decimal places everywhere, so that columns and pages can be compared, and thousands set apart: $20,000.0000. */
export function dollars(amount) {
  if (amount === null || amount === undefined) return NONE;
  const size = Math.abs(amount);
  const sign = amount < 0 ? "−" : "";
  return size > 0 && size < SMALLEST / 2 ? `${sign}<$${SMALLEST}` : `${sign}$${size.toFixed(4).replace(/\B(?=(\d{3})+\.)/g, ",")}`;
}

/** What calls cost; null where no price is known for their model. */
export const cost = (amount) => (amount === null ? "unpriced" : dollars(amount));

/** What calls cost of which some may have no price: those are in no sum, so their number is shown beside it. */
export const costOfPriced = (amount, unpriced, calls) => (unpriced && unpriced === calls ? "unpriced"
  : [h("span", { class: "amount" }, dollars(amount)), unpriced ? h("span", { class: "small" }, ` + ${count(unpriced)} unpriced ${unpriced === 1 ? "call" : "calls"}`) : null]);

/** Seconds with one digit, or milliseconds below one second. */
export const duration = (milliseconds) => (milliseconds < 1000 ? `${whole.format(milliseconds)} ms` : `${(milliseconds / 1000).toFixed(1)} s`);

/** The TTLs of breakpoints, in words. */
export const TTLS = { "5m": "5 min", "1h": "60 min" };

/** Minutes and seconds, with hours if there are any: 4:32, 1:04:32. */
export function countdown(seconds) {
  const left = Math.max(0, Math.floor(seconds));
  const [hours, minutes, rest] = [Math.floor(left / 3600), Math.floor(left / 60) % 60, left % 60];
  const two = (value) => String(value).padStart(2, "0");
  return hours ? `${hours}:${two(minutes)}:${two(rest)}` : `${minutes}:${two(rest)}`;
}

/** A local time, with the exact timestamp as tooltip. */
export function time(stamp) {
  if (!stamp) return NONE;
  const at = new Date(stamp);
  return h("time", { datetime: stamp, title: `${exact.format(at)} (${at.toISOString()})` }, short.format(at));
}

export const PROVIDERS = {
  anthropic: "Anthropic",
  openai: "OpenAI",
  "openai-chat": "OpenAI chat",
  gemini: "Gemini",
  openrouter: "OpenRouter",
  "claude-code": "Claude Code",
};

export const provider = (name) => PROVIDERS[name] ?? name;

/** Nothing that was cached was sent again. */
export const NO_BREAKS = ["held", "first_use"];

export const VERDICTS = {
  held: "Everything that could be read was read.",
  planned: "The prefix was changed on purpose.",
  model_switched: "Another model answers; caches are per model.",
  image_rule: "The first image, or the last one removed: the provider caches messages with and without images apart.",
  parameter_changed: "A request parameter changed that the cache depends on.",
  no_breakpoint: "Long enough to be cached, but nothing was marked.",
  tail_rewritten: "The last message was sent again in another form.",
  prefix_changed: "Bytes that had been sent before changed.",
  below_floor: "The prompt, or its marked part, is shorter than the provider's cache minimum.",
  first_use: "Nothing that the prompt begins with was cached before.",
  ttl_expired: "The pause was longer than the cache's TTL.",
  lookback_miss: "The last breakpoint was beyond the provider's lookback window.",
  provider_side: "Same bytes, within the TTL, and still not read.",
};

/** What avoids a break; the same texts as in `holdfast report`. */
export const REMEDIES = {
  prefix_changed: "move text that changes (dates, ids, memory) after the history, add no tools or MCP servers in a session, and remove no messages but by a compaction",
  tail_rewritten: "the client rewrites its last messages; let it append instead",
  parameter_changed: "choose model settings such as thinking and tool choice once for a session",
  ttl_expired: "ask for a TTL of 1 h if pauses are shorter; `holdfast serve --improve` does where it pays",
  no_breakpoint: "run `holdfast serve --improve`, or set `cache_control`",
  lookback_miss: "run `holdfast serve --improve`, or set one more breakpoint at least every 20 blocks",
  model_switched: "stay with one model, or switch after a compaction: each model has its own cache",
  image_rule: "send the first image early, while the prompt is short",
  planned: "it was done on purpose; if it happens often, compact later, or change controls between sessions",
  below_floor: "a prompt that short is never cached; if only its marked part is, set `cache_control` on a later block, and where many short calls share a prompt, see whether padding pays: `holdfast explain`",
  provider_side: "nothing in the prompt avoids it; check that all calls use one account, set a sticky route where a proxy balances, and start many sessions through one process",
};

/** What to do about calls that did not complete, by error class; as in docs/errors.md. */
export const OUTCOMES = {
  rate_limit: "the provider limits requests or tokens: wait, send fewer at once, or ask it for a higher limit",
  auth: "the provider's key is missing, wrong or not allowed: `holdfast config` shows what is read",
  server_error: "the provider failed, despite retries: try again later",
  network: "the provider could not be reached, despite retries: check its address and the proxy",
  context_overflow: "the prompt is too long for the model: compact, or turn compaction on",
  invalid_request: "the provider rejected the request: its answer, which the caller got, names the part",
  cancelled: "the caller stopped it before its end",
  unreadable: "the response could not be decoded, so its usage and cost are estimates: `holdfast sessions show ID` names the field",
  other: "anything else: the provider's answer, which the caller got, has the reason",
};

/** How a call ended, with what to do about it as tooltip. */
export const outcome = (kind) => (kind === "completed" ? kind
  : h("span", { class: "bad", title: (OUTCOMES[kind] ?? "").replaceAll("`", "") || null }, kind.replaceAll("_", " ")));

/** The model of a session's start, and that of its last call if it was switched. */
export const modelsOf = ({ model, active_model: active }) => (active === model ? model : `${model}, then ${active}`);

/** Text in which `backticks` are code. */
export const quoted = (text) => text.split("`").map((piece, index) => (index % 2 ? h("code", {}, piece) : piece));

/** How to fix a break, and where the docs explain it; nothing for what is no break. */
export const remedy = (kind) => (REMEDIES[kind] ? h("p", { class: "remedy", "data-remedy": kind }, h("strong", {}, "Fix: "), quoted(REMEDIES[kind]), ". ",
  h("a", { class: "small", href: `#/verdicts/${kind}` }, "More about this cause")) : null);

export function verdict(kind, detail = "") {
  if (!kind) return NONE;
  const meaning = [VERDICTS[kind], detail].filter(Boolean).join(" ");
  return h("span", { class: `verdict ${kind}`, title: meaning }, kind.replaceAll("_", " "));
}
