// Formats numbers, money, times, providers and verdicts.

import { h } from "./dom.js";

const NONE = "–";
const whole = new Intl.NumberFormat();
const short = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "short" });
const exact = new Intl.DateTimeFormat(undefined, { dateStyle: "full", timeStyle: "long" });

export const count = (value) => (value === null || value === undefined ? NONE : whole.format(value));

export const percent = (share) => (share === null || share === undefined ? NONE : `${Math.round(share * 100)}%`);

export function dollars(amount) {
  if (amount === null || amount === undefined) return NONE;
  const size = Math.abs(amount);
  const digits = size === 0 || size >= 1 ? 2 : size >= 0.01 ? 4 : 6;
  return `${amount < 0 ? "−" : ""}$${size.toFixed(digits)}`;
}

/** What calls cost; null where no price is known for their model. */
export const cost = (amount) => (amount === null ? "unpriced" : dollars(amount));

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
  held: "Everything cached was read.",
  planned: "The prefix was changed on purpose.",
  parameter_changed: "A request parameter changed that the cache depends on.",
  prefix_changed: "Bytes that had been sent before changed.",
  below_floor: "The prompt is shorter than the provider's cache minimum.",
  first_use: "Nothing was cached before.",
  ttl_expired: "The pause was longer than the cache's TTL.",
  lookback_miss: "The last breakpoint was beyond the provider's lookback window.",
  provider_side: "Same bytes, within the TTL, and still not read.",
};

export function verdict(kind, detail = "") {
  if (!kind) return NONE;
  const meaning = [VERDICTS[kind], detail].filter(Boolean).join(" ");
  return h("span", { class: `verdict ${kind}`, title: meaning }, kind.replaceAll("_", " "));
}
