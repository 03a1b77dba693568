// The prompts of a session as strata: one bar a call, its layers from the bottom up in the order of the wire.
//
// All bars together are one path a colour, so that a thousand calls are a dozen elements.

import { h, s } from "./dom.js";
import { count } from "./format.js";

const HEIGHT = 280;
const TOP = 26;
const FOOT = 20;
const STEP_MIN = 12;
const STEP_MAX = 96;

export const OUTCOMES = [
  ["read", "read from the cache", (call) => call.read_tokens],
  ["written", "written to the cache", (call) => call.written_tokens],
  ["uncached", "neither read nor written", (call) => call.uncached_tokens],
];

export const layersOf = (calls) => [...new Set(calls.flatMap((call) => call.layers.map((one) => one.layer)))];

const sent = (call) => call.read_tokens + call.written_tokens + call.uncached_tokens;

const box = (x, y, width, height) => `M${x} ${y}h${width}v${height}h${-width}z`;

/** Draws into a place; `width` is what there is to fill. Tells which call stands at an x. */
export function strata({ calls, between, width, selected }) {
  const step = Math.min(STEP_MAX, Math.max(STEP_MIN, Math.floor(width / Math.max(1, calls.length))));
  const highest = Math.max(1, ...calls.map(sent));
  const floor = TOP + HEIGHT;
  const tall = (tokens) => Math.round((tokens / highest) * HEIGHT * 10) / 10;
  const paths = new Map();
  const add = (name, path) => paths.set(name, (paths.get(name) ?? "") + path);
  const layers = layersOf(calls);

  calls.forEach((call, index) => {
    const x = index * step + 1;
    const strip = Math.max(3, Math.round(step * 0.22));
    const wide = step - strip - 3;
    let low = floor;
    for (const [name, , tokens] of OUTCOMES) {
      const size = tall(tokens(call));
      if (size) add(`outcome ${name}`, box(x, low - size, strip, size));
      low -= size;
    }
    low = floor;
    for (const { layer, tokens } of call.layers) {
      const size = tall(tokens);
      if (size) add(`layer layer-${layers.indexOf(layer) % 10}`, box(x + strip, low - size, wide, size));
      low -= size;
    }
    const edge = floor - tall(call.read_tokens);
    if (call.read_tokens) add("boundary", `M${x - 1} ${edge}h${step - 1}`);
    for (const mark of call.marks) add("mark", `M${x + step - 2} ${floor - tall(mark.tokens)}l-5 -3v6z`);
    if (call.verdict && call.verdict !== "held" && call.verdict !== "first_use") {
      add(call.is_break ? "broke" : "missed", `M${x + step / 2 - 4} ${floor - tall(sent(call)) - 12}h7l-3.5 7z`);
    }
  });
  const first = calls[0]?.number ?? 1;
  for (const one of between) add("between", `M${(one.calls_before - first + 1) * step} 4v${floor - 4}`);

  const chosen = calls.findIndex((call) => call.number === selected);
  const total = Math.max(1, calls.length) * step;
  const drawing = s("svg", {
    class: "strata", width: total, height: floor + FOOT, viewBox: `0 0 ${total} ${floor + FOOT}`, role: "img",
    "aria-label": `${calls.length} calls, the largest prompt has ${count(highest)} tokens; the table below tells each of them`,
  },
    chosen >= 0 ? s("rect", { class: "chosen", x: chosen * step, y: 0, width: step, height: floor }) : null,
    [...paths].map(([name, path]) => s("path", { class: name, d: path })),
    between.map((one) => s("text", { class: "glyph", x: (one.calls_before - first + 1) * step + 3, y: 12 }, one.kind, s("title", {}, `${one.kind}: ${one.detail}`))),
    numbers(calls, step, floor),
    s("path", { class: "ground", d: `M0 ${floor}h${total}` }));
  return { drawing, step, at: (x) => calls[Math.floor(x / step)] };
}

function numbers(calls, step, floor) {
  const every = Math.ceil(34 / step);
  return calls.map((call, index) => (index % every ? null : s("text", { class: "tick", x: index * step + 1, y: floor + 14 }, String(call.number))));
}

/** What the colours mean. */
export const legend = (calls) => h("ul", { class: "legend", "aria-label": "What the colours mean" },
  OUTCOMES.map(([name, meaning]) => h("li", {}, h("i", { class: `swatch ${name}` }), meaning)),
  layersOf(calls).map((layer, index) => h("li", {}, h("i", { class: `swatch layer-${index % 10}` }), layer)),
  h("li", {}, h("i", { class: "swatch line" }), "up to here it was read"),
  h("li", {}, h("i", { class: "swatch arrow" }), "a mark"));
