// Saves tables as CSV and charts as SVG files.

import { button, h } from "./dom.js";

const STYLE_PROPERTIES = ["fill", "stroke", "stroke-width", "stroke-dasharray", "opacity", "font-size", "font-family", "text-anchor"];

/** A CSV cell; text that a spreadsheet would run as a formula gets a leading apostrophe. */
export function cell(value) {
  let text = value === null || value === undefined ? "" : String(value);
  if (typeof value === "string" && /^[=+\-@\t\r]/.test(text)) text = `'${text}`;
  return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

export const csv = (headings, rows) => [headings, ...rows].map((row) => row.map(cell).join(",")).join("\r\n") + "\r\n";

/** The SVG with its computed styles inlined, because the page's style sheet is not part of the file. */
export function standalone(svg) {
  const copy = svg.cloneNode(true);
  const originals = [svg, ...svg.querySelectorAll("*")];
  [copy, ...copy.querySelectorAll("*")].forEach((element, index) => {
    const style = getComputedStyle(originals[index]);
    STYLE_PROPERTIES.forEach((name) => element.setAttribute(name, style.getPropertyValue(name)));
    element.removeAttribute("class");
  });
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  return new XMLSerializer().serializeToString(copy);
}

function save(name, type, text) {
  const url = URL.createObjectURL(new Blob([text], { type }));
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
