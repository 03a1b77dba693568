// Chart of a session's prompts: one bar per call, with its layers stacked in wire order from the bottom up.
//
// All bars share one path per colour, so that a thousand calls need only a dozen elements.

import { axisValues } from "./chart.js";
import { h, s } from "./dom.js";
import { NO_BREAKS, cost, count, shortCount } from "./format.js";

const HEIGHT = 280;
const TOP = 26;
const FOOT = 20;
const LEFT = 52;
const STEP_MIN = 12;

export const OUTCOMES = [
  ["read", "read from the cache", (call) => call.read_tokens],
  ["written", "written to the cache", (call) => call.written_tokens],
  ["uncached", "neither read nor written", (call) => call.uncached_tokens],
];

export const layersOf = (calls) => [...new Set(calls.flatMap((call) => call.layers.map((part) => part.layer)))];

/** The numbers of a call in one line, for the line below the chart. */
export const describeCall = (call) => `Call ${call.number}: ${OUTCOMES.map(([, meaning, tokens]) => `${count(tokens(call))} ${meaning}`).join(", ")}, ${cost(call.cost_usd)}${call.verdict ? `, ${call.verdict.replaceAll("_", " ")}` : ""}`;

const sentTokens = (call) => call.read_tokens + call.written_tokens + call.uncached_tokens;

const box = (x, y, width, height) => `M${x} ${y}h${width}v${height}h${-width}z`;

/** Draws the chart for the available `width`; `at(x)` of the result is the call at that position. */
export function promptChart({ calls, between, width, selected }) {
  const step = Math.max(STEP_MIN, Math.floor((width - LEFT) / Math.max(1, calls.length)));
  const largest = Math.max(1, ...calls.map(sentTokens));
  const values = axisValues(largest, true);
  const highest = values.at(-1);
  const bottom = TOP + HEIGHT;
  const height = (tokens) => Math.round((tokens / highest) * HEIGHT * 10) / 10;
  const paths = new Map();
  const add = (name, path) => paths.set(name, (paths.get(name) ?? "") + path);
  const layers = layersOf(calls);

  calls.forEach((call, index) => {
    const x = LEFT + index * step + 1;
    const outcomeWidth = Math.max(3, Math.round(step * 0.22));
    const layerWidth = step - outcomeWidth - 3;
    let top = bottom;
    for (const [name, , tokens] of OUTCOMES) {
      const size = height(tokens(call));
      if (size) add(`outcome ${name}`, box(x, top - size, outcomeWidth, size));
      top -= size;
    }
    top = bottom;
    for (const { layer, tokens } of call.layers) {
      const size = height(tokens);
      if (size) add(`layer layer-${layers.indexOf(layer) % 10}`, box(x + outcomeWidth, top - size, layerWidth, size));
      top -= size;
    }
    const edge = bottom - height(call.read_tokens);
    if (call.read_tokens) add("boundary", `M${x - 1} ${edge}h${step - 1}`);
    for (const breakpoint of call.breakpoints) add("breakpoint", `M${x + step - 2} ${bottom - height(breakpoint.tokens)}l-5 -3v6z`);
    if (call.verdict && !NO_BREAKS.includes(call.verdict)) {
      add(call.is_break ? "break" : "miss", `M${x + step / 2 - 4} ${bottom - height(sentTokens(call)) - 12}h7l-3.5 7z`);
    }
  });
  const first = calls[0]?.number ?? 1;
  for (const event of between) add("between", `M${LEFT + (event.calls_before - first + 1) * step} 4v${bottom - 4}`);

  const selectedIndex = calls.findIndex((call) => call.number === selected);
  const total = LEFT + Math.max(1, calls.length) * step;
  const drawing = s("svg", {
    class: "prompt-chart", width: total, height: bottom + FOOT, viewBox: `0 0 ${total} ${bottom + FOOT}`, role: "img",
    "aria-label": `${calls.length} calls, the largest prompt has ${count(largest)} tokens; the table below lists each of them`,
  },
    values.map((value) => [
      s("path", { class: "grid", d: `M${LEFT} ${bottom - height(value)}h${total - LEFT}` }),
      s("text", { class: "tick end", x: LEFT - 6, y: bottom - height(value) + 4 }, shortCount(value)),
    ]),
    s("text", { class: "tick end", x: LEFT - 6, y: TOP - 14 }, "tokens"),
    selectedIndex >= 0 ? s("rect", { class: "selected", x: LEFT + selectedIndex * step, y: 0, width: step, height: bottom }) : null,
    [...paths].map(([name, path]) => s("path", { class: name, d: path })),
    between.map((event) => s("text", { class: "glyph", x: LEFT + (event.calls_before - first + 1) * step + 3, y: 12 }, event.kind, s("title", {}, `${event.kind}: ${event.detail}`))),
    callNumbers(calls, step, bottom),
    s("path", { class: "axis", d: `M${LEFT} ${bottom}h${total - LEFT}` }));
  return { drawing, step, at: (x) => calls[Math.floor((x - LEFT) / step)] };
}

function callNumbers(calls, step, bottom) {
  const every = Math.ceil(34 / step);
  return calls.map((call, index) => (index % every ? null : s("text", { class: "tick", x: LEFT + index * step + 1, y: bottom + 14 }, String(call.number))));
}

export const legend = (calls) => h("ul", { class: "legend", "aria-label": "Legend" },
  OUTCOMES.map(([name, meaning]) => h("li", {}, h("i", { class: `swatch ${name}` }), meaning)),
  layersOf(calls).map((layer, index) => h("li", {}, h("i", { class: `swatch layer-${index % 10}` }), layer)),
  h("li", {}, h("i", { class: "swatch line" }), "end of the cache read"),
  h("li", {}, mark("breakpoint", "M11 6l-5 -3v6z"), "cache breakpoint"),
  h("li", {}, mark("break", "M2 2h7l-3.5 7z"), "unexpected miss"),
  h("li", {}, mark("miss", "M2 2h7l-3.5 7z"), "explained miss"),
  h("li", {}, mark("between", "M6 0v12"), "event between calls"));

/** A mark exactly as the chart draws it. */
const mark = (name, d) => s("svg", { class: "mark", width: 12, height: 12, viewBox: "0 0 12 12", "aria-hidden": "true" }, s("path", { class: name, d }));
