// Tables with CSV export; each column defines how a row is shown and exported.

import { h } from "./dom.js";
import { csvButton } from "./download.js";
import { count, cost, dollars, percent } from "./format.js";

/**
 * `columns`: {heading, meaning, show(row), plain(row), number, sort}. A column without `plain` is not exported, one without `show` is only exported.
 * `sorting`: {sort, descending, link(sort, descending)} of a table whose columns with `sort` can be sorted by.
 */
export function table({ name, caption, columns, rows, none = "Nothing here yet.", attributes, sorting }) {
  const exported = columns.filter((column) => column.plain);
  const shown = columns.filter((column) => column.show);
  const head = shown.map((column) => {
    const isSorted = sorting && column.sort === sorting.sort;
    return h("th", { scope: "col", class: column.number ? "number" : null, title: column.meaning, "aria-sort": isSorted ? (sorting.descending ? "descending" : "ascending") : null },
      sorting && column.sort
        ? h("a", { href: sorting.link(column.sort, isSorted ? !sorting.descending : true), "data-key": `sort ${column.sort}` }, column.heading, isSorted ? (sorting.descending ? " ↓" : " ↑") : "")
        : column.heading);
  });
  const body = rows.map((row) =>
    h("tr", attributes?.(row) ?? {}, shown.map((column) =>
      h("td", { class: column.number ? "number" : null, "data-heading": column.heading }, column.show(row)))));
  return h("section", { class: "block", "aria-label": caption },
    h("div", { class: "bar" }, h("h2", {}, caption), rows.length
      ? csvButton(name, exported.map((column) => column.heading), () => rows.map((row) => exported.map((column) => column.plain(row))))
      : null),
    rows.length
      ? h("div", { class: "scroll" }, h("table", {}, h("thead", {}, h("tr", {}, head)), h("tbody", {}, body)))
      : h("p", { class: "none" }, none));
}

const numericColumn = (format) => (heading, of, meaning) => ({ heading, meaning, number: true, plain: of, show: (row) => format(of(row)) });

export const number = numericColumn(count);
export const money = numericColumn(dollars);
/** Money that was spent: `unpriced` where no price is known. */
export const spent = numericColumn(cost);
export const share = numericColumn(percent);

/** The days that a view can be about; a view that is given no such number of days is about seven. */
const PERIODS = [[1, "24 hours"], [7, "7 days"], [30, "30 days"], [365, "a year"]];

export const periodOf = (query) => PERIODS.map(([days]) => days).find((days) => String(days) === query.get("days")) ?? 7;

export const periodName = (days) => PERIODS.find(([value]) => value === days)[1];

/** Links to the same view about another period. */
export const periodSwitch = (days, link) => h("p", { class: "switch" }, "Last ", PERIODS.map(([value, label]) =>
  h("a", { href: link(value), "aria-current": value === days ? "true" : null, "data-key": `period ${value}` }, label)));

/** For links to another page of a list: the next page is read from its top. */
export const toTop = () => window.scrollTo(0, 0);

/** Links to the newer and older page. */
export const pager = ({ skip, limit, more, link }) => (skip === 0 && !more ? null : h("nav", { class: "pager", "aria-label": "Pages" },
  skip > 0 ? h("a", { href: link(Math.max(0, skip - limit)), "data-key": "newer", click: toTop }, "← Newer") : null,
  h("span", {}, `from ${skip + 1}`),
  more ? h("a", { href: link(skip + limit), "data-key": "older", click: toTop }, "Older →") : null));
