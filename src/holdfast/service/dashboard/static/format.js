// Formats numbers, money, times, providers and verdicts.

import { h } from "./dom.js";

const NONE = "–";
const whole = new Intl.NumberFormat();
const short = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "short" });
const exact = new Intl.DateTimeFormat(undefined, { dateStyle: "full", timeStyle: "long" });

export const count = (value) => (value === null || value === undefined ? NONE : whole.format(value));

export const percent = (share) => (share === null || share === undefined ? NONE : `${Math.round(share * 100)}%`);

const compact = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

/** For axes: 12.4K. */
export const shortCount = (value) => compact.format(value);

const SMALLEST = 0.0001;

/** Money with the same four decimal places everywhere, so that columns and pages can be compared. */
export function dollars(amount) {
  if (amount === null || amount === undefined) return NONE;
  const size = Math.abs(amount);
  const sign = amount < 0 ? "−" : "";
  return size > 0 && size < SMALLEST / 2 ? `${sign}<$${SMALLEST}` : `${sign}$${size.toFixed(4)}`;
}

/** What calls cost; null where no price is known for their model. */
export const cost = (amount) => (amount === null ? "unpriced" : dollars(amount));

/** Seconds with one digit, or milliseconds below one second. */
export const duration = (milliseconds) => (milliseconds < 1000 ? `${whole.format(milliseconds)} ms` : `${(milliseconds / 1000).toFixed(1)} s`);

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
};

/** Text in which `backticks` are code. */
export const quoted = (text) => text.split("`").map((piece, index) => (index % 2 ? h("code", {}, piece) : piece));

/** How to fix a break, and where the docs explain it; nothing where nothing can be done. */
export const remedy = (kind) => (REMEDIES[kind] ? h("p", { class: "remedy", "data-remedy": kind }, h("strong", {}, "Fix: "), quoted(REMEDIES[kind]), ". ",
  h("a", { class: "small", href: `#/verdicts/${kind}` }, "More about this cause")) : null);

export function verdict(kind, detail = "") {
  if (!kind) return NONE;
  const meaning = [VERDICTS[kind], detail].filter(Boolean).join(" ");
  return h("span", { class: `verdict ${kind}`, title: meaning }, kind.replaceAll("_", " "));
}
