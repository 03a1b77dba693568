// Stacked columns over time, and stacked bars by name; one path a series.

import { h, s } from "./dom.js";
import { dollars } from "./format.js";

/** What a chart may fill, with room for the frames around it and for a scroll bar. */
export const chartWidth = () => Math.max(280, document.getElementById("main").clientWidth - 96);

const HEIGHT = 180;
const LEFT = 58;
const FOOT = 22;
const TOP = 10;

/** `slots`: labels in order; `series`: {name, values} with one value a slot; `shown` tells a value. */
export function columns({ slots, series, width, label, shown = dollars }) {
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
      s("text", { class: "tick end", x: LEFT - 6, y: floor - HEIGHT * share + 4 }, shown(highest * share)),
    ]),
    paths,
    slots.map((slot, index) => (index % every ? null : s("text", { class: "tick", x: LEFT + index * step, y: floor + 15 }, slot))),
    slots.map((slot, index) => s("rect", { class: "hover", x: LEFT + index * step, y: TOP, width: step, height: HEIGHT },
      s("title", {}, [slot, ...series.map((one) => `${one.name}: ${shown(one.values[index])}`)].join("\n")))));
}

const ROW = 26;
const NAME = 130;

/** One bar a row, 1 being the whole width; `names` in order, `series` as above. */
export function bars({ names, series, width, label, shown }) {
  const wide = Math.max(60, width - NAME - 10);
  const lefts = names.map(() => NAME);
  const paths = series.map((one, index) => {
    const path = one.values.map((value, row) => {
      const size = Math.max(0, value) * wide;
      const left = lefts[row];
      lefts[row] += size;
      return size > 0 ? `M${left.toFixed(1)} ${row * ROW + 5}h${size.toFixed(1)}v${ROW - 10}h${(-size).toFixed(1)}z` : "";
    }).join("");
    return s("path", { class: `series series-${index % 6}`, d: path }, s("title", {}, one.name));
  });
  const [total, tall] = [NAME + wide + 10, names.length * ROW + 4];
  return s("svg", { class: "bars-chart", width: total, height: tall, viewBox: `0 0 ${total} ${tall}`, role: "img", "aria-label": label },
    s("path", { class: "grid", d: `M${NAME} 0v${tall}M${NAME + wide} 0v${tall}` }),
    paths,
    names.map((name, row) => [
      s("text", { class: "tick end", x: NAME - 8, y: row * ROW + 17 }, name.length > 18 ? `${name.slice(0, 17)}…` : name),
      s("rect", { class: "hover", x: 0, y: row * ROW, width: total, height: ROW },
        s("title", {}, [name, ...series.map((one) => `${one.name}: ${shown(one.values[row])}`)].join("\n"))),
    ]));
}

export const seriesLegend = (series) => h("ul", { class: "legend" }, series.map((one, index) =>
  h("li", {}, h("i", { class: `swatch series-${index % 6}` }), one.name)));
