// What is shown, as a file: tables as CSV, charts as SVG.

import { button, h } from "./dom.js";

const PAINTED = ["fill", "stroke", "stroke-width", "stroke-dasharray", "opacity", "font-size", "font-family", "text-anchor"];

/** A cell; text that a spreadsheet would take for a formula is kept from being one. */
export function cell(value) {
  let text = value === null || value === undefined ? "" : String(value);
  if (typeof value === "string" && /^[=+\-@\t\r]/.test(text)) text = `'${text}`;
  return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

export const csv = (headings, rows) => [headings, ...rows].map((row) => row.map(cell).join(",")).join("\r\n") + "\r\n";

/** The drawing with its colours in it: the page's style sheet does not travel along. */
export function standalone(svg) {
  const copy = svg.cloneNode(true);
  const originals = [svg, ...svg.querySelectorAll("*")];
  [copy, ...copy.querySelectorAll("*")].forEach((one, index) => {
    const style = getComputedStyle(originals[index]);
    PAINTED.forEach((name) => one.setAttribute(name, style.getPropertyValue(name)));
    one.removeAttribute("class");
  });
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  return new XMLSerializer().serializeToString(copy);
}

function save(name, kind, text) {
  const url = URL.createObjectURL(new Blob([text], { type: kind }));
  h("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}

export const csvButton = (name, headings, rows) =>
  button("CSV", () => save(`${name}.csv`, "text/csv", csv(headings, rows())), {
    class: "quiet", title: "Save this table as a file", "aria-label": `Save ${name} as CSV`, "data-key": `csv ${name}`,
  });

export const svgButton = (name, chart) =>
  button("SVG", () => save(`${name}.svg`, "image/svg+xml", standalone(chart())), {
    class: "quiet", title: "Save this chart as a file", "aria-label": `Save ${name} as SVG`, "data-key": `svg ${name}`,
  });
