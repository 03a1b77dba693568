// Stacked columns over time and stacked bars by name; one SVG path per series.

import { h, s } from "./dom.js";
import { dollars } from "./format.js";

/** Available chart width, minus padding and scroll bar. */
export const chartWidth = () => Math.max(280, document.getElementById("main").clientWidth - 96);

const HEIGHT = 180;
const LEFT = 58;
const FOOT = 22;
const TOP = 10;

/** `slots`: labels in order; `series`: {name, values} with one value per slot; `format` formats a value. */
export function columns({ slots, series, width, label, format = dollars }) {
  const sums = slots.map((_, slot) => series.reduce((sum, entry) => sum + entry.values[slot], 0));
  const highest = Math.max(...sums, 1e-9);
  const step = Math.min(96, (width - LEFT) / Math.max(1, slots.length));
  const bottom = TOP + HEIGHT;
  const height = (value) => (value / highest) * HEIGHT;
  const tops = slots.map(() => bottom);
  const total = LEFT + step * slots.length;
  const paths = series.map((entry, index) => {
    const path = entry.values.map((value, slot) => {
      const size = height(value);
      tops[slot] -= size;
      return size > 0 ? `M${LEFT + slot * step + 1} ${tops[slot].toFixed(1)}h${Math.max(1, step - 2).toFixed(1)}v${size.toFixed(1)}h${-Math.max(1, step - 2).toFixed(1)}z` : "";
    }).join("");
    return s("path", { class: `series series-${index % 6}`, d: path }, s("title", {}, entry.name));
  });
  const every = Math.ceil(78 / step);
  return s("svg", { class: "columns-chart", width: total, height: bottom + FOOT, viewBox: `0 0 ${total} ${bottom + FOOT}`, role: "img", "aria-label": label },
    [0, 0.5, 1].map((share) => [
      s("path", { class: "grid", d: `M${LEFT} ${bottom - HEIGHT * share}h${total - LEFT}` }),
      s("text", { class: "tick end", x: LEFT - 6, y: bottom - HEIGHT * share + 4 }, format(highest * share)),
    ]),
    paths,
    slots.map((slot, index) => (index % every ? null : s("text", { class: "tick", x: LEFT + index * step, y: bottom + 15 }, slot))),
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
  const [total, height] = [NAME + barWidth + 10, names.length * ROW + 4];
  return s("svg", { class: "bars-chart", width: total, height: height, viewBox: `0 0 ${total} ${height}`, role: "img", "aria-label": label },
    s("path", { class: "grid", d: `M${NAME} 0v${height}M${NAME + barWidth} 0v${height}` }),
    paths,
    names.map((name, row) => [
      s("text", { class: "tick end", x: NAME - 8, y: row * ROW + 17 }, name.length > 18 ? `${name.slice(0, 17)}…` : name),
      s("rect", { class: "hover", x: 0, y: row * ROW, width: total, height: ROW },
        s("title", {}, [name, ...series.map((entry) => `${entry.name}: ${format(entry.values[row])}`)].join("\n"))),
    ]));
}

export const seriesLegend = (series) => h("ul", { class: "legend" }, series.map((entry, index) =>
  h("li", {}, h("i", { class: `swatch series-${index % 6}` }), entry.name)));
