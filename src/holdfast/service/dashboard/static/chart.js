// Stacked columns over time and stacked bars by name; one SVG path per series. Each has its numbers in a table behind it.

import { fill, h, s } from "./dom.js";
import { svgButton } from "./download.js";
import { dollars } from "./format.js";
import { table } from "./table.js";

/** The values at which an axis from 0 to at least `highest` has a line: steps of 1, 2 or 5 times a power of ten, `whole` ones if asked. */
export function axisValues(highest, whole = false) {
  const rough = highest / 4;
  const power = 10 ** Math.floor(Math.log10(rough));
  const fitting = power * [1, 2, 5, 10].find((factor) => factor * power >= rough * 0.999);
  const step = whole ? Math.max(1, fitting) : fitting;
  return Array.from({ length: Math.ceil(highest / step - 0.001) + 1 }, (_, index) => index * step);
}

/** Available chart width, minus padding and scroll bar. */
export const chartWidth = () => Math.max(280, document.getElementById("main").clientWidth - 78);

const HEIGHT = 180;
const LEFT = 58;
const FOOT = 22;
const TOP = 10;
const BAR_MAX = 64;
/** Width of a letter of a slot's label, and the least space between two labels. */
const [LETTER, GAP] = [6.2, 12];

/** `slots`: labels in order; `series`: {name, values} with one value per slot; `format` formats a value. */
export function columns({ slots, series, width, label, format = dollars }) {
  const sums = slots.map((_, slot) => series.reduce((sum, entry) => sum + entry.values[slot], 0));
  const values = axisValues(Math.max(...sums, 1e-9));
  const highest = values.at(-1);
  const step = (width - LEFT) / Math.max(1, slots.length);
  const bar = Math.min(BAR_MAX, Math.max(1, step - 2));
  const bottom = TOP + HEIGHT;
  const height = (value) => (value / highest) * HEIGHT;
  const tops = slots.map(() => bottom);
  const total = LEFT + step * slots.length;
  const paths = series.map((entry, index) => {
    const path = entry.values.map((value, slot) => {
      const size = height(value);
      tops[slot] -= size;
      return size > 0 ? `M${(LEFT + slot * step + (step - bar) / 2).toFixed(1)} ${tops[slot].toFixed(1)}h${bar.toFixed(1)}v${size.toFixed(1)}h${(-bar).toFixed(1)}z` : "";
    }).join("");
    return s("path", { class: `series series-${index % 6}`, d: path }, s("title", {}, entry.name));
  });
  const text = GAP + LETTER * Math.max(0, ...slots.map((slot) => slot.length));
  const every = Math.ceil(text / step);
  return s("svg", { class: "columns-chart", width: total, height: bottom + FOOT, viewBox: `0 0 ${total} ${bottom + FOOT}`, role: "img", "aria-label": label },
    values.map((value) => [
      s("path", { class: "grid", d: `M${LEFT} ${(bottom - height(value)).toFixed(1)}h${total - LEFT}` }),
      s("text", { class: "tick end", x: LEFT - 6, y: (bottom - height(value) + 4).toFixed(1) }, format(value)),
    ]),
    paths,
    // The label of a narrow column begins at its left; centred, the first would reach into the numbers beside it.
    slots.map((slot, index) => (index % every || (every > 1 && LEFT + index * step + text > total + GAP) ? null
      : s("text", { class: every > 1 ? "tick" : "tick middle", x: LEFT + (index + (every > 1 ? 0 : 0.5)) * step, y: bottom + 15 }, slot))),
    slots.map((slot, index) => s("rect", { class: "hover", x: LEFT + index * step, y: TOP, width: step, height: HEIGHT },
      s("title", {}, [slot, ...series.map((entry) => `${entry.name}: ${format(entry.values[index])}`)].join("\n")))));
}

const ROW = 26;
const NAME = 130;

/** One bar per name, where the value 1 is the whole width; `series` as in `columns`. */
export function bars({ names, series, width, label, format }) {
  const barWidth = Math.max(60, width - NAME - 10);
  const lefts = names.map(() => NAME);
  const paths = series.map((entry, index) => {
    const path = entry.values.map((value, row) => {
      const size = Math.max(0, value) * barWidth;
      const left = lefts[row];
      lefts[row] += size;
      return size > 0 ? `M${left.toFixed(1)} ${row * ROW + 5}h${size.toFixed(1)}v${ROW - 10}h${(-size).toFixed(1)}z` : "";
    }).join("");
    return s("path", { class: `series series-${index % 6}`, d: path }, s("title", {}, entry.name));
  });
  const [total, bottom] = [NAME + barWidth + 10, names.length * ROW + 4];
  const height = bottom + FOOT;
  return s("svg", { class: "bars-chart", width: total, height: height, viewBox: `0 0 ${total} ${height}`, role: "img", "aria-label": label },
    [0, 0.5, 1].map((value) => [
      s("path", { class: "grid", d: `M${NAME + value * barWidth} 0v${bottom}` }),
      s("text", { class: value === 1 ? "tick end" : "tick middle", x: NAME + value * barWidth + (value === 1 ? 8 : 0), y: bottom + 15 }, format(value)),
    ]),
    paths,
    names.map((name, row) => [
      s("text", { class: "tick end", x: NAME - 8, y: row * ROW + 17 }, name.length > 18 ? `${name.slice(0, 17)}…` : name),
      s("rect", { class: "hover", x: 0, y: row * ROW, width: total, height: ROW },
        s("title", {}, [name, ...series.map((entry) => `${entry.name}: ${format(entry.values[row])}`)].join("\n"))),
    ]));
}

export const seriesLegend = (series) => h("ul", { class: "legend" }, series.map((entry, index) =>
  h("li", {}, h("i", { class: `swatch series-${index % 6}` }), entry.name)));

const chosenSlots = new Map();

/**
 * A chart in a card: axis unit, legend, a line with the numbers of the slot under the pointer or chosen by arrow keys, and a table.
 * `draw` gets `slots`, `series`, `label` and `format` and returns the SVG, whose `.hover` elements are the slots in order; `above` comes before it.
 */
export function chartFigure({ name, caption, unit, heading, slots, series, format, draw, above = "" }) {
  const drawing = draw({ slots, series, format, label: `${caption}; the table below the chart has the numbers` });
  const readout = h("p", { class: "readout small", role: "status" });
  const areas = [...drawing.querySelectorAll(".hover")];
  const choose = (index, isKept = true) => {
    areas.forEach((area, at) => area.classList.toggle("chosen", at === index));
    if (isKept) chosenSlots.set(name, index);
    fill(readout, slots[index] === undefined ? unit : `${slots[index]}: ${series.map((entry) => `${entry.name} ${format(entry.values[index])}`).join(", ")}`);
  };
  areas.forEach((area, index) => area.addEventListener("pointerenter", () => choose(index, false)));
  const onKey = (event) => {
    const chosen = chosenSlots.get(name) ?? (event.key === "ArrowRight" ? -1 : slots.length);
    const next = { ArrowLeft: chosen - 1, ArrowRight: chosen + 1, Home: 0, End: slots.length - 1 }[event.key];
    if (next === undefined) return;
    event.preventDefault();
    choose(Math.min(slots.length - 1, Math.max(0, next)));
  };
  choose(chosenSlots.get(name));
  const rows = slots.map((slot, index) => ({ slot, index }));
  return h("section", { class: "block", "aria-label": caption },
    h("div", { class: "bar" }, h("h2", {}, caption), svgButton(name, () => drawing)), above,
    h("div", { class: "scroll chart", tabindex: 0, role: "group", "aria-label": `${caption}, in ${unit}; arrow keys read the numbers`, "data-key": `chart ${name}`, keydown: onKey, pointerleave: () => choose(chosenSlots.get(name), false) }, drawing),
    readout, seriesLegend(series),
    h("details", { "aria-label": `Numbers of ${caption}` }, h("summary", { "data-key": `numbers ${name}` }, "Numbers"), table({
      name, caption: `${caption}: numbers`, rows,
      columns: [{ heading, plain: (row) => row.slot, show: (row) => row.slot },
        ...series.map((entry) => ({ heading: entry.name, number: true, plain: (row) => entry.values[row.index], show: (row) => format(entry.values[row.index]) }))],
    })));
}
