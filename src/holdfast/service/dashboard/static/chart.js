// Stacked columns over time, drawn as one path a series.

import { h, s } from "./dom.js";
import { dollars } from "./format.js";

const HEIGHT = 180;
const LEFT = 58;
const FOOT = 22;
const TOP = 10;

/** `slots`: labels in order; `series`: {name, values} with one value a slot. */
export function columns({ slots, series, width, label }) {
  const sums = slots.map((_, slot) => series.reduce((total, one) => total + one.values[slot], 0));
  const highest = Math.max(...sums, 1e-9);
  const step = Math.min(96, (width - LEFT) / Math.max(1, slots.length));
  const floor = TOP + HEIGHT;
  const tall = (value) => (value / highest) * HEIGHT;
  const lows = slots.map(() => floor);
  const total = LEFT + step * slots.length;
  const paths = series.map((one, index) => {
    const path = one.values.map((value, slot) => {
      const size = tall(value);
      lows[slot] -= size;
      return size > 0 ? `M${LEFT + slot * step + 1} ${lows[slot].toFixed(1)}h${Math.max(1, step - 2).toFixed(1)}v${size.toFixed(1)}h${-Math.max(1, step - 2).toFixed(1)}z` : "";
    }).join("");
    return s("path", { class: `series series-${index % 6}`, d: path }, s("title", {}, one.name));
  });
  const every = Math.ceil(78 / step);
  return s("svg", { class: "columns-chart", width: total, height: floor + FOOT, viewBox: `0 0 ${total} ${floor + FOOT}`, role: "img", "aria-label": label },
    [0, 0.5, 1].map((share) => [
      s("path", { class: "grid", d: `M${LEFT} ${floor - HEIGHT * share}h${total - LEFT}` }),
      s("text", { class: "tick end", x: LEFT - 6, y: floor - HEIGHT * share + 4 }, dollars(highest * share)),
    ]),
    paths,
    slots.map((slot, index) => (index % every ? null : s("text", { class: "tick", x: LEFT + index * step, y: floor + 15 }, slot))),
    slots.map((slot, index) => s("rect", { class: "hover", x: LEFT + index * step, y: TOP, width: step, height: HEIGHT },
      s("title", {}, [slot, ...series.map((one) => `${one.name}: ${dollars(one.values[index])}`)].join("\n")))));
}

export const seriesLegend = (series) => h("ul", { class: "legend" }, series.map((one, index) =>
  h("li", {}, h("i", { class: `swatch series-${index % 6}` }), one.name)));
